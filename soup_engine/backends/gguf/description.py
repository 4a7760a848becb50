"""What a GGUF file says of the model in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gguf import LlamaFileType

from soup_engine.backends.gguf.tokenizer import end_token_ids, read_tokenizer
from soup_engine.config import ModelConfig
from soup_engine.errors import ConfigError, ModelLoadError, ModelPathError, UnsupportedModelError
from soup_engine.gguf_file import SUFFIX, GgufError, GgufFile, is_gguf, read_gguf
from soup_engine.model.location import Location
from soup_engine.model.model_files import ModelDescription
from soup_engine.user_paths import is_file, is_folder

EMBEDDING = "token_embd.weight"
NO_MODELS = ("clip", "mmproj")


@dataclass(frozen=True, kw_only=True)
class GgufDescription(ModelDescription):
    """Attributes:
    path: of the file, or of the first one of several.
    file: its head, with the tensors of all of them.
    """

    path: Path
    file: GgufFile

    @property
    def kv_values_per_token(self) -> int:
        """Numbers in the keys and values of one token, over all layers. More than llama.cpp takes
        where layers see a window only."""
        file = self.file
        layers = int(file.of_architecture("block_count") or 0)
        heads = file.of_architecture("attention.head_count") or 1
        kv_heads = file.of_architecture("attention.head_count_kv") or heads
        per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
        width = int(file.of_architecture("embedding_length") or 0)
        usual = width // max(1, max(heads) if isinstance(heads, list) else heads)
        keys, values = (
            int(file.of_architecture(f"attention.{part}_length") or usual)
            for part in ("key", "value")
        )
        return sum(per_layer) * (keys + values)

    @property
    def weights_type(self) -> str:
        """``q4_k_m``, ``f16`` and so on."""
        try:
            name = str(LlamaFileType(self.file.metadata.get("general.file_type")).name)
        except ValueError:
            return "gguf"
        return name.removeprefix("MOSTLY_").removeprefix("ALL_").lower()


def describe_gguf(
    config: ModelConfig, progress: Callable[[str, float | None], None]
) -> GgufDescription:
    """Read what a GGUF file says of itself.

    Raises:
        ModelPathError: no such file is there.
        ConfigError: a base or a type of the weights is asked for.
        ModelLoadError: it is damaged.
        UnsupportedModelError: it is no model, or has a tokenizer that is not read here.
    """
    path = Path(config.path)
    _check_settings(config, path)
    progress(f"reading {path.name}", None)
    try:
        file = read_gguf(path)
        tensors = dict(file.tensors)
        for other in _other_parts(path, int(file.metadata.get("split.count") or 1)):
            tensors |= read_gguf(other).tensors
    except (GgufError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelLoadError(f"{path} cannot be read: {reason}.") from error
    if file.is_adapter:
        raise UnsupportedModelError(
            f"{path} is a LoRA adapter: serve its base with --model BASE.gguf --adapters"
            f" NAME={path}."
        )
    if file.architecture in NO_MODELS or EMBEDDING not in tensors:
        raise UnsupportedModelError(f"{path} is a GGUF file, but holds no language model.")
    return GgufDescription(
        location=Location(base=str(path), name=str(path)),
        architecture=file.architecture,
        tokenizer=read_tokenizer(file),
        eos_token_ids=end_token_ids(file),
        num_parameters=sum(math.prod(shape) for shape in tensors.values()),
        vocab_size=tensors[EMBEDDING][1],
        context_limit=int(file.of_architecture("context_length") or 4096),
        quantized=True,
        base_modules={},
        path=path,
        file=GgufFile(file.metadata, tensors),
    )


def _check_settings(config: ModelConfig, path: Path) -> None:
    if is_folder(path):
        raise ModelPathError(
            f"--backend gguf serves a {SUFFIX} file, and {path} is a folder: leave --backend out,"
            f" or make such a file with soup export --format gguf --model {path}."
        )
    if not is_gguf(path):
        wrong = f"{path} is called otherwise" if is_file(path) else f"there is no file {path}"
        raise ModelPathError(f"--backend gguf serves a {SUFFIX} file, and {wrong}.")
    if config.base is not None:
        raise ConfigError(
            "--base goes with a LoRA adapter in a folder; beside a GGUF file adapters are given by"
            " --adapters NAME=FILE.gguf.",
            param="base",
        )
    if config.dtype is not None:
        raise ConfigError(
            "The weights of a GGUF file are served as they are stored: leave --dtype out, or make"
            " another file with soup export --format gguf --quant.",
            param="dtype",
        )


def _other_parts(path: Path, count: int) -> list[Path]:
    """The files beside ``…-00001-of-00003.gguf``."""
    ending = f"-00001-of-{count:05d}{SUFFIX}"
    if count < 2 or not path.name.endswith(ending):
        return []
    stem = path.name.removesuffix(ending)
    return [path.with_name(f"{stem}-{n:05d}-of-{count:05d}{SUFFIX}") for n in range(2, count + 1)]
