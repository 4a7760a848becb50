"""Whether a model's tensors are those that its configuration describes.

transformers fills what is missing with random numbers and leaves out what it does not expect;
llama.cpp believes the file. So each would make another model of a folder that contradicts itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gguf import MODEL_TENSORS, TENSOR_NAMES

from soup_engine.errors import ExportSourceError
from soup_engine.export.gguf.family import Family
from soup_engine.export.tensor_source import TensorSpec

HEAD = "output"

_LAYER = re.compile(r"blk\.\d+\.")


def check_model(family: Family, tensors: Mapping[str, TensorSpec]) -> None:
    """Compare shapes, layers, biases and the head with ``config.json``.

    Raises:
        ExportSourceError: they differ, or a tensor is missing; says which.
        ExportUnsupportedError: llama.cpp has no place for a tensor.
    """
    shapes = expected_shapes(family)
    biases = family.biases()
    found: dict[str, str] = {}
    for spec in tensors.values():
        recipe = family.recipe(spec.name)
        if recipe is None:
            continue
        found[recipe.name] = spec.name
        kind, _, suffix = _LAYER.sub("", recipe.name).rpartition(".")
        shape = shapes.get(kind, spec.shape)
        if suffix == "bias":
            shape = shape[:1]
            if kind not in biases:
                raise ExportSourceError(
                    f"The model holds {spec.name}, and by config.json it has no such bias."
                )
        if spec.shape != shape:
            raise ExportSourceError(
                f"{spec.name} has the shape {_shown(spec.shape)}, and by config.json it is "
                f"{_shown(shape)}."
            )
    for name in _needed(family, shapes):
        if name not in found:
            raise ExportSourceError(
                f"The model holds no tensor that could be {name}, which config.json asks for."
            )


def expected_shapes(family: Family) -> Mapping[str, tuple[int, ...]]:
    """Shapes of weights by their names in the file, without layer and suffix."""
    hidden, inner = family.hidden, family.number("intermediate_size")
    queries, keys = family.heads * family.head_size, family.kv_heads * family.head_size
    vocabulary = family.number("vocab_size")
    norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "output_norm")
    return {
        "token_embd": (vocabulary, hidden),
        HEAD: (vocabulary, hidden),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_qkv": (queries + 2 * keys, hidden),
        "attn_output": (hidden, queries),
        "attn_q_norm": (family.head_size,),
        "attn_k_norm": (family.head_size,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner * (2 if family.fused else 1), hidden),
        "ffn_down": (hidden, inner),
        **dict.fromkeys(norms, (hidden,)),
    }


def _needed(family: Family, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Names in the file of all that the family computes with."""
    apart = ("attn_q", "attn_k", "attn_v") if family.fused else ()
    for tensor in MODEL_TENSORS[family.arch]:
        name = TENSOR_NAMES[tensor]
        kind = name.removeprefix("blk.{bid}.")
        if kind not in shapes or kind in apart or (kind == HEAD and family.tied):
            continue
        suffixes = ["weight", "bias"] if kind in family.biases() else ["weight"]
        layers = range(family.layers) if "{bid}" in name else range(1)
        for layer in layers:
            yield from (f"{name.format(bid=layer)}.{suffix}" for suffix in suffixes)


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
