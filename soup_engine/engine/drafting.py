"""From settings to what drafts: which draft model there is, and a proposer around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from soup_engine.config import EngineConfig, ModelConfig, SpeculativeConfig
from soup_engine.draft.choice import choose_draft
from soup_engine.draft.ngram import NgramProposer
from soup_engine.draft.proposer import Proposer
from soup_engine.engine.capacity import Capacity
from soup_engine.errors import CannotRunError, InsufficientMemoryError
from soup_engine.model.device import available_memory, dtype_name, in_gib
from soup_engine.model.draft_model import DraftModelProposer
from soup_engine.model.loader import LoadedModel, load_model
from soup_engine.model.text_draft import TextDraftProposer
from soup_engine.sampling.sampler import Sampler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Progress = Callable[[str, float | None], None]

_OTHER_TOKENIZER = (
    "The draft model has another tokenizer than the model, so its drafts go through text: that"
    " costs more, and less of them is accepted."
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to draft: a loaded model, lookups where ``model`` is ``None``, or nothing where
    ``config`` names neither.

    Attributes:
        config: with the draft model that was found.
        common_vocab: token ids below it mean the same to draft and target; ``None`` where their
            tokenizers differ.
        notes: what people should know of it.
    """

    config: SpeculativeConfig
    model: LoadedModel | None = None
    common_vocab: int | None = None
    notes: tuple[str, ...] = ()

    def bytes_per_token(self, capacity: Capacity) -> int:
        """Of its keys and values, for each token that rows of the target can hold."""
        return self.model.model.layout.bytes_per_token(capacity.kv_dtype) if self.model else 0


def load_draft(
    config: SpeculativeConfig, target: LoadedModel, model: ModelConfig, progress: Progress
) -> Draft:
    """Find and load what the settings ask for.

    Raises:
        CannotRunError: the draft model that is named cannot be loaded. One that ``auto`` found
            and cannot be loaded is a note only.
    """
    path, chosen = choose_draft(config, model, target.num_parameters)
    notes = list(chosen)
    if path is not None:
        progress(f"loading the draft model {path}", None)
        try:
            draft = load_model(_draft_config(path, target, model), progress)
        except CannotRunError as error:
            if config.draft_model is not None:
                raise
            notes.append(f"The draft model {path} could not be loaded: {error}")
        else:
            common = common_vocabulary(draft, target)
            if common is None:
                notes.append(_OTHER_TOKENIZER)
            return Draft(replace(config, draft_model=path), draft, common, tuple(notes))
    if config.ngram is not None:
        return Draft(replace(config, draft_model=None), notes=tuple(notes))
    return Draft(replace(config, draft_model=None, auto=False), notes=tuple(notes))


def build_proposer(
    draft: Draft, target: LoadedModel, config: EngineConfig, capacity: Capacity, sampler: Sampler
) -> Proposer | None:
    """On the engine's thread.

    Raises:
        InsufficientMemoryError: there is no room for the keys and values of a draft model.
    """
    if draft.model is None:
        ngram = draft.config.ngram
        return None if ngram is None else NgramProposer(ngram)
    needed = draft.bytes_per_token(capacity) * capacity.row_tokens
    free = available_memory(draft.model.model.device)
    if needed > free:
        raise InsufficientMemoryError(
            f"The keys and values of the draft model take {in_gib(needed)} and {in_gib(free)} are "
            "free: start with the draft, so that it is planned for, or with a smaller "
            "--kv-cache-memory."
        )
    common = draft.common_vocab
    proposer = DraftModelProposer(
        draft.model,
        target_vocab=(draft.model if common is None else target).model.vocab_size,
        common_vocab=draft.model.model.vocab_size if common is None else common,
        sampler=sampler,
        num_row_tokens=capacity.row_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=min(capacity.max_model_len, draft.model.context_limit),
        block_size=config.cache.block_size,
        slab_tokens=config.cache.slab_tokens,
        kv_dtype=capacity.kv_dtype,
    )
    if common is not None:
        return proposer
    return TextDraftProposer(proposer, draft.model.tokenizer, target.tokenizer)


def common_vocabulary(draft: LoadedModel, target: LoadedModel) -> int | None:
    """Token ids below which draft and target mean the same; ``None`` where they do not.

    Embeddings are often padded, and sometimes one of two releases has a few more special tokens
    at the end: that is tolerated.
    """
    sizes = (draft.model.vocab_size, target.model.vocab_size)
    ours, theirs = _by_id(draft.tokenizer), _by_id(target.tokenizer)
    named = min(max(ours), max(theirs)) + 1
    if any(ours.get(token_id) != theirs.get(token_id) for token_id in range(named)):
        return None
    return min(*sizes, named)


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


def _draft_config(path: str, target: LoadedModel, model: ModelConfig) -> ModelConfig:
    return ModelConfig(
        path=path,
        device=str(target.model.device),
        dtype=dtype_name(target.model.dtype),
        trust_remote_code=model.trust_remote_code,
        hub=model.hub,
    )
