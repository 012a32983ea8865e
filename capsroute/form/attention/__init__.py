"""Inverted attention (Tsai 2020): one step as a kernel."""
