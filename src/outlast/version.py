"""The version of the package, which goes into all that it writes. A leaf."""

__version__ = "0.1.0"
