"""Plugins of SGLang."""


def load_plugins() -> None:
    """The double has none."""
