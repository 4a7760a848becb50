"""The command ``soup`` and its terminal application."""

__version__ = "0.1.0"
