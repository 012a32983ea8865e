"""What is done to rows of a few numbers: LayerNorm and squash."""
