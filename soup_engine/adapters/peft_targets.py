"""Which modules of a base model an ``adapter_config.json`` names, by PEFT's own rules
(``check_target_module_exists`` in ``peft.tuners.tuners_utils``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from soup_engine.errors import AdapterInvalidError

MAX_PATTERN_LENGTH = 4096
MAX_REPEATS = 6
REPEATED_GROUP = re.compile(r"\)[*+{]")
"""To match a repeated group can take time exponential in the length of a name, and many repeats
a high power of it, while everything else in the process waits."""

ALL_LINEAR = "all-linear"
FIRST_NUMBER = re.compile(r".*?\.[^.]*\.(?P<index>\d+)\.")
"""Where a layer's index stands in a name when no pattern says so."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Modules by a regular expression for the whole name, or by the ends of their names."""

    pattern: re.Pattern[str] | None = None
    ends: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.pattern is not None or bool(self.ends)

    def names(self, module: str) -> bool:
        if self.pattern is not None:
            return self.pattern.fullmatch(module) is not None
        return not self.ends.isdisjoint(_ends(module))


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Modules that get LoRA.

    Attributes:
        given: whether the configuration names any.
        all_linear: every linear layer but the output head, instead of ``included``.
        layers: indices of the layers that are left; ``None`` for all of them. A module that is
            named in full is not asked for its layer.
        layer_patterns: what stands before a layer's index in a name.
        saved: modules to save, which get no LoRA, with everything under them.
        tied: a vocabulary layer stands for those that share its weight.
    """

    given: bool = False
    all_linear: bool = False
    included: ModuleNames = ModuleNames()
    excluded: ModuleNames = ModuleNames()
    layers: frozenset[int] | None = None
    layer_patterns: tuple[re.Pattern[str], ...] = ()
    saved: tuple[re.Pattern[str], ...] = ()
    tied: bool = False

    def allows(self, module: str) -> bool:
        """Whether nothing takes the module out again that something else names."""
        return not self.excluded.names(module) and not any(
            pattern.match(module) for pattern in self.saved
        )

    def names(self, module: str) -> bool:
        """Whether a module is named by itself; ``all_linear`` and ``tied`` need the model."""
        if not self.allows(module) or not self.included.names(module):
            return False
        return self.layers is None or module in self.included.ends or self._in_layers(module)

    def _in_layers(self, module: str) -> bool:
        assert self.layers is not None, "asked only where layers are chosen"
        for pattern in self.layer_patterns or (FIRST_NUMBER,):
            found = pattern.match(module)
            if found is not None:
                return int(found["index"]) in self.layers
        return False


def parse_targets(fields: Mapping[str, Any], *, saved: tuple[str, ...], tied: bool) -> Targets:
    """Read the fields that choose modules.

    Raises:
        AdapterInvalidError: a value is of the wrong kind, or PEFT would refuse the combination.
    """
    target = fields.get("target_modules")
    layers = fields.get("layers_to_transform")
    layer_patterns = fields.get("layers_pattern")
    if isinstance(target, str) and not (layers is None and layer_patterns is None):
        fail("layers_to_transform and layers_pattern go with a list of target_modules only")
    if layer_patterns and layers is None:
        fail("layers_pattern goes with layers_to_transform only")
    all_linear = isinstance(target, str) and target.lower() == ALL_LINEAR
    return Targets(
        given=bool(target),
        all_linear=all_linear,
        included=ModuleNames() if all_linear else _module_names("target_modules", target),
        excluded=_module_names("exclude_modules", fields.get("exclude_modules")),
        layers=_layers(layers),
        layer_patterns=tuple(
            compile_pattern("layers_pattern", text, rf"(?:^|.*?\.){text}\.(?P<index>\d+)\.")
            for text in _texts("layers_pattern", layer_patterns)
        ),
        saved=tuple(
            compile_pattern("modules_to_save", name, rf"(^|.*\.){name}($|\..*)") for name in saved
        ),
        tied=tied,
    )


def compile_pattern(field: str, text: str, pattern: str) -> re.Pattern[str]:
    """Compile ``pattern``, which holds ``text`` of a configuration.

    Raises:
        AdapterInvalidError: ``text`` is no regular expression, or matching it may never end.
    """
    repeats = sum(text.count(sign) for sign in "*+{")
    if len(text) > MAX_PATTERN_LENGTH or repeats > MAX_REPEATS or REPEATED_GROUP.search(text):
        fail(
            f"{field} holds a pattern that may take for ever to match, {text[:80]!r}; repeated "
            f"groups and more than {MAX_REPEATS} repeats are not accepted"
        )
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterInvalidError(
            f"adapter_config.json: {field} holds {text[:80]!r}, which is no regular expression: "
            f"{error}."
        ) from error


def fail(what: str) -> NoReturn:
    raise AdapterInvalidError(f"adapter_config.json cannot be used: {what}.")


def _ends(module: str) -> Iterator[str]:
    """The name and what is left of it when parts are taken from its front."""
    while module:
        yield module
        module = module.partition(".")[2]


def _module_names(field: str, value: object) -> ModuleNames:
    if isinstance(value, str) and value:
        return ModuleNames(pattern=compile_pattern(field, value, value))
    return ModuleNames(ends=frozenset(_texts(field, value)))


def _texts(field: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        fail(f"{field} is neither a text nor a list of texts")
    return tuple(text for text in texts if text)


def _layers(value: object) -> frozenset[int] | None:
    indices = [value] if type(value) is int else value
    if indices is None or indices == []:
        return None
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        fail("layers_to_transform is neither a whole number nor a list of them")
    return frozenset(indices)
