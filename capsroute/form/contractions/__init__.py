"""The four contractions of the capsule form: plain, as kernels, as operators."""
