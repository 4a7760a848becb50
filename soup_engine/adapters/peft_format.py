"""Reads a PEFT LoRA adapter from its folder, without torch and without trusting a byte of it.

``read_adapter`` looks at ``adapter_config.json`` and at the header of
``adapter_model.safetensors`` and accounts for every tensor. ``read_weights`` fetches the bytes
of the tensors later, off the engine thread, and notices when they are no longer the same.

Tensors of a module with ``in`` and ``out`` features and rank r: A is [r, in], B is [out, r],
the DoRA magnitude [out]. Of an embedding of n tokens in d dimensions: A is [r, n], B is [d, r],
the magnitude [d].
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NoReturn

from soup_engine.adapters.chat_template import read_chat_template
from soup_engine.adapters.paths import CONFIG_FILE, PICKLE_FILE, WEIGHTS_FILE, open_regular
from soup_engine.adapters.peft_config import MAX_CONFIG_BYTES, LoRAConfig, parse_config
from soup_engine.adapters.peft_targets import Targets
from soup_engine.adapters.safetensors_file import SafetensorsHeader, TensorInfo, read_header
from soup_engine.errors import AdapterInvalidError
from soup_engine.gguf_file import is_gguf
from soup_engine.user_paths import is_there

PREFIX = "base_model.model."
BASE_COPIES = (".base_layer", ".original_module")
SAVED_ECHO = ".modules_to_save"
"""Endings of modules that PEFT adds when it saves vocabulary layers: the base's own weights, and
those of a module to save for a second time, which it ignores when it loads them."""

VOCABULARY_LAYERS = ("embed_tokens", "lm_head", "wte")
"""Layers whose base weights PEFT saves beside the adapter, when it adapts them or when the
vocabulary was resized."""

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "lora_A.weight": "a",
        "lora_B.weight": "b",
        "lora_embedding_A": "embedding_a",
        "lora_embedding_B": "embedding_b",
        "lora_magnitude_vector": "magnitude",
        "lora_magnitude_vector.weight": "magnitude",
    }
)
"""What the name of a LoRA tensor ends in, after the module's name."""

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAModule:
    """The adapter of one module: ``scaling · B·A``, with ``scaling`` alpha/r or alpha/√r.

    Attributes:
        name: as it is called in the base model.
        a, b: of an embedding, ``lora_embedding_A`` and ``lora_embedding_B``.
        magnitude: DoRA's m, or ``None`` for plain LoRA.
    """

    name: str
    rank: int
    scaling: float
    embedding: bool
    a: TensorInfo
    b: TensorInfo
    magnitude: TensorInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """What an adapter folder holds.

    Attributes:
        content_hash: SHA-256 over the weights and what of the configuration changes the result.
            Adapters with the same hash give the same answers.
        weights_hash: SHA-256 over the bytes of the safetensors file.
        size_bytes: of the safetensors file.
        base: base model that it names, a folder or hub id.
        modules: by the module's name in the base model.
        max_rank: the largest of their ranks, 0 without any.
        target_modules: last parts of their names, such as ``q_proj``, sorted.
        targets: the modules that the configuration names; those of the base are to be these.
        replaced: parameters that the adapter replaces whole (``modules_to_save``), by their name
            in the base model, such as ``model.norm.weight``.
        base_copies: parameters of vocabulary layers that PEFT saved beside the adapter though it
            did not train them, by their name in the base model. They change nothing as long as
            they equal the base's; who loads the weights has to see to that.
        fan_in_fan_out: as configured. The kind of the base's module decides, as in PEFT.
        chat_template: the adapter's own, as Jinja source; ``None`` for the model's.
    """

    folder: Path
    content_hash: bytes
    weights_hash: bytes
    size_bytes: int
    base: str | None
    modules: Mapping[str, LoRAModule]
    max_rank: int
    target_modules: tuple[str, ...]
    replaced: Mapping[str, TensorInfo]
    base_copies: Mapping[str, TensorInfo]
    use_dora: bool
    use_rslora: bool
    fan_in_fan_out: bool
    targets: Targets
    chat_template: str | None = None


class AdapterWeights:
    """The bytes of an adapter's tensors, held in memory of their own."""

    def __init__(self, content: bytearray) -> None:
        self._view = memoryview(content)

    def tensor(self, info: TensorInfo) -> memoryview:
        """The bytes of one tensor, little-endian and row by row, of ``info.dtype`` and
        ``info.shape``; not copied."""
        return self._view[info.start : info.end]


