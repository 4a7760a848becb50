"""What a chat template looks at, by its source alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, meta, nodes

_WHOLE = frozenset({"tojson", "items", "values", "dictsort", "pprint", "string"})
"""Filters and methods that show all of a message, whatever its fields are called."""

_parser = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)


@dataclass(frozen=True, slots=True)
class TemplateNames:
    """Names that a template reads.

    Attributes:
        variables: given by the caller.
        fields: of anything, such as ``content`` of a message.
    """

    variables: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def names_read(source: str) -> TemplateNames | None:
    """``None`` for a template that cannot be read without knowing more of it."""
    try:
        tree = _parser.parse(source)
    except TemplateError:
        return None
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    filters = {node.name for node in tree.find_all(nodes.Filter)}
    if not _WHOLE.isdisjoint(attributes | filters):
        return None
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return TemplateNames(
        frozenset(meta.find_undeclared_variables(tree)), frozenset(attributes | constants)
    )


def unread(
    source: str | None, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of what a client sent and a template never looks at.

    Args:
        source: ``None`` for the plain format, which knows roles and contents only.
    """
    read = TemplateNames() if source is None else names_read(source)
    if read is None:
        return ()
    unused = [f"chat_template_kwargs.{name}" for name in variables if name not in read.variables]
    if "name" not in read.fields and any("name" in message for message in messages):
        unused.append("messages.name")
    return tuple(unused)
