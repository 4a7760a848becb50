"""What an unfinished training needs to go on as if it had never stopped.

A folder beside the output, of safetensors files and one of JSON. What is learned from is written
once; weights and the state of the optimizer are replaced together, in one rename, so that a kill
at any moment leaves either those of the step before or those of the step after.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from soup_engine.distillation.corpus import Example, TargetView, TrainingExample
from soup_engine.distillation.recipe import Recipe
from soup_engine.errors import ConfigError, DraftError
from soup_engine.user_paths import is_file, is_there

_SETTINGS = "settings.json"
_CORPUS = "corpus.safetensors"
_TRAINING = "training.safetensors"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a training was begun with: it can only go on with the same.

    Attributes:
        target, draft_base: contents, as ``draft.registry.model_identity`` gives them.
        data: SHA-256 of the file of prompts.
        device, compute: where and in which type the passes are computed.
    """

    target: str
    draft_base: str
    data: str
    device: str
    compute: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is trained and validated on.

    Attributes:
        acceptance: of the untrained draft on the second part.
    """

    training: tuple[TrainingExample, ...]
    validation: tuple[TrainingExample, ...]
    acceptance: float


@dataclass(frozen=True, slots=True)
class TrainingState:
    """After ``step`` steps of the optimizer.

    Attributes:
        weights: by the parameters' names.
        moments: Adam's state by parameter and name, such as ``lm_head.weight`` and ``exp_avg``.
    """

    step: int
    weights: Mapping[str, Tensor]
    moments: Mapping[tuple[str, str], Tensor]


class Checkpoint:
    """The folder of one training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        return is_there(self.folder)

    def begin(self, identity: RunIdentity) -> None:
        """Make the folder, or go on with one that was interrupted before it held anything."""
        self.folder.mkdir(exist_ok=True)
        text = json.dumps(asdict(identity), indent=2) + "\n"
        (self.folder / _SETTINGS).write_text(text, encoding="utf-8")

    def check(self, identity: RunIdentity) -> None:
        """
        Raises:
            DraftError: there is none, or it is of something else.
            ConfigError: it was begun with other settings; says which.
        """
        try:
            known = json.loads((self.folder / _SETTINGS).read_text(encoding="utf-8"))
            recipe = dict(known.pop("recipe"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DraftError(
                f"There is no training to go on with in {self.folder}: leave out --resume."
            ) from error
        given = asdict(identity)
        for name, value in given.pop("recipe").items():
            if recipe.get(name) != value:
                option = name.replace("_", "-")
                raise ConfigError(
                    f"The training in {self.folder} was begun with --{option}"
                    f" {recipe.get(name)}, not {value}: it can only go on as it began.",
                    param=name,
                )
        for name, value in given.items():
            if known.get(name) != value:
                raise DraftError(
                    f"The training in {self.folder} was begun with another"
                    f" {name.replace('_', ' ')}: it can only go on as it began."
                )

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def save_corpus(self, corpus: Corpus) -> None:
        tensors: dict[str, Tensor] = {}
        for name, part in (("training", corpus.training), ("validation", corpus.validation)):
            tensors |= {f"{name}.{key}": value for key, value in _packed(part).items()}
        self._replace(_CORPUS, tensors, {"acceptance": repr(corpus.acceptance)})

    def load_corpus(self) -> Corpus | None:
        """``None`` where it ended before there was one.

        Raises:
            DraftError: the file is damaged.
        """
        found = self._load(_CORPUS)
        if found is None:
            return None
        tensors, about = found
        parts = [
            _unpacked({key: tensors[f"{name}.{key}"] for key in _PACKED})
            for name in ("training", "validation")
        ]
        return Corpus(parts[0], parts[1], float(about["acceptance"]))

    def save_state(self, state: TrainingState) -> None:
        tensors = {f"weight {name}": tensor for name, tensor in state.weights.items()}
        for (name, kind), tensor in state.moments.items():
            tensors[f"{kind} {name}"] = tensor
        self._replace(_TRAINING, tensors, {"step": str(state.step)})

    def load_state(self) -> TrainingState | None:
        """``None`` where it ended before the first one.

        Raises:
            DraftError: the file is damaged.
        """
        found = self._load(_TRAINING)
        if found is None:
            return None
        tensors, about = found
        split = {tuple(key.split(" ", 1)): tensor for key, tensor in tensors.items()}
        return TrainingState(
            step=int(about["step"]),
            weights={name: tensor for (kind, name), tensor in split.items() if kind == "weight"},
            moments={(n, kind): tensor for (kind, n), tensor in split.items() if kind != "weight"},
        )

    def _replace(self, name: str, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
        new = self.folder / f"{name}.new"
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, new, about)
        new.replace(self.folder / name)

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        path = self.folder / name
        if not is_file(path):
            return None
        try:
            with safe_open(path, framework="pt") as file:
                # Copies: what is mapped would change when the file is replaced.
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
                return tensors, file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise DraftError(f"{path} is damaged: delete {self.folder} and begin anew.") from error


_PACKED = ("tokens", "prompt_lengths", "answer_lengths", "top_tokens", "top_logprobs")


def _packed(part: Rows[TrainingExample]) -> dict[str, Tensor]:
    """Examples one behind the other, with their lengths."""
    return {
        "tokens": _integers(token for item in part for token in item.example.token_ids),
        "prompt_lengths": _integers(len(item.example.prompt) for item in part),
        "answer_lengths": _integers(len(item.example.answer) for item in part),
        "top_tokens": torch.cat([item.target.token_ids for item in part]),
        "top_logprobs": torch.cat([item.target.logprobs for item in part]),
    }


def _unpacked(tensors: Mapping[str, Tensor]) -> tuple[TrainingExample, ...]:
    prompt_lengths: list[int] = tensors["prompt_lengths"].tolist()
    answer_lengths: list[int] = tensors["answer_lengths"].tolist()
    tokens: list[int] = tensors["tokens"].tolist()
    views = zip(
        tensors["top_tokens"].split(answer_lengths),
        tensors["top_logprobs"].split(answer_lengths),
        strict=True,
    )
    found = []
    start = 0
    for prompt, answer, view in zip(prompt_lengths, answer_lengths, views, strict=True):
        middle, end = start + prompt, start + prompt + answer
        example = Example(tuple(tokens[start:middle]), tuple(tokens[middle:end]))
        found.append(TrainingExample(example, TargetView(*view)))
        start = end
    return tuple(found)


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def parameters_by_name(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Trainable parameters; what is tied counts once."""
    return {name: item for name, item in model.named_parameters() if item.requires_grad}


def adam_moments(
    optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]
) -> dict[tuple[str, str], Tensor]:
    """The optimizer's state by parameter and kind."""
    return {
        (name, kind): value
        for name, parameter in named.items()
        for kind, value in optimizer.state[parameter].items()
    }


def restore(
    state: TrainingState,
    optimizer: torch.optim.Optimizer,
    named: Mapping[str, torch.nn.Parameter],
) -> None:
    """Put a state back.

    Raises:
        DraftError: it is of another model.
    """
    if named.keys() != state.weights.keys():
        raise DraftError("The checkpoint is of a draft with other weights: begin anew.")
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(state.weights[name])
    for (name, kind), value in state.moments.items():
        own: dict[str, Any] = optimizer.state[named[name]]
        own[kind] = value.to(named[name].device)
