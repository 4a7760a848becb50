"""The configuration of a model that keeps some of the layers of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from soup_engine.errors import DraftError

PER_LAYER_LISTS = ("layer_types", "mlp_layer_types", "no_rope_layers")
"""One entry a layer, of which those of the kept layers are kept."""

LISTS_OF_OTHERS = ("architectures", "eos_token_id", "bad_words_ids", "suppress_tokens")
"""Lists that may have as many entries as there are layers by accident."""

FIRST_LAYERS = ("max_window_layers", "first_k_dense_replace")
"""So many of the first layers are of another kind than those behind."""

BY_NUMBER = {
    "decoder_sparse_step": (1, None),
    "moe_layer_freq": (1, None),
    "interleave_moe_layer_step": (1, None),
    "mlp_only_layers": ([], None),
    "num_kv_shared_layers": (0, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "attn_layer_period": (None,),
    "expert_layer_period": (None,),
}
"""What makes a layer depend on its number, and the values at which it does not: a layer that is
moved would become one of another kind."""


def kept_config(
    config: dict[str, Any], count_key: str, kept: Sequence[int], layer_types: list[str] | None
) -> dict[str, Any]:
    """``config.json`` with only the layers ``kept``, in ascending order.

    Args:
        count_key: what the number of layers is called in it.
        layer_types: as transformers derives them where the file does not have them.

    Raises:
        DraftError: a setting cannot be carried over; names it.
    """
    total = config[count_key]
    new = {**config, count_key: len(kept)}
    for name, harmless in BY_NUMBER.items():
        if name in config and config[name] not in harmless:
            raise DraftError(
                f"The kind of its layers follows from their number ({name}), so none of them can"
                " be left out."
            )
    for name in FIRST_LAYERS:
        if isinstance(config.get(name), int):
            new[name] = sum(number < config[name] for number in kept)
    lists = config if layer_types is None else {**config, "layer_types": layer_types}
    for name, value in lists.items():
        if not isinstance(value, list) or len(value) != total or name in LISTS_OF_OTHERS:
            continue
        if name not in PER_LAYER_LISTS:
            raise DraftError(
                f"Its configuration has {name} with as many entries as there are layers, and what"
                " becomes of it without some of them is not known here."
            )
        new[name] = [value[number] for number in kept]
    return new
