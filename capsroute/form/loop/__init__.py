"""The loop of dynamic and max-min routing as kernels, over lists and maps of capsules."""
