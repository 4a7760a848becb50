"""The ``AdapterControl`` of an engine that reads adapters from folders by itself.

Each adapter is read and checked here first, as on our own engine, and copied: what the engine
reads, now or when it makes room and reads it again, is what was checked, whatever becomes of the
user's folder meanwhile.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from soup_engine.adapters.base_check import BaseModule, check_against_base, check_rank
from soup_engine.adapters.paths import CONFIG_FILE, WEIGHTS_FILE
from soup_engine.adapters.peft_format import AdapterSpec, read_adapter
from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.adapters.weights import SharedWeights
from soup_engine.backends.adapter_ticket import load_ticket
from soup_engine.backends.foreign.engine import AdapterCopy, ForeignEngine
from soup_engine.backends.foreign.loop import ForeignLoop
from soup_engine.errors import AdapterInvalidError
from soup_engine.messages import AdapterBinding, AdapterView


class AdapterFiles(Protocol):
    """How the adapters of an engine lie on the disk."""

    def read(self, path: Path) -> AdapterSpec:
        """Raises AdapterInvalidError: no adapter is there, or a damaged one."""
        ...

    def check(self, spec: AdapterSpec) -> tuple[str, ...]:
        """Warnings for its owner.

        Raises:
            AdapterInvalidError: it does not fit the base, or the engine cannot apply it.
        """
        ...

    def copy(self, spec: AdapterSpec, folder: Path) -> None:
        """Copy what ``spec`` was read from.

        Raises:
            AdapterInvalidError: it is another adapter by now.
        """
        ...


class ForeignAdapters:
    """Loads and unloads adapters. Safe to call from any thread but the engine's.

    Args:
        loop: the present one; it may be another after the engine died.
    """

    def __init__(
        self, base_name: str, loop: Callable[[], ForeignLoop], files: AdapterFiles
    ) -> None:
        self.registry = AdapterRegistry([base_name], on_free=self._free)
        self._loop = loop
        self._files = files
        self._folder = tempfile.TemporaryDirectory(prefix="soup-adapters-")

    def copy_of(self, binding: AdapterBinding) -> AdapterCopy:
        """Where the engine finds what a request holds."""
        assert isinstance(binding, AdapterLease), "leases come from the registry"
        return self._copy(binding.weights)

    def load(
        self, name: str, path: Path, *, origin: str = "runtime", replace: bool = False
    ) -> AdapterView:
        """Read, check and copy an adapter, and let the engine load it; new requests may use it
        when this returns.

        Raises:
            AdapterError: a subclass that says what is wrong; what served before goes on.
            EngineStoppedError: the engine does not run.
        """
        self._loop().check_accepts()
        with load_ticket(self.registry, name, path, origin=origin, replace=replace) as ticket:
            spec = self._files.read(path)
            warnings = self._files.check(spec)
            weights, loaded = self.registry.reserve(ticket, spec)
            if not loaded:
                copy = self._copy(weights)
                self._files.copy(spec, copy.folder)
                self._loop().call(lambda engine: engine.load_adapter(copy))
        return self.registry.finish_load(ticket, warnings=warnings)

    def unload(self, name: str, *, origin: str | None = None) -> AdapterView:
        """Take no new requests for it; it goes when those that run have ended.

        Raises:
            AdapterNotFoundError, AdapterConflictError: as ``AdapterRegistry.unload``.
        """
        return self.registry.unload(name, origin=origin)

    def close(self) -> None:
        """The engine has stopped for good: remove the copies."""
        self._folder.cleanup()

    def _copy(self, weights: SharedWeights) -> AdapterCopy:
        number = weights.weights_id
        return AdapterCopy(number, Path(self._folder.name, str(number)))

    def _free(self, weights: SharedWeights) -> None:
        """On whichever thread gave the weights up, the engine's own included."""
        copy = self._copy(weights)

        async def unload(engine: ForeignEngine) -> None:
            await engine.unload_adapter(copy)

        self._loop().spawn(unload)
        shutil.rmtree(copy.folder, ignore_errors=True)


class PeftAdapterFiles:
    """Folders as PEFT writes them.

    Args:
        check: raises ``AdapterInvalidError`` for what the engine cannot apply.
        served: folder or hub id of the base.
        max_rank: highest rank that a module may have.
    """

    def __init__(
        self,
        base_modules: Mapping[str, BaseModule],
        check: Callable[[AdapterSpec], None],
        *,
        served: str,
        max_rank: int,
    ) -> None:
        self._base_modules = base_modules
        self._check_engine = check
        self._served = served
        self._max_rank = max_rank

    def read(self, path: Path) -> AdapterSpec:
        return read_adapter(path)

    def check(self, spec: AdapterSpec) -> tuple[str, ...]:
        check_rank(spec, self._max_rank)
        warnings = check_against_base(spec, self._base_modules, served=self._served)
        self._check_engine(spec)
        return warnings

    def copy(self, spec: AdapterSpec, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                shutil.copyfile(spec.folder / name, folder / name)
        except OSError as error:
            raise AdapterInvalidError(
                f"The adapter could not be copied for the engine: {error.strerror}."
            ) from error
        copied = read_adapter(folder)
        if (copied.weights_hash, copied.modules) != (spec.weights_hash, spec.modules):
            raise AdapterInvalidError("The adapter was changed while it was being loaded.")
