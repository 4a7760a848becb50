"""The style sheets of the terminal application: ``base.tcss`` and one file a screen."""

from pathlib import Path

FOLDER = Path(__file__).parent
