"""Data sets of the papers: sources, decoding, device-resident batches, generated sets."""
