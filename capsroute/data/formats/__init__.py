"""Decoders of the original file formats: bytes in, tensors out, an error that names the file when it is damaged."""
