"""Master coefficients: accumulate, filter, fold, export."""
