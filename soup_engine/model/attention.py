"""Attention over rows at different positions, by the two public hooks of transformers.

A registered *mask function* takes the mask rule that transformers hands over (causal, sliding
window, chunked, …) and keeps it with the step, to be evaluated at each row's own positions. A
registered *attention function* then reads keys and values out of the slabs. The model's code
runs unchanged between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from soup_engine.errors import UnsupportedModelError
from soup_engine.lora.rows import StepAdapters
from soup_engine.model.kv_cache import KVPool, Plane
from soup_engine.model.model_input import AttentionGroup, ModelInput

IMPLEMENTATION = "soup_ragged"
"""Name under which both hooks are registered with transformers."""

MAX_GROUPED_QUERY = 256
"""Longer chunks are a row of their own for every head: their masks would take more than that
saves."""

MaskFunction = Callable[[Any, Any, Any, Any], Any]
_Source = TypeVar("_Source")
_Derived = TypeVar("_Derived")

_UNUSED_ARGUMENTS = frozenset(
    {
        "cache_position",
        "logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
"""Arguments that reach attention functions and change nothing here: what they say stands in the
mask rule already (the window), or concerns other implementations."""


class RaggedMask:
    """A mask rule for one step; made once a step and rule, shared by the layers that use it."""

    def __init__(self, step: Step, rule: MaskFunction) -> None:
        self.step = step
        self.causal = rule is causal_mask_function
        self._rule = rule
        self._bias: dict[tuple[int, torch.dtype, int], Tensor] = {}

    def bias(
        self, number: int, group: AttentionGroup, dtype: torch.dtype, repeats: int = 1
    ) -> Tensor:
        """0 where a token may look, -inf elsewhere: [rows, 1, repeats * queries, context]."""
        bias = self._bias.get((number, dtype, repeats))
        if bias is None:
            allowed = visible_positions(self._rule, group).repeat(1, 1, repeats, 1)
            bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
            bias.masked_fill_(~allowed, float("-inf"))
            self._bias[number, dtype, repeats] = bias
        return bias


def visible_positions(rule: MaskFunction, group: AttentionGroup) -> Tensor:
    """Evaluate a rule at each row's own positions: [rows, 1, queries, context], bool.

    Nothing behind a token's own position exists yet in its row, whatever the rule allows.
    """
    device = group.positions.device
    query = group.positions[:, None, :, None]  # [rows, 1, queries, 1]
    key = torch.arange(group.context, device=device)[None, None, None, :]
    zero = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=device)
    allowed = rule(zero, zero, query, key)
    if isinstance(allowed, Tensor):
        return allowed & (key <= query)
    return key <= query if allowed else torch.zeros_like(key <= query)


class Step:
    """What the hooks need to know while one forward pass runs."""

    def __init__(self, model_input: ModelInput, pool: KVPool) -> None:
        self.input = model_input
        self.pool = pool
        self.layer = -1
        self.attention_calls = 0
        self._derived: tuple[object, object] | None = None

    def write(self, layer: int, key_states: Tensor, value_states: Tensor) -> None:
        """Store new keys and values, both [num_tokens, heads, dim], in the rows."""
        self.layer = layer
        for write in self.input.writes:
            slab = self.pool.slab(write.slab)
            tokens = slice(write.first_token, write.last_token)
            slab.keys(layer).write(write.index, key_states[tokens])
            slab.values(layer).write(write.index, value_states[tokens])

    def once(self, source: _Source, derive: Callable[[_Source], _Derived]) -> _Derived:
        """``derive(source)``, computed once for all layers that come with the same source."""
        if self._derived is None or self._derived[0] is not source:
            self._derived = (source, derive(source))
        return cast(_Derived, self._derived[1])


class FlatCache(Cache):
    """A cache that shows no past: in a flat row, positions and masks come from elsewhere."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        return query_length, 0


class RaggedCache(FlatCache):
    """The cache object that models are given: it stores, and returns what it was handed."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,  # noqa: ARG002 - part of the signature that models call
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        # [1, heads, num_tokens, dim] as models have it
        self.step.write(layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))
        return key_states, value_states


class _Current(threading.local):
    """Of the thread that owns the model; another may be loading a second one."""

    step: Step | None = None


_current = _Current()


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Make ``step`` the one that the hooks belong to; one thread owns the model."""
    previous, _current.step = _current.step, step
    try:
        yield
    finally:
        _current.step = previous


def current_adapters() -> StepAdapters | None:
    """The adapters of the step that runs; ``None`` where none does, or all is on the base."""
    step = _current.step
    return None if step is None else step.input.adapters


def ragged_mask(*, mask_function: MaskFunction = causal_mask_function, **_: Any) -> RaggedMask:
    """The registered mask function: keep the rule for later, with the step that runs."""
    if _current.step is None:
        raise RuntimeError("a model with ragged attention was called outside a model runner")
    return RaggedMask(_current.step, mask_function)


