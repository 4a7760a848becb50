"""The ``AdapterControl`` of the engine: brings adapters from a folder into host memory.

Everything here runs on the thread of whoever asks for a load. The engine's thread gets to see
an adapter when a sequence that wears it is about to run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from soup_engine.adapters.base_check import BaseModule, check_against_base, check_rank
from soup_engine.adapters.peft_format import AdapterSpec, read_adapter, read_weights
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_ticket import load_ticket
from soup_engine.errors import (
    EngineSleepingError,
    ModelLoadError,
)
from soup_engine.lora.host_adapter import lay_out
from soup_engine.lora.residency import HostTier
from soup_engine.messages import AdapterView
from soup_engine.model.adapter_sites import AdapterSites


class AdapterLoader:
    """Loads and unloads adapters. Safe to call from any thread.

    Args:
        registry: its ``on_free`` is ``host.free``.
        sites: where the model's own parameters are read.
        served: folder or hub id of the base.
        max_rank: highest rank that a module may have.
    """

    def __init__(
        self,
        registry: AdapterRegistry,
        host: HostTier,
        sites: AdapterSites,
        base_modules: Mapping[str, BaseModule],
        *,
        served: str,
        max_rank: int,
    ) -> None:
        self.registry = registry
        self._host = host
        self._sites: AdapterSites | None = sites
        self._base_modules = base_modules
        self._served = served
        self._max_rank = max_rank
        self._num_loading = 0
        self._changed = threading.Condition()

    def release_base(self) -> None:
        """Let go of the model once the loads under way have ended. What is loaded stays; more is
        refused until ``take_base``."""
        with self._changed:
            self._sites = None
            self._changed.wait_for(lambda: not self._num_loading)

    def take_base(self, sites: AdapterSites, base_modules: Mapping[str, BaseModule]) -> None:
        """Go on with the model loaded anew.

        Raises:
            ModelLoadError: it is another model, which the adapters were not made for.
        """
        if base_modules != self._base_modules:
            raise ModelLoadError(
                f"The model at {self._served} is another one than before: its layers differ. "
                "Restart to serve it."
            )
        with self._changed:
            self._sites = sites

    def load(
        self, name: str, path: Path, *, origin: str = "runtime", replace: bool = False
    ) -> AdapterView:
        """Read, check and lay out an adapter; new requests may use it when this returns.

        Raises:
            AdapterError: a subclass that says what is wrong; what served before goes on.
            EngineSleepingError: the base is off the device.
        """
        with self._holding_base() as sites:
            return self._load(sites, name, path, origin=origin, replace=replace)

    @contextmanager
    def _holding_base(self) -> Iterator[AdapterSites]:
        with self._changed:
            if self._sites is None:
                raise EngineSleepingError(
                    "The engine is asleep and loads no adapters; POST /wake_up wakes it."
                )
            self._num_loading += 1
            sites = self._sites
        try:
            yield sites
        finally:
            with self._changed:
                self._num_loading -= 1
                self._changed.notify_all()

    def _load(
        self, sites: AdapterSites, name: str, path: Path, *, origin: str, replace: bool
    ) -> AdapterView:
        with load_ticket(self.registry, name, path, origin=origin, replace=replace) as ticket:
            spec = read_adapter(path)
            warnings = self._check(spec, sites)
            weights, loaded = self.registry.reserve(ticket, spec)
            if not loaded:
                with torch.inference_mode():
                    adapter = lay_out(
                        spec,
                        read_weights(spec),
                        self._base_modules,
                        sites.parameter,
                        sites.dtype,
                    )
                self._host.add(weights, adapter)
        return self.registry.finish_load(ticket, warnings=warnings)

    def unload(self, name: str, *, origin: str | None = None) -> AdapterView:
        """Take no new requests for it; it goes when those that run have ended.

        Raises:
            AdapterNotFoundError, AdapterConflictError: as ``AdapterRegistry.unload``.
        """
        return self.registry.unload(name, origin=origin)

    def _check(self, spec: AdapterSpec, sites: AdapterSites) -> tuple[str, ...]:
        check_rank(spec, self._max_rank)
        warnings = check_against_base(spec, self._base_modules, served=self._served)
        sites.check(spec)
        return warnings
