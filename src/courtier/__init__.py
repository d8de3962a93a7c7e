"""Courtier stands between GPUs and the work that wants them."""

__version__ = "0.1.0"
