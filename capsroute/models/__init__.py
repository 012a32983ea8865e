"""Every model of the papers, by name."""
