"""Data sets made rather than photographed: rules that draw pictures from MNIST digits, and rendered toys."""
