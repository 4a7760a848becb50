"""Which adapter answers a request: chosen and held when the request is accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from soup_engine.adapters.records import AdapterLease
from soup_engine.errors import ModelNotFoundError, UnsupportedParameterError
from soup_engine.messages import AdapterStatus, GenerationRequest
from soup_engine.server.state import ServerState


class Selection:
    """The base model, or a revision of an adapter.

    Attributes:
        model: what the answer says was used.
    """

    def __init__(self, state: ServerState, lease: AdapterLease | None) -> None:
        self.model = state.backend.model.name if lease is None else lease.name
        self._registry = state.adapters.registry
        self._lease = lease

    @property
    def chat_template(self) -> str | None:
        """The adapter's own, where its folder has one."""
        return None if self._lease is None else self._lease.weights.spec.chat_template

    def hand_over(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """The requests with a lease each, on the same revision; whoever gets them gives the
        leases back."""
        lease, self._lease = self._lease, None
        if lease is None:
            return list(requests)
        assert self._registry is not None, "a lease comes from a registry"
        leases = [lease, *(self._registry.share(lease) for _ in requests[1:])]
        return [
            dataclasses.replace(request, adapter=lease.name, lease=own)
            for request, own in zip(requests, leases, strict=True)
        ]

    def give_back(self) -> None:
        """End the hold if nobody took it over."""
        lease, self._lease = self._lease, None
        if lease is not None:
            assert self._registry is not None, "a lease comes from a registry"
            self._registry.release(lease)


@contextmanager
def selected(state: ServerState, adapter: str | None, model: str | None) -> Iterator[Selection]:
    """Choose by the fields ``adapter`` and ``model`` of a body, in this order, then the active
    adapter; hold what was chosen until it is handed over or the block ends.

    Raises:
        AdapterNotFoundError, ModelNotFoundError: there is none of this name.
        AdapterNotReadyError: the adapter cannot answer now.
        UnsupportedParameterError: an adapter is asked for, and the backend serves none.
    """
    registry = state.adapters.registry
    if registry is None:
        check_served(state, model)
        if adapter not in (None, state.backend.model.name):
            raise UnsupportedParameterError("This backend serves no adapters.", param="adapter")
    selection = Selection(state, None if registry is None else registry.bind(adapter, model))
    try:
        yield selection
    finally:
        selection.give_back()


def check_served(state: ServerState, name: str | None) -> None:
    """Refuse a model that is neither the base nor an adapter or alias that takes requests.
    ``None`` is whatever is served.

    Raises:
        ModelNotFoundError
    """
    if name is not None and all(name != card.name for card in served_models(state)):
        raise ModelNotFoundError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Something that clients may put into ``model``.

    Attributes:
        root: the adapter behind an alias; any other name is its own root.
        parent: the base of an adapter or alias.
        created: Unix time.
    """

    name: str
    root: str
    parent: str | None
    created: int


def served_models(state: ServerState) -> Iterator[ServedModel]:
    """The base, the adapters that take requests, and their aliases."""
    base, registry = state.backend.model, state.adapters.registry
    yield ServedModel(base.name, base.name, None, base.created)
    for view in () if registry is None else registry.views():
        if view.status is AdapterStatus.READY:
            created = int(view.loaded_at or base.created)
            for name in (view.name, *view.aliases):
                yield ServedModel(name, view.name, base.name, created)
