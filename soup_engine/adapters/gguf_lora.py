"""Reads a LoRA adapter that is one GGUF file, as ``soup export --format gguf-lora`` and llama.cpp's
converter write it.

Tensors of a module with ``in`` and ``out`` features and rank r, the fastest dimension first:
``NAME.lora_a`` is [in, r], ``NAME.lora_b`` is [r, out], beside ``NAME`` [in, out] in the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from soup_engine.adapters.paths import open_regular
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.adapters.peft_targets import Targets
from soup_engine.errors import AdapterInvalidError
from soup_engine.gguf_file import GgufError, GgufFile, read_gguf

A, B = ".lora_a", ".lora_b"
EMBEDDING = "token_embd.weight"


def read_gguf_adapter(path: Path, base: GgufFile) -> AdapterSpec:
    """Read an adapter and hold it against its base. Reads the file once, to hash it.

    Raises:
        AdapterInvalidError: it is no such adapter, is damaged, or does not fit the base.
    """
    try:
        # Looked at by a reader that maps it, so that it has to be a regular file.
        with open_regular(path) as file:
            content_hash = hashlib.file_digest(file, "sha256").digest()
        adapter = read_gguf(path)
        size_bytes = path.stat().st_size
    except GgufError as error:
        raise AdapterInvalidError(f"{path.name} cannot be read: {error}.") from error
    except OSError as error:
        raise AdapterInvalidError(f"{path.name} cannot be read: {error.strerror}.") from error
    _check_kind(adapter, base, path.name)
    ranks = _ranks(adapter.tensors, base.tensors)
    return AdapterSpec(
        folder=path,
        content_hash=content_hash,
        weights_hash=content_hash,
        size_bytes=size_bytes,
        base=_named_base(adapter),
        modules=MappingProxyType({}),
        max_rank=max(ranks.values()),
        target_modules=tuple(sorted({_short(name) for name in ranks})),
        replaced=MappingProxyType({}),
        base_copies=MappingProxyType({}),
        use_dora=False,
        use_rslora=False,
        fan_in_fan_out=False,
        targets=Targets(),
    )


def _check_kind(adapter: GgufFile, base: GgufFile, name: str) -> None:
    if not adapter.is_adapter or adapter.metadata.get("adapter.type") != "lora":
        raise AdapterInvalidError(f"{name} is no LoRA adapter, but another kind of GGUF file.")
    if "adapter.alora.invocation_tokens" in adapter.metadata:
        raise AdapterInvalidError(
            f"{name} is an activated LoRA, which takes effect behind certain tokens only; that is"
            " not built here."
        )
    if adapter.architecture != base.architecture:
        raise AdapterInvalidError(
            f"{name} is an adapter for models of the architecture {adapter.architecture!r}, and"
            f" the model served is of {base.architecture!r}."
        )


def _ranks(
    tensors: Mapping[str, tuple[int, ...]], base: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The rank of each module that is adapted.

    Raises:
        AdapterInvalidError: a tensor has no place in the base, or none is there.
    """
    for name in tensors:
        if not name.endswith((A, B)):
            raise AdapterInvalidError(f"The adapter holds {name!r}, which is no tensor of a LoRA.")
    modules = {name.removesuffix(A).removesuffix(B) for name in tensors}
    if not modules:
        raise AdapterInvalidError("The adapter holds no LoRA tensors.")
    return {module: _rank(module, tensors, base) for module in modules}


def _rank(
    module: str, tensors: Mapping[str, tuple[int, ...]], base: Mapping[str, tuple[int, ...]]
) -> int:
    a, b, own = tensors.get(module + A), tensors.get(module + B), base.get(module)
    if own is None:
        raise AdapterInvalidError(f"The adapter changes {module}, which the model does not have.")
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        raise AdapterInvalidError(f"The tensors of {module} in the adapter are not complete.")
    if module == EMBEDDING:
        # Tokens are looked up in A, whose rows they are.
        fits, rank = (a[1], b[1], a[0]) == (own[1], own[0], b[0]), a[0]
    else:
        fits, rank = (a[0], b[1], a[1]) == (own[0], own[1], b[0]), a[1]
    if not fits:
        raise AdapterInvalidError(
            f"The adapter's tensors of {module} are {list(a)} and {list(b)}, which does not fit"
            f" the model's {list(own)}."
        )
    return rank


def _named_base(adapter: GgufFile) -> str | None:
    name = adapter.metadata.get("general.base_model.0.name")
    return name if isinstance(name, str) else None


def _short(module: str) -> str:
    """``attn_q`` for ``blk.0.attn_q.weight``."""
    return module.removesuffix(".weight").rpartition(".")[2]
