"""Settings of SGLang's server."""

from __future__ import annotations

from sglang.recorded import SERVER_FIELDS


class ServerArgs:
    def __init__(self, **settings: object) -> None:
        if unknown := settings.keys() - SERVER_FIELDS:
            raise TypeError(f"Unexpected keyword argument {unknown!r}")
        self.settings = settings