def check_files(folder: Path) -> None:
    """Refuse what ``read_adapter`` refuses, without reading the weights.

    Raises:
        AdapterInvalidError: as ``read_adapter``.
    """
    config = _read_config(folder)
    with _open(folder, WEIGHTS_FILE) as file:
        _Contents(config).sort(read_header(file, os.fstat(file.fileno()).st_size))
    read_chat_template(folder)


def read_adapter(folder: Path) -> AdapterSpec:
    """Read and check the adapter in ``folder``. Reads the weights once, to hash them.

    Raises:
        AdapterInvalidError: files are missing or damaged, a tensor is not accounted for, or
            the configuration asks for what is not implemented.
    """
    if is_gguf(folder):
        raise AdapterInvalidError(
            f"{folder.name} is an adapter in GGUF, which goes with a base in GGUF (--backend gguf);"
            " here it is to be a folder as PEFT writes it."
        )
    config = _read_config(folder)
    with _open(folder, WEIGHTS_FILE) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        header = read_header(file, size_bytes)
        file.seek(0)
        weights_hash = _sha256(file)
    contents = _Contents(config)
    modules = contents.sort(header)
    template = read_chat_template(folder)
    return AdapterSpec(
        folder=folder,
        content_hash=_content_hash(weights_hash, modules, contents.replaced, template),
        weights_hash=weights_hash,
        size_bytes=size_bytes,
        base=config.base,
        modules=MappingProxyType(modules),
        max_rank=max((module.rank for module in modules.values()), default=0),
        target_modules=tuple(sorted({name.rpartition(".")[2] for name in modules})),
        replaced=MappingProxyType(contents.replaced),
        base_copies=MappingProxyType(contents.base_copies),
        use_dora=config.use_dora,
        use_rslora=config.use_rslora,
        fan_in_fan_out=config.fan_in_fan_out,
        targets=config.targets,
        chat_template=template,
    )


def read_weights(spec: AdapterSpec) -> AdapterWeights:
    """Read all tensors of an adapter into memory.

    Not mapped: somebody who shortens a mapped file ends the process that looks at it.

    Raises:
        AdapterInvalidError: the file is gone, or not the one that ``read_adapter`` saw.
    """
    content = bytearray(spec.size_bytes)
    with _open(spec.folder, WEIGHTS_FILE) as file:
        complete = file.readinto(content) == spec.size_bytes and not file.read(1)
    if not complete or hashlib.sha256(content).digest() != spec.weights_hash:
        raise AdapterInvalidError(f"{WEIGHTS_FILE} was changed while it was being loaded.")
    return AdapterWeights(content)


