"""The body of ``POST /v1/exports``."""

from __future__ import annotations

from typing import Any

from soup_engine.errors import ExportError
from soup_engine.export.verification.prompts import MAX_PROMPTS, Prompt, parse_prompt
from soup_engine.server.protocol.fields import Float, RequestBody


class ExportBody(RequestBody):
    """``verify_prompts`` has the prompts themselves: text, or ``prompt`` or ``messages``."""

    source: str
    target: str
    format: str
    quant: str | None = None
    base: str | None = None
    verify: bool = True
    verify_prompts: list[Any] | None = None
    max_kl: Float | None = None
    force: bool = False
    overwrite: bool = False
    calibration: str | None = None

    def prompts(self) -> tuple[Prompt, ...]:
        """Raises ExportError: one of them is none."""
        given = self.verify_prompts or []
        if len(given) > MAX_PROMPTS:
            raise ExportError(
                f"verify_prompts may have {MAX_PROMPTS} entries.", param="verify_prompts"
            )
        return tuple(
            parse_prompt(entry, f"verify_prompts[{number}]") for number, entry in enumerate(given)
        )
