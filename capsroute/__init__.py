"""capsroute: capsule networks and routing by agreement for PyTorch."""

__version__ = "0.1.0"