class _Contents:
    """Sorts tensors by what they are for."""

    def __init__(self, config: LoRAConfig) -> None:
        self.replaced: dict[str, TensorInfo] = {}
        self.base_copies: dict[str, TensorInfo] = {}
        self._config = config
        self._echoes: dict[str, TensorInfo] = {}
        self._parts: dict[str, dict[str, TensorInfo]] = {}  # by module, then by part

    def sort(self, header: SafetensorsHeader) -> dict[str, LoRAModule]:
        """Account for every tensor; returns the modules that get LoRA.

        Raises:
            AdapterInvalidError: one has no place, or none is there.
        """
        for tensor in header.tensors.values():
            self._add(tensor)
        modules = {name: self._lora_module(name, parts) for name, parts in self._parts.items()}
        self._check_replaced()
        if not modules and not self.replaced:
            raise AdapterInvalidError(f"{WEIGHTS_FILE} holds no LoRA tensors.")
        return modules

    def _add(self, tensor: TensorInfo) -> None:
        if not tensor.name.startswith(PREFIX):
            _unknown(tensor)
        name = tensor.name.removeprefix(PREFIX)
        for ending, part in PARTS.items():
            module = name.removesuffix(f".{ending}")
            if module != name:
                if self._parts.setdefault(module, {}).setdefault(part, tensor) is not tensor:
                    raise AdapterInvalidError(f"{module} has its {part} tensor twice.")
                return
        module, _, parameter = name.rpartition(".")
        plain, _, _ = module.rpartition(".")
        if module.endswith(BASE_COPIES):
            self.base_copies[f"{plain}.{parameter}"] = tensor
        elif module.endswith(SAVED_ECHO):
            self._echoes[f"{plain}.{parameter}"] = tensor
        elif self._is_saved(module):
            self.replaced[name] = tensor
        elif module.rpartition(".")[2] in VOCABULARY_LAYERS:
            # With tied weights that PEFT keeps tied, the twin of a module to save is saved too.
            tied = self._config.ensure_weight_tying and self._config.modules_to_save
            (self.replaced if tied else self.base_copies)[name] = tensor
        else:
            _unknown(tensor)

    def _check_replaced(self) -> None:
        for name, echo in self._echoes.items():
            if name not in self.replaced:
                _unknown(echo)
        for saved in self._config.modules_to_save:
            if not any(_is_within(name.rpartition(".")[0], saved) for name in self.replaced):
                raise AdapterInvalidError(
                    f"modules_to_save names {saved!r}, and {WEIGHTS_FILE} holds no such module."
                )

    def _is_saved(self, module: str) -> bool:
        return any(_is_within(module, saved) for saved in self._config.modules_to_save)

    def _lora_module(self, name: str, parts: Mapping[str, TensorInfo]) -> LoRAModule:
        rank = self._config.rank_of(name)
        embedding = "embedding_a" in parts or "embedding_b" in parts
        a_name, b_name = ("embedding_a", "embedding_b") if embedding else ("a", "b")
        expected = {a_name, b_name} | ({"magnitude"} if self._config.use_dora else set())
        if parts.keys() != expected:
            missing = ", ".join(sorted(expected - parts.keys())) or "nothing"
            extra = ", ".join(sorted(parts.keys() - expected)) or "nothing"
            raise AdapterInvalidError(
                f"The tensors of {name} are not complete: missing are {missing}, not expected "
                f"are {extra} (use_dora is {str(self._config.use_dora).lower()})."
            )
        a, b, magnitude = parts[a_name], parts[b_name], parts.get("magnitude")
        _check_shape(a, (rank, None), name)
        _check_shape(b, (None, rank), name)
        if magnitude is not None:
            _check_shape(magnitude, (b.shape[0],), name)
        return LoRAModule(
            name=name,
            rank=rank,
            scaling=self._config.scaling_of(name),
            embedding=embedding,
            a=a,
            b=b,
            magnitude=magnitude,
        )


def _check_shape(tensor: TensorInfo, expected: tuple[int | None, ...], module: str) -> None:
    fits = len(tensor.shape) == len(expected) and all(
        size == wanted or (wanted is None and size > 0)
        for size, wanted in zip(tensor.shape, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise AdapterInvalidError(
            f"{tensor.name} has shape {list(tensor.shape)}; by adapter_config.json and its other "
            f"half, {module} needs [{wanted}] there."
        )


def _is_within(module: str, saved: str) -> bool:
    """Whether PEFT takes a module, or one around it, for the module to save of that name: names
    are compared by their end, so ``norm`` is ``input_layernorm`` as well."""
    while module:
        if module.endswith(saved):
            return True
        module = module.rpartition(".")[0]
    return False


def _content_hash(
    weights_hash: bytes,
    modules: Mapping[str, LoRAModule],
    replaced: Mapping[str, TensorInfo],
    template: str | None,
) -> bytes:
    """What else decides the result: the scaling of each module, which parameters replace, and
    how a chat is written."""
    resolved = {
        "modules": {name: [m.scaling.hex(), m.rank] for name, m in modules.items()},
        "replaced": sorted(replaced),
    } | ({} if template is None else {"template": template})
    canonical = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(weights_hash + canonical.encode()).digest()


def _read_config(folder: Path) -> LoRAConfig:
    with _open(folder, CONFIG_FILE) as file:
        return parse_config(file.read(MAX_CONFIG_BYTES + 1))


def _open(folder: Path, name: str) -> BufferedReader:
    try:
        return open_regular(folder / name)
    except FileNotFoundError as error:
        if name == WEIGHTS_FILE and is_there(folder / PICKLE_FILE):
            raise AdapterInvalidError(
                f"The adapter has its weights in {PICKLE_FILE}, a pickle file, which can run code "
                f"when it is read: save it as {WEIGHTS_FILE} (PEFT's safe_serialization)."
            ) from error
        raise AdapterInvalidError(f"The adapter has no {name}.") from error


def _sha256(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def _unknown(tensor: TensorInfo) -> NoReturn:
    raise AdapterInvalidError(
        f"{WEIGHTS_FILE} holds {tensor.name!r}, which is no tensor of a LoRA adapter that is "
        "known here."
    )
