"""Lets SGLang start where its kernels are not: Python reads this file at its start, when the folder
is on ``PYTHONPATH``.

SGLang's kernel package and torchvision and torchaudio of its releases are made for CUDA. Here every
name in them is a stand-in that may be imported and refuses to be called. Memory cannot be pinned
without a GPU either, so what asks for pinned memory gets plain memory. All that computes is
SGLang's own code and torch's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

PACKAGES = frozenset(("sgl_kernel", "torchvision", "torchaudio"))
MAKERS = ("tensor", "empty", "zeros", "ones", "full", "arange")


class StandIn:
    """For a function, class or constant of a package that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __call__(self, *_arguments: object, **_named: object) -> None:
        raise NotImplementedError(f"{self._name} is not here: SGLang runs without its kernels.")


class StandInModule(types.ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "sgl_kernel":
            pin_nothing()


def pin_nothing() -> None:
    import torch

    def unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            named.pop("pin_memory", None)
            return make(*arguments, **named)

        return made

    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in MAKERS:
        setattr(torch, name, unpinned(getattr(torch, name)))


sys.meta_path.append(StandInFinder())
