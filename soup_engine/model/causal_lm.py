"""A transformers model with ragged attention, called the way its release wants it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from soup_engine.errors import UnsupportedModelError
from soup_engine.model import attention
from soup_engine.model.kv_cache import KVLayout, KVPool, PlaneShape
from soup_engine.model.model_input import ModelInput


class CausalLM:
    """The model behind one signature.

    The argument for the cache was renamed between releases, and not every model can compute
    logits for chosen positions only; both are read off the signature once.

    Args:
        model: in evaluation mode, on its device.

    Attributes:
        selects_logits: its head is only called with the positions whose logits are wanted.

    Raises:
        UnsupportedModelError: its attention cannot be replaced, or it keeps other state than
            keys and values.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.architecture = type(model).__name__
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.selects_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        if not self._takes_positions or self._cache_argument not in parameters:
            raise UnsupportedModelError(
                f"{self.architecture} takes no positions or no cache of its caller, so its rows "
                "cannot be batched at different positions."
            )
        self.layout = self._discover_layout()
        attention.register()
        model.set_attn_implementation(attention.IMPLEMENTATION)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: token ids that may be fed to the model."""
        embeddings: int = self.model.get_input_embeddings().num_embeddings
        return embeddings

    def forward(self, model_input: ModelInput, pool: KVPool) -> Tensor:
        """Logits at ``model_input.logit_indices``: [samples, vocab], in the model's dtype."""
        step = attention.Step(model_input, pool)
        arguments: dict[str, Any] = {self._cache_argument: attention.RaggedCache(step)}
        if self.selects_logits:
            arguments["logits_to_keep"] = model_input.logit_indices
        with attention.running(step):
            output = self.model(
                input_ids=model_input.input_ids,
                position_ids=model_input.positions,
                use_cache=True,
                **arguments,
            )
        if step.attention_calls == 0:
            raise UnsupportedModelError(
                f"{self.architecture} does not use the attention interface of transformers, so "
                "its rows cannot be batched."
            )
        logits: Tensor = output.logits[0]
        return logits if self.selects_logits else logits[model_input.logit_indices]

    def plain_forward(self, token_ids: list[int]) -> Tensor:
        """Logits of one sequence by the model's own eager attention, without cache or batch:
        [num_tokens, vocab]. The measure that ragged batches are held to."""
        self.model.set_attn_implementation("eager")
        try:
            ids = torch.tensor([token_ids], device=self.device)
            output = self.model(input_ids=ids, use_cache=False)
        finally:
            self.model.set_attn_implementation(attention.IMPLEMENTATION)
        logits: Tensor = output.logits[0]
        return logits

    def _discover_layout(self) -> KVLayout:
        """Shapes of keys and values, seen in a forward pass over one token.

        Configurations name them in too many ways to be trusted; the model itself does not lie.
        """
        recorder = _ShapeRecorder()
        ids = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        try:
            with torch.inference_mode():
                self.model(
                    input_ids=ids,
                    position_ids=ids,
                    use_cache=True,
                    **{self._cache_argument: recorder},
                )
        except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"{self.architecture} keeps other state than keys and values ({error})."
            ) from error
        if not recorder.keys:
            raise UnsupportedModelError(f"{self.architecture} keeps no keys and values.")
        return KVLayout(recorder.keys, recorder.values)


class _ShapeRecorder(attention.FlatCache):
    """An empty cache that notes the shapes it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[int, PlaneShape] = {}
        self.values: dict[int, PlaneShape] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,  # noqa: ARG002 - part of the signature that models call
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        self.keys[layer_idx] = PlaneShape(key_states.shape[1], key_states.shape[3])
        self.values[layer_idx] = PlaneShape(value_states.shape[1], value_states.shape[3])
        return key_states, value_states
