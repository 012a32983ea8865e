"""Routing pooling (Zhao & Huang 2019) as two kernels."""
