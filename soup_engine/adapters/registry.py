"""The one owner of adapter state: names, revisions, weights, leases, aliases, the active one.

A load goes through three calls, with all reading and copying between them and no lock held::

    ticket = registry.begin_load("chat", folder)
    try:
        spec = read_adapter(folder)
        weights, loaded = registry.reserve(ticket, spec)
        if not loaded:
            …read_weights(spec), lay them out under weights.weights_id…
    except AdapterError as error:
        registry.fail_load(ticket, error.message)
        raise
    registry.finish_load(ticket)

Until ``finish_load`` the name serves what it served before, and after ``fail_load`` still.

A request holds what it was bound to by a lease, from ``bind`` to ``release``. Weights are freed
when neither a revision that may get requests, nor a lease, nor a load under way needs them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from soup_engine.adapters.aliases import AliasTable
from soup_engine.adapters.names import check_name
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.adapters.records import (
    AdapterLease,
    AdapterRecord,
    LoadTicket,
    Revision,
    check_revisions,
)
from soup_engine.adapters.weights import SharedWeights, WeightsEntry, WeightsTable
from soup_engine.errors import AdapterConflictError, AdapterNotFoundError, ModelNotFoundError
from soup_engine.messages import AdapterStatus, AdapterView, AliasView


class AdapterRegistry:
    """Adapters by name. Every method may be called from any thread and waits for nothing but
    the lock, which is held for microseconds; only ``wait_until_gone`` waits.

    Args:
        base_names: what the base model is called; no adapter or alias gets such a name.
        on_free: told once for all weights that nobody needs any more, on the thread that gave
            them up, with no lock held.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        base_names: Iterable[str],
        *,
        on_free: Callable[[SharedWeights], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_names = frozenset(base_names)
        self._on_free = on_free
        self._clock = clock
        self._lock = threading.Lock()
        self._gone = threading.Condition(self._lock)
        self._records: dict[str, AdapterRecord] = {}
        self._aliases = AliasTable()
        self._active: str | None = None
        self._weights = WeightsTable()
        self._leases: dict[AdapterLease, tuple[AdapterRecord, Revision]] = {}
        self._tickets: dict[LoadTicket, WeightsEntry | None] = {}

    def begin_load(
        self, name: str, path: Path, *, origin: str = "runtime", replace: bool = False
    ) -> LoadTicket:
        """Announce that an adapter is being loaded.

        Args:
            origin: ``start``, ``watched`` or ``runtime``.
            replace: whether an adapter of this name may be there already.

        Raises:
            AdapterInvalidError: that is no name.
            AdapterConflictError: the name is taken, or being loaded already.
        """
        check_name(name)
        with self._locked():
            self._check_free(name, of_alias=False)
            record = self._records.get(name)
            if record is not None:
                record.check_loadable(replace=replace)
            ticket = LoadTicket(name, path, origin, self._clock())
            if record is None:
                record = self._records[name] = AdapterRecord(name, path, origin)
            elif record.status is not AdapterStatus.READY:
                record.status, record.reason = AdapterStatus.LOADING, None
                record.path, record.origin = path, origin
            record.ticket = ticket
            self._tickets[ticket] = None
            return ticket

    def reserve(self, ticket: LoadTicket, spec: AdapterSpec) -> tuple[SharedWeights, bool]:
        """Get hold of the weights that the adapter needs, before they are laid out.

        Returns:
            The weights, and whether they are laid out already. While two loads of the same
            content are under way, both are told that they are not.
        """
        with self._locked():
            assert self._tickets[ticket] is None, "weights are reserved once"
            entry = self._tickets[ticket] = self._weights.refer(spec)
            return entry.weights, entry.loaded

    def finish_load(self, ticket: LoadTicket, *, warnings: tuple[str, ...] = ()) -> AdapterView:
        """The weights are laid out: from now on new requests get them.

        Raises:
            AdapterConflictError: the adapter was unloaded in the meantime; nothing is kept.
        """
        with self._locked() as freed:
            entry = self._tickets.pop(ticket)
            assert entry is not None, "weights are reserved before a load is finished"
            entry.loaded = True
            record = self._records.get(ticket.name)
            if record is None or record.ticket is not ticket:
                self._weights.drop(entry, freed)
                raise AdapterConflictError(
                    f"The adapter {ticket.name!r} was unloaded while it was being loaded."
                )
            self._retire_current(record, freed)
            took_ms = (self._clock() - ticket.started) * 1e3
            record.become_ready(ticket, entry, warnings=warnings, took_ms=took_ms)
            return self._view(record)

    def fail_load(self, ticket: LoadTicket, reason: str) -> None:
        """The adapter could not be loaded: what was there before goes on, if anything was."""
        with self._locked() as freed:
            entry = self._tickets.pop(ticket)
            if entry is not None:
                self._weights.drop(entry, freed)
            record = self._records.get(ticket.name)
            if record is None or record.ticket is not ticket:
                return
            record.ticket, record.reason = None, reason
            if record.status is AdapterStatus.LOADING:
                record.status = AdapterStatus.FAILED

    def unload(self, name: str, *, origin: str | None = None) -> AdapterView:
        """Give no new request to an adapter; it is gone when its running ones have ended.

        A load of it that is under way comes to nothing. If it was the active one, requests that
        name nothing get the base from now on. Aliases of it stay.

        Args:
            origin: unload it only if this is where it was loaded from.

        Returns:
            How it stands: with nothing ``running`` it is gone already.

        Raises:
            AdapterNotFoundError: there is no such adapter.
            AdapterConflictError: it has another origin.
        """
        with self._locked() as freed:
            record = self._known(name)
            if origin not in (None, record.origin):
                raise AdapterConflictError(f"The adapter {name!r} was loaded from elsewhere.")
            record.status, record.reason, record.ticket = AdapterStatus.UNLOADING, None, None
            if self._active == name:
                self._active = None
            view = self._view(record)
            self._retire_current(record, freed)
            self._remove_if_drained(record)
            return view

    def wait_until_gone(self, name: str, timeout_s: float) -> bool:
        """Wait until an adapter that is being unloaded is gone or comes back; False when it
        still has requests running after ``timeout_s``."""

        def gone() -> bool:
            record = self._records.get(name)
            return record is None or record.status is not AdapterStatus.UNLOADING

        with self._gone:
            return self._gone.wait_for(gone, timeout_s)

    def bind(self, adapter: str | None, model: str | None) -> AdapterLease | None:
        """What a request gets: the adapter that it names, else the one that ``model`` names,
        else the active one. Aliases count as names. An ``adapter`` that is the base's own name
        asks for the base, whatever is active.

        Returns:
            A lease to be given back by ``release``, or ``None`` for the base.

        Raises:
            AdapterNotFoundError: there is no such adapter.
            AdapterNotReadyError: it cannot answer now.
            ModelNotFoundError: ``model`` is neither the base nor an adapter nor its alias.
        """
        with self._locked():
            if adapter is not None:
                if adapter in self._base_names:
                    return None
                return self._lease(adapter, "adapter")
            if model is not None and model not in self._base_names:
                record = self._records.get(self._aliases.target(model))
                if record is None or record.status is AdapterStatus.UNLOADING:
                    raise ModelNotFoundError
                return self._lease(model, "model")
            return None if self._active is None else self._lease(self._active, "model")

    def share(self, lease: AdapterLease) -> AdapterLease:
        """One more lease, to be given back by itself, of what a lease holds."""
        with self._locked():
            return self._hold(*self._leases[lease])

    def release(self, lease: AdapterLease, *, tokens: int = 0) -> None:
        """A request has ended with ``tokens`` generated; a second release counts for nothing."""
        with self._locked() as freed:
            record, revision = self._leases.pop(lease, (None, None))
            if record is None or revision is None:
                return
            revision.leases -= 1
            record.tokens += tokens
            if revision in record.earlier and revision.leases == 0:
                record.earlier.remove(revision)
                self._weights.drop(revision.entry, freed)
                self._remove_if_drained(record)

    @property
    def active(self) -> str | None:
        """The adapter of requests that name nothing; ``None`` is the base."""
        return self._active

    def activate(self, name: str | None) -> AdapterView | None:
        """Let requests that name nothing get an adapter from now on, or with ``None`` the base.

        An alias stands for the adapter that it leads to at this moment.

        Raises:
            AdapterNotFoundError, AdapterNotReadyError: it is as before.
        """
        started = self._clock()
        with self._locked():
            if name is None:
                self._active = None
                return None
            record = self._ready(name, "name")
            self._active = record.name
            record.last_swap_ms = (self._clock() - started) * 1e3
            return self._view(record)

    def set_alias(self, alias: str, target: str) -> AliasView:
        """Make or move an alias.

        Raises:
            AdapterInvalidError: that is no name.
            AdapterConflictError: the name is taken.
            AdapterNotFoundError, AdapterNotReadyError: the target cannot answer.
        """
        check_name(alias)
        with self._locked():
            self._check_free(alias, of_alias=True)
            return self._aliases.set(alias, self._ready(target, "target").name)

    def restore_alias(self, view: AliasView) -> None:
        """Make an alias as it was; its target may come later. Raises about its name only."""
        check_name(view.alias)
        with self._locked():
            self._check_free(view.alias, of_alias=True)
            self._aliases.set(view.alias, view.target, view.history)

    def rollback(self, alias: str) -> AliasView:
        """Move an alias back to its previous target.

        Raises:
            AdapterNotFoundError: there is no such alias, or its previous target is gone.
            AdapterNotReadyError: the previous target cannot answer.
            AdapterConflictError: it has no previous target.
        """
        with self._locked():
            self._ready(self._aliases.previous(alias), "alias")
            return self._aliases.roll_back(alias)

    def remove_alias(self, alias: str) -> AliasView:
        """Forget an alias; ``AdapterNotFoundError`` when there is none."""
        with self._locked():
            return self._aliases.remove(alias)

    def view(self, name: str) -> AdapterView:
        """One adapter, by its name or an alias; ``AdapterNotFoundError`` when there is none."""
        with self._locked():
            return self._view(self._behind(name, "name"))

    def views(self) -> tuple[AdapterView, ...]:
        """All adapters, in the order they were first loaded. Each is looked at by itself, so
        that a thousand of them keep nobody waiting."""
        with self._locked():
            records = tuple(self._records.values())
        views = []
        for record in records:
            with self._locked():
                if self._records.get(record.name) is record:
                    views.append(self._view(record))
        return tuple(views)

    def aliases(self) -> tuple[AliasView, ...]:
        with self._locked():
            return tuple(self._aliases)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        with self._locked():
            self._check_counts()
            self._aliases.check_integrity()
            aliases = {alias.alias for alias in self._aliases}
            assert aliases.isdisjoint(self._records), "a name is an adapter's and an alias"
            names = aliases | self._records.keys()
            assert names.isdisjoint(self._base_names), "an adapter has the base's name"
            active = None if self._active is None else self._records[self._active]
            assert active is None or active.status is AdapterStatus.READY, "the active is not ready"

    # What follows is called with the lock held.

    @contextmanager
    def _locked(self) -> Iterator[list[SharedWeights]]:
        """The lock; weights put into what it yields are reported when it was given back."""
        freed: list[SharedWeights] = []
        try:
            with self._lock:
                yield freed
        finally:
            for weights in freed:
                self._on_free(weights)

    def _check_free(self, name: str, *, of_alias: bool) -> None:
        if name in self._base_names:
            raise AdapterConflictError(f"{name!r} is the name of the base model.")
        if of_alias and name in self._records:
            raise AdapterConflictError(f"{name!r} is the name of an adapter.")
        if not of_alias and name in self._aliases:
            raise AdapterConflictError(f"{name!r} is an alias; remove it first.")

    def _known(self, name: str, param: str = "name") -> AdapterRecord:
        record = self._records.get(name)
        if record is None:
            raise AdapterNotFoundError(f"There is no adapter {name[:80]!r}.", param=param)
        return record

    def _behind(self, name: str, param: str) -> AdapterRecord:
        """The record behind a name or an alias; errors name what was asked for."""
        target = self._aliases.target(name)
        return self._known(target if target in self._records else name, param)

    def _ready(self, name: str, param: str) -> AdapterRecord:
        """The record behind a name or an alias, when it can take requests."""
        record = self._behind(name, param)
        record.ready_revision(name, param)
        return record

    def _lease(self, name: str, param: str) -> AdapterLease:
        record = self._behind(name, param)
        return self._hold(record, record.ready_revision(name, param))

    def _hold(self, record: AdapterRecord, revision: Revision) -> AdapterLease:
        revision.leases += 1
        record.requests += 1
        lease = AdapterLease(record.name, revision.number, revision.entry.weights)
        self._leases[lease] = record, revision
        return lease

    def _retire_current(self, record: AdapterRecord, freed: list[SharedWeights]) -> None:
        revision, record.current = record.current, None
        if revision is None:
            return
        if revision.leases:
            record.earlier.add(revision)
        else:
            self._weights.drop(revision.entry, freed)

    def _remove_if_drained(self, record: AdapterRecord) -> None:
        if record.status is AdapterStatus.UNLOADING and not record.earlier:
            del self._records[record.name]
            self._gone.notify_all()

    def _check_counts(self) -> None:
        for name, record in self._records.items():
            assert record.name == name, f"{name} is filed under another name"
            assert record.ticket in (None, *self._tickets), f"{name} waits in vain"
        leased = (revision for _, revision in self._leases.values())
        revisions = check_revisions(self._records.values(), leased)
        reserved = [entry for entry in self._tickets.values() if entry is not None]
        self._weights.check_integrity([*reserved, *(r.entry for r in revisions)])

    def _view(self, record: AdapterRecord) -> AdapterView:
        return record.view(
            active=record.name == self._active, aliases=self._aliases.of(record.name)
        )
