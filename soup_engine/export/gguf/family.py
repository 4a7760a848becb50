"""What all families of models have in common in a GGUF file, in metadata and in tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gguf
import numpy as np
from gguf import TENSOR_NAMES, GGUFWriter
from numpy.typing import NDArray

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.rope import Rope, read_rope, write_scaling
from soup_engine.export.gguf.settings import real_number, whole_number

ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")

UNUSED_TENSORS = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
"""Buffers that old checkpoints hold, which follow from the configuration."""


@dataclass(frozen=True, slots=True)
class TensorRecipe:
    """How a tensor of the model becomes one of the file.

    Attributes:
        name: in the file.
        heads: rows are ordered anew within each of so many heads; 0 leaves them.
        shift: added to every value.
    """

    name: str
    heads: int = 0
    shift: float = 0.0


class Family:
    """One family. Subclasses add what they have beside the common metadata."""

    arch: ClassVar[Any]
    architectures: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    activation: ClassVar[tuple[str, str]] = ("hidden_act", "silu")
    """The name of the setting, and the only value that llama.cpp has."""
    ties: ClassVar[bool] = False
    """Whether the head is the embedding where ``config.json`` does not say."""
    fused: ClassVar[bool] = False
    """Queries, keys and values are one tensor, gate and up projection another."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.layers = self.number("num_hidden_layers")
        self.heads = self.number("num_attention_heads")
        self.kv_heads = self.number("num_key_value_heads", self.heads)
        self.hidden = self.number("hidden_size")
        self.head_size = self.number("head_dim", self.hidden // self.heads)
        if self.head_size % 2 or self.heads % self.kv_heads:
            raise ExportSourceError(
                f"config.json describes {self.heads} attention heads of {self.head_size} values "
                f"over {self.kv_heads} key-value heads, which cannot be."
            )
        self.context = self.number("max_position_embeddings")
        self.rope = self.read_rope()
        setting, only = self.activation
        if (config.get(setting) or only) != only:
            raise ExportUnsupportedError(
                f"llama.cpp has only {only} in {self.title}, and config.json's {setting} is "
                f"{config[setting]}."
            )
        self.check_rotation()
        self._names = gguf.get_tensor_name_map(self.arch, self.layers)

    def number(self, name: str, default: int | None = None) -> int:
        return whole_number(self.config, name, default)

    def real(self, name: str) -> float:
        return real_number(self.config, name)

    @property
    def tied(self) -> bool:
        """The head is the embedding."""
        return bool(self.config.get("tie_word_embeddings", self.ties))

    def biases(self) -> tuple[str, ...]:
        """Names in the file of the layers' tensors that have a bias, without layer and suffix."""
        return ATTENTION if self.config.get("attention_bias") else ()

    def read_rope(self) -> Rope:
        return read_rope(self.config)

    def check_rotation(self) -> None:
        part = self.rope.settings.get("partial_rotary_factor", 1.0)
        if part != 1.0:
            raise ExportUnsupportedError(
                f"llama.cpp rotates whole heads in {self.title}, and config.json's "
                f"partial_rotary_factor is {part}."
            )

    def recipe(self, name: str) -> TensorRecipe | None:
        """What becomes of a tensor of the model; ``None`` when it is not needed.

        Raises:
            ExportUnsupportedError: llama.cpp has no place for it.
        """
        if name.endswith(UNUSED_TENSORS):
            return None
        found = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ExportUnsupportedError(f"llama.cpp has no place for {name} in {self.title}.")
        return TensorRecipe(found)

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Tensors that follow from the configuration, by their name in the file."""
        return {}

    def write(self, writer: GGUFWriter, vocab_size: int) -> None:
        """Write the metadata of the architecture."""
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.number("intermediate_size"))
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(self.real("rms_norm_eps"))
        writer.add_rope_freq_base(self.rope.theta)
        self.write_head_size(writer)
        self.write_own(writer, vocab_size)

    def write_head_size(self, writer: GGUFWriter) -> None:
        if self.config.get("head_dim") is not None:
            writer.add_key_length(self.head_size)
            writer.add_value_length(self.head_size)

    def write_own(self, writer: GGUFWriter, vocab_size: int) -> None:
        """Write what only this family has."""
        del vocab_size  # most take it from the list of tokens
        write_scaling(self.rope, writer, self.title)

    def notes(self) -> list[str]:
        """Where llama.cpp's answers differ from the model's, as sentences."""
        if not self.config.get("sliding_window") or not self.config.get("use_sliding_window", True):
            return []
        window = self.number("sliding_window")
        if window >= self.context:
            return []
        return [
            f"llama.cpp has no sliding window for {self.title}: answers differ from the "
            f"original's once a text is longer than {window} tokens."
        ]

    def _rope_tensor(self, kind: Any) -> str:
        return f"{TENSOR_NAMES[kind]}.weight"


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class of the model, as ``config.json`` names it."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ExportSourceError("config.json does not name the model's architecture.")
    return str(names[0])
