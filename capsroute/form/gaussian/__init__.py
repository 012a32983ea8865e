"""Gaussians over votes (EM, Heinsen 2019): density and moments, plain and as kernels."""
