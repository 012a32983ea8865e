"""The sibling of every function of numbers: what draws them."""
