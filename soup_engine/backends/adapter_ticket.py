"""A load of an adapter from its beginning in the registry to its end there, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soup_engine.adapters.records import LoadTicket
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.errors import AdapterError


@contextmanager
def load_ticket(
    registry: AdapterRegistry, name: str, path: Path, *, origin: str, replace: bool
) -> Iterator[LoadTicket]:
    """A ticket for a load; what the block raises is noted as its failure. A block that ends well
    is followed by ``finish_load``.

    Raises:
        AdapterError: as ``AdapterRegistry.begin_load``.
    """
    ticket = registry.begin_load(name, path, origin=origin, replace=replace)
    try:
        yield ticket
    except AdapterError as error:
        registry.fail_load(ticket, error.message)
        raise
    except BaseException as error:
        registry.fail_load(ticket, f"It could not be loaded ({type(error).__name__}).")
        raise
