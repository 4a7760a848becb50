"""Second names for adapters, each with the targets it had before."""

from __future__ import annotations

from collections.abc import Iterator

from soup_engine.errors import AdapterConflictError, AdapterNotFoundError
from soup_engine.messages import AliasView

MAX_HISTORY = 16


class AliasTable:
    """Aliases by name. An alias may outlive its target; it then leads nowhere until the target
    is loaded again or the alias is moved."""

    def __init__(self) -> None:
        self._aliases: dict[str, AliasView] = {}
        self._by_target: dict[str, set[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._aliases

    def __iter__(self) -> Iterator[AliasView]:
        return iter(tuple(self._aliases.values()))

    def target(self, name: str) -> str:
        """The adapter behind an alias; any other name is its own target."""
        alias = self._aliases.get(name)
        return name if alias is None else alias.target

    def of(self, target: str) -> tuple[str, ...]:
        """The aliases of an adapter, sorted."""
        return tuple(sorted(self._by_target.get(target, ())))

    def set(self, name: str, target: str, history: tuple[str, ...] = ()) -> AliasView:
        """Make or move an alias. ``history`` is that of an alias that is made anew."""
        before = self._aliases.get(name)
        if before is None:
            view = AliasView(name, target, history[-MAX_HISTORY:])
        elif before.target == target:
            return before
        else:
            view = AliasView(name, target, (*before.history, before.target)[-MAX_HISTORY:])
        return self._put(view)

    def previous(self, name: str) -> str:
        """Where a rollback would lead.

        Raises:
            AdapterNotFoundError: there is no such alias.
            AdapterConflictError: it never had another target.
        """
        alias = self._known(name)
        if not alias.history:
            raise AdapterConflictError(f"The alias {name!r} has had no target before its present.")
        return alias.history[-1]

    def roll_back(self, name: str) -> AliasView:
        """Move an alias to its previous target, as ``previous`` has it."""
        target = self.previous(name)
        return self._put(AliasView(name, target, self._aliases[name].history[:-1]))

    def remove(self, name: str) -> AliasView:
        alias = self._known(name)
        self._forget_target(alias)
        del self._aliases[name]
        return alias

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` with a description when an invariant is broken."""
        pairs = {(alias.target, alias.alias) for alias in self._aliases.values()}
        reverse = {(target, name) for target, names in self._by_target.items() for name in names}
        assert pairs == reverse, "aliases and the aliases of targets differ"
        assert all(self._by_target.values()), "a target without aliases is remembered"

    def _known(self, name: str) -> AliasView:
        alias = self._aliases.get(name)
        if alias is None:
            raise AdapterNotFoundError(f"There is no alias {name[:80]!r}.", param="alias")
        return alias

    def _put(self, view: AliasView) -> AliasView:
        before = self._aliases.get(view.alias)
        if before is not None:
            self._forget_target(before)
        self._aliases[view.alias] = view
        self._by_target.setdefault(view.target, set()).add(view.alias)
        return view

    def _forget_target(self, alias: AliasView) -> None:
        names = self._by_target[alias.target]
        names.discard(alias.alias)
        if not names:
            del self._by_target[alias.target]
