"""Model families: what each needs in a GGUF file, in metadata and in its tensors.

llama.cpp has one architecture for Llama and Mistral and one for each of the others. Where it
computes something else than the model, the export is refused; where it does so only for long
texts, the summary says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gguf import MODEL_ARCH, MODEL_TENSOR, GGUFWriter
from numpy.typing import NDArray

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.family import (
    FEED_FORWARD,
    Family,
    TensorRecipe,
    architecture_of,
)
from soup_engine.export.gguf.rope import (
    Rope,
    llama3_factors,
    longrope_factors,
    read_rope,
    write_scaling,
)
from soup_engine.export.gguf.settings import real_number, shown


class Llama(Family):
    """Llama and Mistral. llama.cpp rotates neighbouring dimensions and transformers the two
    halves of a head, so the rows of queries and keys change places."""

    arch = MODEL_ARCH.LLAMA
    architectures = ("LlamaForCausalLM", "MistralForCausalLM")
    title = "Llama and Mistral"

    def biases(self) -> tuple[str, ...]:
        if architecture_of(self.config) != "LlamaForCausalLM":
            return ()
        return super().biases() + (FEED_FORWARD if self.config.get("mlp_bias") else ())

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

    def biases(self) -> tuple[str, ...]:
        return ("attn_q", "attn_k", "attn_v")

    def notes(self) -> list[str]:
        return super().notes() if self.config.get("use_sliding_window") else []


class Qwen3(Qwen2):
    arch = MODEL_ARCH.QWEN3
    architectures = ("Qwen3ForCausalLM",)
    title = "Qwen3"

    def biases(self) -> tuple[str, ...]:
        return Family.biases(self)


class Gemma2(Family):
    """Its norms multiply by 1 + w, llama.cpp's by w. Every second layer has a sliding window."""

    arch = MODEL_ARCH.GEMMA2
    architectures = ("Gemma2ForCausalLM",)
    title = "Gemma 2"
    ties = True
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
        if not isinstance(types, list):
            raise ExportSourceError(
                f"config.json must give a list as layer_types, and gives {shown(types)}."
            )
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
        writer.add_rope_freq_base_swa(real_number(self.config, "rope_local_base_freq", local.theta))


class Phi3(Family):
    arch = MODEL_ARCH.PHI3
    architectures = ("Phi3ForCausalLM",)
    title = "Phi-3"
    fused = True

    def biases(self) -> tuple[str, ...]:
        return ()

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
        original = self.number("original_max_position_embeddings", self.context)
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_dimension_count(self._rotated)
        window = self.number("sliding_window") if self.config.get("sliding_window") else 0
        writer.add_sliding_window(window)
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
        settings = {**self.config, **self.rope.settings}
        return int(real_number(settings, "partial_rotary_factor", 1.0) * self.head_size)


FAMILIES: tuple[type[Family], ...] = (Llama, Qwen2, Qwen3, Gemma2, Gemma3, Phi3)


def find_family(config: Mapping[str, Any]) -> Family | None:
    """The family of a model, or ``None`` when it is none of those known here."""
    architecture = architecture_of(config)
    for family in FAMILIES:
        if architecture in family.architectures:
            return family(config)
    return None
