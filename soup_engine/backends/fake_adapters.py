"""The adapters of the fake backend: real folders, really read and checked, but no weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from soup_engine.adapters.peft_format import read_adapter
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.adapters.weights import SharedWeights
from soup_engine.backends.adapter_ticket import load_ticket
from soup_engine.errors import EngineSleepingError
from soup_engine.messages import AdapterView


class FakeAdapters:
    """The ``AdapterControl`` of the fake backend.

    Attributes:
        resident: ids of the weights that would be in memory now.
    """

    def __init__(
        self,
        base_name: str,
        *,
        awake: Callable[[], bool] = lambda: True,
        load_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = AdapterRegistry([base_name], on_free=self._free, clock=clock)
        self.resident: set[int] = set()
        self._awake = awake
        self._load_s = load_s

    def load(
        self, name: str, path: Path, *, origin: str = "runtime", replace: bool = False
    ) -> AdapterView:
        if not self._awake():
            raise EngineSleepingError(
                "The engine is asleep and loads no adapters; POST /wake_up wakes it."
            )
        with load_ticket(self.registry, name, path, origin=origin, replace=replace) as ticket:
            weights, loaded = self.registry.reserve(ticket, read_adapter(path))
        if not loaded:
            time.sleep(self._load_s)
            self.resident.add(weights.weights_id)
        return self.registry.finish_load(ticket)

    def unload(self, name: str, *, origin: str | None = None) -> AdapterView:
        return self.registry.unload(name, origin=origin)

    def _free(self, weights: SharedWeights) -> None:
        self.resident.discard(weights.weights_id)
