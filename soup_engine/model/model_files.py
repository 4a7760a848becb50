"""What the files of a model say without its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import logging as huggingface_logging
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from soup_engine.adapters.base_check import BaseModule
from soup_engine.config import ModelConfig
from soup_engine.errors import ModelLoadError, ModelPathError, UnsupportedModelError, reason_of
from soup_engine.model.adapter_sites import describe_modules
from soup_engine.model.location import Location, Progress, find_model
from soup_engine.user_paths import is_file


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model that another engine is to load.

    Attributes:
        eos_token_ids: tokens that end an answer.
        context_limit: most tokens a sequence may have by the model's own account.
        quantized: its weights are stored so.
        base_modules: the model's modules by name.
    """

    location: Location
    architecture: str
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: frozenset[int]
    num_parameters: int
    vocab_size: int
    context_limit: int
    quantized: bool
    base_modules: Mapping[str, BaseModule]


def describe_model(config: ModelConfig, progress: Progress) -> ModelDescription:
    """Find a model and read what it says of itself.

    Raises:
        ModelPathError: nothing is there, or it is neither a model nor an adapter.
        UnsupportedModelError: it is no causal language model that transformers knows.
        ModelLoadError: its tokenizer cannot be read.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    huggingface_logging.set_verbosity_error()
    location = find_model(config, progress)
    base, trusted = location.base, config.trust_remote_code
    progress(f"reading the configuration of {base}", None)
    model_config = read_config(base, trusted)
    refuse_encoder_decoder(model_config)
    tokenizer = load_tokenizer([base], trusted)
    text = model_config.get_text_config()
    try:
        model = model_without_weights(model_config, torch.float32, trusted)
    except (RuntimeError, ValueError, ImportError) as error:
        raise UnsupportedModelError(
            f"{base} is no causal language model that this release of transformers can lay out."
        ) from error
    return ModelDescription(
        location=location,
        architecture=type(model).__name__,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(_generation_config(base), tokenizer, model_config),
        num_parameters=model.num_parameters(),
        vocab_size=model.get_input_embeddings().num_embeddings,
        context_limit=getattr(text, "max_position_embeddings", None) or 1 << 20,
        quantized=is_quantized(model_config),
        base_modules=describe_modules(model),
    )


def read_config(base: str, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration of the model at ``base`` (folder or hub id).

    Raises:
        ModelPathError: it cannot be read.
        UnsupportedModelError: it needs code that may not run, or is not known.
    """
    try:
        return AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
    except OSError as error:
        raise ModelPathError(f"The configuration of {base} cannot be read.") from error
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"{base} brings its own code, which only runs with --trust-remote-code."
            ) from error
        raise UnsupportedModelError(
            f"This release of transformers does not know the architecture of {base}."
        ) from error


def model_without_weights(
    config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    """The modules of a model, with parameters that have shapes only."""
    with torch.device("meta"):
        # A copy: the way of attention that is set on a model is kept in its configuration.
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=dtype, trust_remote_code=trust_remote_code
        )
    return model.eval()


def refuse_encoder_decoder(config: PreTrainedConfig) -> None:
    """Raises UnsupportedModelError: the model is no causal language model."""
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{config.model_type} is an encoder-decoder; this engine serves causal language models."
        )


def load_tokenizer(paths: list[str], trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The first tokenizer that is there: the adapter's own when it has one, else the base's.

    Raises:
        ModelLoadError: it cannot be read.
    """
    for path in paths:
        if path != paths[-1] and not is_file(Path(path) / "tokenizer_config.json"):
            continue
        try:
            return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} has no usable tokenizer: {reason_of(error)}") from error
    raise AssertionError("a model always names itself as the last place to look")


def is_quantized(config: PreTrainedConfig) -> bool:
    return getattr(config, "quantization_config", None) is not None


def eos_token_ids(*sources: Any) -> frozenset[int]:
    """End tokens by the generation config, the tokenizer and the model's configuration."""
    found: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
    return frozenset(found)


def _generation_config(base: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(base)
    except OSError:
        return None
