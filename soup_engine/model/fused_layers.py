"""Decoder layers of the Llama kind in a dozen tensor operations instead of fifty.

At small batches a step on a CPU spends as long in Python and in tiny operations as in its
matrices. The layers of Llama, Mistral, Qwen2 and Qwen3 differ in details only, so one module
computes them all from their own weights: query, key and value as one product, rotary embedding
of queries and keys together, gate and up as one product, residuals added where the product is
made. Layers of other kinds stay as they are, and the probe at load holds these to the model's
own plain forward pass like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from soup_engine.lora.rows import AdapterRows
from soup_engine.lora.sites import ModuleSite
from soup_engine.model.attention import RaggedCache, RaggedMask, attend_rows
from soup_engine.model.linear import FusedLinear

FUSABLE_LAYERS = frozenset(
    {
        ("transformers.models.llama.modeling_llama", "LlamaDecoderLayer"),
        ("transformers.models.mistral.modeling_mistral", "MistralDecoderLayer"),
        ("transformers.models.qwen2.modeling_qwen2", "Qwen2DecoderLayer"),
        ("transformers.models.qwen3.modeling_qwen3", "Qwen3DecoderLayer"),
    }
)

MAX_DOUBLED_NORM = 32
"""Tokens up to which computing a norm twice is faster than in ten operations."""

_SILU = type(ACT2FN["silu"])


class FusedDecoderLayer(nn.Module):
    """A decoder layer, called as the model calls the one it replaces.

    Attributes of the original that the model reads from outside (``attention_type``) are kept.

    Attributes:
        norm_sites: what adapters change in the norms, by the ``id`` of the norm.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self.attention_type = getattr(layer, "attention_type", "full_attention")
        self.head_dim: int = attention.head_dim
        self.query_heads = attention.q_proj.out_features // self.head_dim
        self.key_heads = attention.k_proj.out_features // self.head_dim
        self.scaling: float = attention.scaling
        self.qkv = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        self.output = FusedLinear([attention.o_proj])
        self.gate_up = FusedLinear([mlp.gate_proj, mlp.up_proj])
        self.down = FusedLinear([mlp.down_proj])
        self.intermediate_size: int = mlp.gate_proj.out_features
        self.activation = functional.silu if isinstance(mlp.act_fn, _SILU) else mlp.act_fn
        self.input_norm = layer.input_layernorm
        self.mlp_norm = layer.post_attention_layernorm
        for norm in (self.input_norm, self.mlp_norm):
            norm.doubled_weight = norm.weight.detach().repeat(2)
        self.head_norm, self.head_norm_eps = self._head_norm(attention)
        self.norm_sites: dict[int, ModuleSite] = {}

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: RaggedMask,
        position_embeddings: tuple[Tensor, Tensor],
        cache: RaggedCache | None = None,
        past_key_values: RaggedCache | None = None,
        **_: Any,
    ) -> Tensor:
        """[1, num_tokens, hidden] → [1, num_tokens, hidden]."""
        step = cast(RaggedCache, cache if cache is not None else past_key_values).step
        states = hidden_states[0]  # [num_tokens, hidden]
        adapters = step.input.adapters
        rows = None if adapters is None else adapters.tokens
        cos, sin = step.once(position_embeddings, signed_rotation)
        qkv = self.qkv(self._norm(states, self.input_norm, rows), rows=rows)
        qkv = qkv.view(len(states), -1, self.head_dim)
        split = self.query_heads + self.key_heads
        rotated = qkv[:, :split]  # [num_tokens, query_heads + key_heads, head_dim]
        if self.head_norm is not None:
            normed = functional.rms_norm(rotated, (self.head_dim,), eps=self.head_norm_eps)
            rotated = normed * self.head_norm
        # x·cos + rotate_half(x)·sin, the minus of rotate_half being in the sine already.
        turned = torch.roll(rotated, self.head_dim // 2, -1)
        rotated = torch.addcmul(rotated * cos, turned, sin)
        step.write(self.layer_idx, rotated[:, self.query_heads :], qkv[:, split:])
        query = rotated[:, : self.query_heads]
        context = attend_rows(query, attention_mask, self.scaling)
        states = self.output(context.flatten(1), states, rows)
        # [num_tokens, 2 * intermediate]
        gate_up = self.gate_up(self._norm(states, self.mlp_norm, rows), rows=rows)
        gate = self.activation(gate_up[:, : self.intermediate_size])
        product = gate.mul_(gate_up[:, self.intermediate_size :])
        output: Tensor = self.down(product, states, rows)
        return output.unsqueeze(0)

    def linear_parts(self) -> Iterator[tuple[str, FusedLinear, int]]:
        """Where the linear layers of the original are: name in it, product, part of that."""
        for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
            yield f"self_attn.{name}", self.qkv, number
        yield "self_attn.o_proj", self.output, 0
        for number, name in enumerate(("gate_proj", "up_proj")):
            yield f"mlp.{name}", self.gate_up, number
        yield "mlp.down_proj", self.down, 0

    def norms(self) -> Iterator[tuple[str, nn.Module]]:
        """The norms over the hidden size, by their names in the original."""
        yield "input_layernorm", self.input_norm
        yield "post_attention_layernorm", self.mlp_norm

    def _norm(self, states: Tensor, norm: nn.Module, rows: AdapterRows | None) -> Tensor:
        """[num_tokens, hidden] → [num_tokens, hidden]."""
        normed = _rms_norm(states, norm)
        site = self.norm_sites.get(id(norm)) if rows is not None else None
        if site is not None and rows is not None and rows.bits & site.bits:
            site.apply(rows, states, normed)
        return normed

    def _head_norm(self, attention: Any) -> tuple[Tensor | None, float]:
        """Weights of Qwen3's norms of query and key heads: [query_heads + key_heads, head_dim]."""
        if not hasattr(attention, "q_norm"):
            return None, 0.0
        query = attention.q_norm.weight.detach().expand(self.query_heads, -1)
        key = attention.k_norm.weight.detach().expand(self.key_heads, -1)
        return torch.cat([query, key]), attention.q_norm.variance_epsilon


def signed_rotation(position_embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the sign that ``rotate_half`` gives their partner.

    Args:
        position_embeddings: cosines and sines, both [1, num_tokens, head_dim].

    Returns:
        Both [num_tokens, 1, head_dim].
    """
    cos, sin = position_embeddings
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return cos[0].unsqueeze(1), signed.unsqueeze(1)


def fuse_layers(model: nn.Module) -> int:
    """Replace the layers that can be; returns how many."""
    fused = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _fusable(child):
                setattr(module, name, FusedDecoderLayer(child))
                fused += 1
    return fused


def _fusable(layer: Any) -> bool:
    if (type(layer).__module__, type(layer).__name__) not in FUSABLE_LAYERS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    # Quantised layers and the like are subclasses or others, and stay as they are.
    return all(type(linear) is nn.Linear for linear in linears)


def _rms_norm(states: Tensor, norm: Any) -> Tensor:
    """RMS norm, for a few tokens by way of a layer norm over [x, -x]: its mean is zero and its
    variance the mean square, and a CPU has that in one operation where RMS norm takes ten."""
    hidden = states.shape[-1]
    if states.device.type != "cpu" or len(states) > MAX_DOUBLED_NORM:
        return functional.rms_norm(states, (hidden,), norm.weight, norm.variance_epsilon)
    doubled = torch.cat([states, -states], dim=-1)  # [num_tokens, 2 * hidden]
    # The weight goes in with it, so that the result is rounded once.
    normed = functional.layer_norm(
        doubled, (2 * hidden,), norm.doubled_weight, eps=norm.variance_epsilon
    )
    return normed[:, :hidden]
