"""A user's own images, from files to sets: decoding, listing folders and tables, splitting, arrays."""
