"""Model families: what each needs in a GGUF file, in metadata and in its tensors.

llama.cpp has one architecture for Llama and Mistral and one for each of the others. Where it
computes something else than the model, the export is refused; where it does so only for long
texts, the summary says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gguf
import numpy as np
from gguf import MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES, GGUFWriter
from numpy.typing import NDArray

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.rope import (
    Rope,
    llama3_factors,
    longrope_factors,
    read_rope,
    write_scaling,
)

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

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.layers = self.number("num_hidden_layers")
        self.heads = self.number("num_attention_heads")
        self.kv_heads = self.number("num_key_value_heads", self.heads)
        self.hidden = self.number("hidden_size")
        self.head_size = self.number("head_dim", self.hidden // self.heads)
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
        value = self.config.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool):
            raise ExportSourceError(f"config.json gives no whole number {name}.")
        return value

    def real(self, name: str) -> float:
        value = self.config.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ExportSourceError(f"config.json gives no number {name}.")
        return value

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
        window = self.config.get("sliding_window")
        used = self.config.get("use_sliding_window", True)
        if not window or not used or window >= self.context:
            return []
        return [
            f"llama.cpp has no sliding window for {self.title}: answers differ from the "
            f"original's once a text is longer than {window} tokens."
        ]

    def _rope_tensor(self, kind: Any) -> str:
        return f"{TENSOR_NAMES[kind]}.weight"


class Llama(Family):
    """Llama and Mistral. llama.cpp rotates neighbouring dimensions and transformers the two
    halves of a head, so the rows of queries and keys change places."""

    arch = MODEL_ARCH.LLAMA
    architectures = ("LlamaForCausalLM", "MistralForCausalLM")
    title = "Llama and Mistral"

    def recipe(self, name: str) -> TensorRecipe | None:
        recipe = super().recipe(name)
        projection = name.rpartition(".")[0].rpartition(".")[2]
        heads = {"q_proj": self.heads, "k_proj": self.kv_heads}.get(projection, 0)
        return TensorRecipe(recipe.name, heads) if recipe and heads else recipe

    def write_own(self, writer: GGUFWriter, vocab_size: int) -> None:
        writer.add_vocab_size(vocab_size)
        writer.add_rope_dimension_count(self.head_size)
        if self.rope.kind != "llama3":
            write_scaling(self.rope, writer, self.title)

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        if self.rope.kind != "llama3":
            return {}
        factors = llama3_factors(self.rope, self.head_size)
        return {self._rope_tensor(MODEL_TENSOR.ROPE_FREQS): factors}


class Qwen2(Family):
    arch = MODEL_ARCH.QWEN2
    architectures = ("Qwen2ForCausalLM",)
    title = "Qwen2"

    def notes(self) -> list[str]:
        return super().notes() if self.config.get("use_sliding_window") else []


class Qwen3(Qwen2):
    arch = MODEL_ARCH.QWEN3
    architectures = ("Qwen3ForCausalLM",)
    title = "Qwen3"


class Gemma2(Family):
    """Its norms multiply by 1 + w, llama.cpp's by w. Every second layer has a sliding window."""

    arch = MODEL_ARCH.GEMMA2
    architectures = ("Gemma2ForCausalLM",)
    title = "Gemma 2"
    activation = ("hidden_activation", "gelu_pytorch_tanh")
    period: ClassVar[int] = 2
    """In llama.cpp, one layer in so many has no window: the last of them."""
    largest_layers: ClassVar[int] = 46
    """llama.cpp takes another scale of attention for models of that many layers."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        size = self.hidden // self.heads if self.layers == self.largest_layers else self.head_size
        scalar = config.get("query_pre_attn_scalar", size)
        if scalar != size:
            raise ExportUnsupportedError(
                f"llama.cpp scales {self.title}'s attention by 1/√{size}, and config.json's "
                f"query_pre_attn_scalar is {scalar}."
            )
        if config.get("use_bidirectional_attention"):
            raise ExportUnsupportedError(f"{self.title} with attention both ways is no chat model.")
        self.check_caps()

    def check_caps(self) -> None:
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if self.config.get(name) is None:
                raise ExportUnsupportedError(f"llama.cpp needs a {name} in {self.title}.")

    def recipe(self, name: str) -> TensorRecipe | None:
        recipe = super().recipe(name)
        if recipe and name.endswith("norm.weight"):
            return TensorRecipe(recipe.name, shift=1.0)
        return recipe

    def write_head_size(self, writer: GGUFWriter) -> None:
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)

    def write_own(self, writer: GGUFWriter, vocab_size: int) -> None:
        super().write_own(writer, vocab_size)
        self.write_caps(writer)
        writer.add_sliding_window(self.number("sliding_window"))
        period = self._period()
        if period != self.period:
            writer.add_sliding_window_pattern(period)

    def write_caps(self, writer: GGUFWriter) -> None:
        writer.add_attn_logit_softcapping(self.real("attn_logit_softcapping"))
        writer.add_final_logit_softcapping(self.real("final_logit_softcapping"))

    def notes(self) -> list[str]:
        period = self._period()
        if period == self.period:
            return []
        return [
            f"One layer in {period} has no sliding window; older releases of llama.cpp take it for "
            f"one in {self.period}, so use a recent one."
        ]

    def _period(self) -> int:
        """One layer in so many has no window, the last of them.

        Raises:
            ExportUnsupportedError: the layers follow no such order.
        """
        types = self.config.get("layer_types")
        if types is None:
            return self.number("sliding_window_pattern", self.period)
        windows = [kind == "sliding_attention" for kind in types]
        periods: list[int] = [self.period, *range(1, self.layers + 2)]
        for period in periods:
            if windows == [(layer + 1) % period != 0 for layer in range(self.layers)]:
                return period
        raise ExportUnsupportedError(
            f"llama.cpp wants {self.title}'s layers without a sliding window at equal distances, "
            f"and config.json's layer_types are {', '.join(map(str, types))}."
        )


class Gemma3(Gemma2):
    """Layers with a window have position embeddings of their own, and no cap."""

    arch = MODEL_ARCH.GEMMA3
    architectures = ("Gemma3ForCausalLM",)
    title = "Gemma 3"
    period = 6
    largest_layers = 62

    def read_rope(self) -> Rope:
        return read_rope(self.config, "full_attention")

    def check_caps(self) -> None:
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if self.config.get(name) is not None:
                raise ExportUnsupportedError(f"llama.cpp has no {name} in {self.title}.")

    def write_caps(self, writer: GGUFWriter) -> None:
        local = read_rope(self.config, "sliding_attention")
        old = self.config.get("rope_local_base_freq")
        writer.add_rope_freq_base_swa(local.theta if old is None else float(old))


class Phi3(Family):
    """Queries, keys and values are one tensor, gate and up projection another, as in llama.cpp."""

    arch = MODEL_ARCH.PHI3
    architectures = ("Phi3ForCausalLM",)
    title = "Phi-3"

    def check_rotation(self) -> None:
        """Any part of a head can be rotated."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        if self.head_size * self.heads != self.hidden:
            raise ExportUnsupportedError(
                f"llama.cpp needs heads of {self.hidden // self.heads} in this {self.title}, and "
                f"config.json's head_dim is {self.head_size}."
            )

    def write_head_size(self, writer: GGUFWriter) -> None:
        """It follows from the width and the number of heads."""

    def write_own(self, writer: GGUFWriter, vocab_size: int) -> None:
        del vocab_size  # taken from the list of tokens
        original = self.config.get("original_max_position_embeddings")
        writer.add_rope_scaling_orig_ctx_len(self.context if original is None else original)
        writer.add_rope_dimension_count(self._rotated)
        writer.add_sliding_window(self.config.get("sliding_window") or 0)
        if self.rope.kind == "longrope":
            attention, _ = longrope_factors(self.rope, self.context, self._rotated)
            writer.add_rope_scaling_attn_factors(attention)
        else:
            write_scaling(self.rope, writer, self.title)

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        if self.rope.kind != "longrope":
            return {}
        _, factors = longrope_factors(self.rope, self.context, self._rotated)
        return {
            self._rope_tensor(MODEL_TENSOR.ROPE_FACTORS_LONG): factors["long"],
            self._rope_tensor(MODEL_TENSOR.ROPE_FACTORS_SHORT): factors["short"],
        }

    @property
    def _rotated(self) -> int:
        part = self.rope.settings.get(
            "partial_rotary_factor", self.config.get("partial_rotary_factor")
        )
        return int((1.0 if part is None else part) * self.head_size)


FAMILIES: tuple[type[Family], ...] = (Llama, Qwen2, Qwen3, Gemma2, Gemma3, Phi3)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class of the model, as ``config.json`` names it."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ExportSourceError("config.json does not name the model's architecture.")
    return str(names[0])


def find_family(config: Mapping[str, Any]) -> Family | None:
    """The family of a model, or ``None`` when it is none of those known here."""
    architecture = architecture_of(config)
    for family in FAMILIES:
        if architecture in family.architectures:
            return family(config)
    return None
