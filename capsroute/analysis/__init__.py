"""The figures of the papers as functions: numbers first, drawings second."""
