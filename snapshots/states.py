"""The application in each of the states that the pictures show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from soup_engine.errors import EngineStepError, ModelPathError
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge
from soup_tui.config import Settings
from soup_tui.glyphs import GLYPHS
from soup_tui.history import History
from soup_tui.service import ProgressCallback, Service
from soup_tui.terminal import Terminal
from tests.support.still_service import StillService, adapters, export_views, log_entries

NO_MODEL = ModelPathError("There is no model at /srv/models/[bold]tiny: no config.json is in it.")
ANSWER = """\
A good soup needs three things:

1. **Stock**, made the day before.
2. Time; see `simmer(hours=3)`.
3. Salt, *last*.

| what  | how much |
| ----- | -------- |
| water | 2 l      |
| salt  | 1 pinch  |
"""


@dataclass(frozen=True)
class Seeds:
    """What was computed once: an engine that has just started, and a busy one with its past."""

    fresh: EngineSnapshot
    busy: EngineSnapshot
    history: History


class StillBridge(Bridge):
    """Opens at once, and begins with a past."""

    def __init__(self, settings: Settings, service: Service | Exception, past: History) -> None:
        super().__init__(settings, self._open)
        self._still = service
        self._past = past

    def _open(self, _settings: Settings, on_progress: ProgressCallback) -> Service:
        on_progress("Loading weights", 0.43)
        if isinstance(self._still, Exception):
            raise self._still
        return self._still

    def look(self) -> None:
        if self.service is not None and not self.history.samples:
            self.history.samples.extend(self._past.samples)
        super().look()


def app_in(
    state: str, seeds: Seeds, *, theme: str = "soup-dark", glyphs: str = "braille"
) -> SoupApp:
    """``empty``, ``busy``, ``failing`` (a served engine that failed), ``sleeping``, ``waking``,
    ``refused`` (no model could be loaded) or ``idle`` (nothing was chosen)."""
    past = History() if state in ("empty", "refused", "idle") else seeds.history
    service: Service | Exception
    if state == "refused":
        service = NO_MODEL
    elif state == "failing":
        failed = dataclasses.replace(seeds.busy, state="failed", requests=(), running=0, waiting=0)
        error = EngineStepError("The engine failed: see the log.")
        service = StillService(failed, adapters(), log_entries(), refusal=error)
    elif state in ("sleeping", "waking"):
        service = StillService(
            _without_weights(seeds.busy, state), adapters(), log_entries(), export_views()
        )
    elif state == "busy":
        service = StillService(seeds.busy, adapters(), log_entries(), export_views(), answer=ANSWER)
    else:
        service = StillService(seeds.fresh)
    settings = Settings(model=None if state == "idle" else "x", theme=theme)
    bridge = StillBridge(settings, service, past)
    bridge.waking = ("loading weights of /models/SmolLM2-135M-Instruct", 0.43)
    return SoupApp(bridge, Terminal(glyphs=GLYPHS[glyphs]))


def _without_weights(snapshot: EngineSnapshot, state: str) -> EngineSnapshot:
    kv = dataclasses.replace(
        snapshot.kv, used_bytes=0, row_blocks_used=0, prefix_blocks_used=0, used_fraction=0.0
    )
    nothing = dataclasses.replace(snapshot, requests=(), running=0, waiting=0, tokens_per_s=0.0)
    return dataclasses.replace(nothing, state=state, kv=kv)


KEYS: dict[str, Sequence[str]] = {
    "serving": ("1",),
    "latency": ("2",),
    "adapters": ("3", "down", "down"),
    "export": ("4", "down"),
    "drafts": ("5",),
    "chat": ("6", "H", "o", "w", "question_mark", "enter"),
    "traffic": ("escape", "7"),
    "logs": ("8",),
}
"""What is pressed to bring up each screen with something on it."""
