"""What the registry knows of each adapter: its revisions, their weights, who holds them.

::

    name ──► AdapterRecord ──► Revision (current) ──┐
                        └────► Revision (earlier) ──┴──► WeightsEntry ◄── other names
                               ▲ leases: running requests      ▲ references: revisions, tickets

Records, revisions and entries stay inside the registry and are guarded by its lock. Leases,
tickets and weights leave it; they are frozen, and equal only to themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from soup_engine.adapters.weights import SharedWeights, WeightsEntry
from soup_engine.errors import AdapterConflictError, AdapterNotFoundError, AdapterNotReadyError
from soup_engine.messages import AdapterStatus, AdapterView


@dataclass(frozen=True, slots=True, eq=False)
class LoadTicket:
    """One load under way, of the adapter in the folder ``path``."""

    name: str
    path: Path
    origin: str
    started: float


@dataclass(frozen=True, slots=True, eq=False)
class AdapterLease:
    """A request's hold on the revision that it was bound to when it was accepted.

    The weights stay as long as it is held, whatever happens to the name in the meantime.

    Attributes:
        name: the adapter's own name, also where an alias was asked for.
    """

    name: str
    revision: int
    weights: SharedWeights

    @property
    def content_hash(self) -> bytes:
        return self.weights.content_hash


@dataclass(slots=True, eq=False)
class Revision:
    number: int
    entry: WeightsEntry
    leases: int = 0


@dataclass(slots=True, eq=False)
class AdapterRecord:
    name: str
    path: Path
    origin: str
    status: AdapterStatus = AdapterStatus.LOADING
    reason: str | None = None
    ticket: LoadTicket | None = None
    current: Revision | None = None
    earlier: set[Revision] = field(default_factory=set)
    """Revisions that take no new requests and still have leases."""
    revisions: int = 0
    requests: int = 0
    tokens: int = 0
    last_load_ms: float | None = None
    last_swap_ms: float | None = None
    loaded_at: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def running(self) -> int:
        leases = sum(revision.leases for revision in self.earlier)
        return leases + (0 if self.current is None else self.current.leases)

    def check_loadable(self, *, replace: bool) -> None:
        """Raises AdapterConflictError: it is being loaded, or is there and not to be replaced."""
        if self.ticket is not None:
            raise AdapterConflictError(f"The adapter {self.name!r} is being loaded already.")
        if self.status is AdapterStatus.READY and not replace:
            raise AdapterConflictError(
                f"An adapter {self.name!r} is loaded already: unload it first, or replace it "
                "(--replace, load_inplace)."
            )

    def become_ready(
        self, ticket: LoadTicket, entry: WeightsEntry, *, warnings: tuple[str, ...], took_ms: float
    ) -> None:
        """A load of it is finished: new requests get these weights."""
        self.revisions += 1
        self.current = Revision(self.revisions, entry)
        self.path, self.origin = ticket.path, ticket.origin
        self.status, self.reason, self.ticket = AdapterStatus.READY, None, None
        self.warnings = warnings
        self.last_load_ms, self.loaded_at = took_ms, time.time()

    def ready_revision(self, asked: str, param: str) -> Revision:
        """The revision that new requests get. Errors name what was ``asked`` for, which may be an
        alias: where it leads is nobody's business.

        Raises:
            AdapterNotFoundError: it is being unloaded.
            AdapterNotReadyError: it is being loaded, or could not be.
        """
        if self.status is AdapterStatus.UNLOADING:
            raise AdapterNotFoundError(f"The adapter {asked!r} is being unloaded.", param=param)
        if self.status is AdapterStatus.LOADING:
            raise AdapterNotReadyError(
                f"The adapter {asked!r} is still being loaded: try again shortly.", param=param
            )
        if self.status is AdapterStatus.FAILED:
            raise AdapterNotReadyError(f"The adapter {asked!r} could not be loaded.", param=param)
        assert self.current is not None, "a ready adapter has a revision"
        return self.current

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        ready = self.status is AdapterStatus.READY
        assert ready == (self.current is not None), f"{self.name} is {self.status} wrongly"
        if self.status is AdapterStatus.LOADING:
            assert self.ticket is not None, f"{self.name} waits for a load that is not under way"
        if self.status is AdapterStatus.UNLOADING:
            assert self.earlier, f"{self.name} is unloading and has nothing to wait for"
        for revision in self.earlier:
            assert revision.leases, f"{self.name} keeps a revision that nobody uses"

    def view(self, *, active: bool, aliases: tuple[str, ...]) -> AdapterView:
        # While it is unloaded, the one that still runs.
        shown = self.current or max(self.earlier, key=lambda each: each.number, default=None)
        spec = None if shown is None else shown.entry.weights.spec
        return AdapterView(
            name=self.name,
            path=str(self.path),
            origin=self.origin,
            status=self.status,
            reason=self.reason,
            revision=0 if shown is None else shown.number,
            content_hash=None if spec is None else spec.content_hash.hex(),
            base=None if spec is None else spec.base,
            rank=None if spec is None else spec.max_rank,
            target_modules=() if spec is None else spec.target_modules,
            size_bytes=None if spec is None else spec.size_bytes,
            active=active,
            aliases=aliases,
            reloading=self.current is not None and self.ticket is not None,
            running=self.running,
            earlier_revisions=len(self.earlier),
            loads=self.revisions,
            requests=self.requests,
            tokens=self.tokens,
            last_load_ms=self.last_load_ms,
            last_swap_ms=self.last_swap_ms,
            loaded_at=self.loaded_at,
            warnings=self.warnings,
        )


def check_revisions(records: Iterable[AdapterRecord], leased: Iterable[Revision]) -> set[Revision]:
    """All revisions of adapters; ``leased`` has those that leases hold, once for each lease.

    Raise ``AssertionError`` with a description when an invariant is broken.
    """
    revisions: set[Revision] = set()
    for record in records:
        record.check_integrity()
        revisions |= record.earlier | ({record.current} if record.current else set())
    held = Counter(leased)
    for revision in revisions:
        assert revision.leases == held[revision], "leases are miscounted"
        assert revision.entry.loaded, "a revision has weights that were never loaded"
    assert held.keys() <= revisions, "a lease holds a revision that is gone"
    return revisions
