"""Recipes, the training loop, checkpoints, distributed runs."""
