"""What a conversion says while it runs, and how it is told to stop."""

from __future__ import annotations

from typing import Protocol


class Cancelled(Exception):  # noqa: N818 - no error: somebody asked for it
    """The conversion was told to stop. Nothing of it is left on the disk."""


class Report(Protocol):
    """Who listens to a conversion.

    Calls come from the thread that converts, a few hundred times a second at most.
    """

    def stage(self, name: str, /) -> None:
        """A new part of the work begins, such as ``writing tensors``."""

    def total(self, tensors: int, num_bytes: int, /) -> None:
        """How much the present stage has to write; counts begin at nothing again."""

    def advance(self, tensors: int, num_bytes: int, /) -> None:
        """So many more tensors and bytes are written."""

    def note(self, sentence: str, /) -> None:
        """Something that the result's owner should know, as one sentence."""

    def check_cancelled(self) -> None:
        """Called at least once for each chunk of some megabytes.

        Raises:
            Cancelled: the conversion has to stop now.
        """


class Silent:
    """A report that nobody reads."""

    def stage(self, name: str, /) -> None: ...

    def total(self, tensors: int, num_bytes: int, /) -> None: ...

    def advance(self, tensors: int, num_bytes: int, /) -> None: ...

    def note(self, sentence: str, /) -> None: ...

    def check_cancelled(self) -> None: ...