def ragged_attention(
    module: torch.nn.Module,  # noqa: ARG001 - part of the signature that models call
    query: Tensor,
    key: Tensor,  # noqa: ARG001 - already in the rows
    value: Tensor,  # noqa: ARG001
    attention_mask: RaggedMask,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - zero outside training
    softcap: float | None = None,
    is_causal: bool | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """The registered attention function.

    Args:
        query: [1, query_heads, num_tokens, dim]; ``key`` and ``value`` as in ``Step.write``.

    Returns:
        [1, num_tokens, query_heads, dim], and ``None`` for the weights.

    Raises:
        UnsupportedModelError: the model asks for something that this function does not know.
    """
    _refuse_unknown(attention_mask, is_causal, arguments)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    flat_query = query[0].transpose(0, 1)  # [num_tokens, query_heads, dim]
    return attend_rows(flat_query, attention_mask, scale, softcap).unsqueeze(0), None


def attend_rows(
    query: Tensor, mask: RaggedMask, scale: float, softcap: float | None = None
) -> Tensor:
    """Attention of all rows of the step over what the layer written last holds.

    Args:
        query: [num_tokens, query_heads, dim].

    Returns:
        [num_tokens, query_heads, value_dim].
    """
    step = mask.step
    step.attention_calls += 1
    pieces = []
    for number, group in enumerate(step.input.groups):
        slab = step.pool.slab(group.slab)
        first = group.first_token
        padding = group.padding
        if padding is None:
            states = query[first : first + group.rows * group.queries]
        else:
            states = query[padding.sources]
        keys = _context(slab.keys(step.layer), group)
        values = _context(slab.values(step.layer), group)
        states = states.view(group.rows, group.queries, *query.shape[1:])
        output = attend(states, keys, values, group, mask, number, scale, softcap)
        pieces.append(output if padding is None else output[padding.places])
    unused = len(query) - sum(map(len, pieces))
    if unused:
        pieces.append(pieces[0].new_zeros((unused, *pieces[0].shape[1:])))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def attend(
    query: Tensor,
    keys: Plane,
    values: Plane,
    group: AttentionGroup,
    mask: RaggedMask,
    number: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of one group.

    Args:
        query: [rows, queries, query_heads, dim].
        keys, values: the group's part of a slab: [rows, context, heads, dim].

    Returns:
        [rows * queries, query_heads, dim].
    """
    rows, queries, query_heads, dim = query.shape
    heads = keys.data.shape[2]
    shared = query_heads // heads
    key = keys.data.transpose(1, 2)  # [rows, heads, context, dim]
    value = values.data.transpose(1, 2)
    # [rows, heads, shared, queries, dim]
    grouped = query.view(rows, queries, heads, shared, dim).permute(0, 2, 3, 1, 4)
    if softcap is not None or keys.scale is not None or value.dtype != query.dtype:
        bias = mask.bias(number, group, torch.float32).unsqueeze(1)
        output = _attend_by_matmul(
            grouped, key, value, keys.scale, values.scale, bias, scale, softcap
        )
    elif queries > MAX_GROUPED_QUERY or (mask.causal and group.from_start):
        # The heads that share keys become the head axis, the key heads the batch axis: the
        # keys are then repeated by a stride of zero instead of a copy.
        causal = mask.causal and group.from_start
        output = functional.scaled_dot_product_attention(
            grouped[0],
            key[0].unsqueeze(1).expand(-1, shared, -1, -1),
            value[0].unsqueeze(1).expand(-1, shared, -1, -1),
            # The fused CPU kernel takes masks of two or four axes, not of three.
            attn_mask=None if causal else mask.bias(number, group, query.dtype)[0, 0],
            is_causal=causal,
            scale=scale,
        ).unsqueeze(0)
    else:
        # Heads that share keys become further queries of the same key head, so that each key
        # is laid out once for all of them.
        output = functional.scaled_dot_product_attention(
            grouped.flatten(2, 3),
            key,
            value,
            attn_mask=mask.bias(number, group, query.dtype, shared),
            scale=scale,
        ).view(rows, heads, shared, queries, -1)
    # [rows, queries, heads, shared, value_dim]
    return output.permute(0, 3, 1, 2, 4).reshape(rows * queries, query_heads, -1)


def _attend_by_matmul(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
    bias: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention in the open, for what the fused kernels lack: soft caps (Gemma 2: cap · tanh(s /
    cap) before the mask) and int8 keys and values, whose scales are applied to scores and weights
    so that the large tensors are converted but not multiplied.

    Args:
        query: [rows, heads, shared, queries, dim]; key, value: [rows, heads, context, dim];
        key_scale, value_scale: [rows, context, heads]; bias: [rows, 1, 1, queries, context].
    """
    flat = query.flatten(2, 3)  # [rows, heads, shared * queries, dim]
    scores = torch.matmul(flat, key.to(query.dtype).transpose(-1, -2)).float() * scale
    if key_scale is not None:
        scores = scores * key_scale.transpose(1, 2).unsqueeze(2)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(*query.shape[:-1], -1) + bias
    weights = torch.softmax(scores, dim=-1).flatten(
        2, 3
    )  # [rows, heads, shared * queries, context]
    if value_scale is not None:
        weights = weights * value_scale.transpose(1, 2).unsqueeze(2)
    output = torch.matmul(weights.to(query.dtype), value.to(query.dtype))
    return output.view(*query.shape[:-1], -1)


def _context(plane: Plane, group: AttentionGroup) -> Plane:
    """The group's rows, as far as its longest row goes."""
    rows = slice(group.first_row, group.first_row + group.rows)
    scale = None if plane.scale is None else plane.scale[rows, : group.context]
    return Plane(plane.data[rows, : group.context], scale)


def _refuse_unknown(mask: object, is_causal: bool | None, arguments: dict[str, Any]) -> None:
    if not isinstance(mask, RaggedMask):
        raise UnsupportedModelError(
            "This model builds its attention mask by itself, so its rows cannot be batched."
        )
    if is_causal is False:
        raise UnsupportedModelError("This model's attention is not causal.")
    for name, value in arguments.items():
        if name not in _UNUSED_ARGUMENTS and value is not None and value is not False:
            raise UnsupportedModelError(
                f"This model's attention takes {name!r}, which this engine does not know."
            )


def register() -> None:
    """Make both hooks known to transformers; may be called again."""
    AttentionInterface.register(IMPLEMENTATION, ragged_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, ragged_mask)
