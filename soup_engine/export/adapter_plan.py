"""What a LoRA adapter does to each tensor of its base model.

Vocabulary weights need the most care. In a model with tied weights the output head is the
embedding, yet an adapter that changes one of them leaves the other as it was: merged, they are
two tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soup_engine.adapters.base_check import BaseModule, ModuleKind, check_targets
from soup_engine.adapters.peft_format import (
    AdapterSpec,
    AdapterWeights,
    LoRAModule,
    read_adapter,
    read_weights,
)
from soup_engine.adapters.safetensors_file import TensorInfo
from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.tensor_source import TensorSpec

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
CONV1D_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer"})
"""Models whose linear layers, but for the head, keep their weights as [in, out]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """How one tensor of the merged model comes about.

    Attributes:
        base: tensor of the base that it starts from.
        replacement: tensor of the adapter that it starts from instead.
        trained: the replacement is part of what the adapter was trained for, not a copy of the
            base's that was saved beside it.
        lora: what is added then.
        conv1d: the weight is [in, out].
    """

    base: str
    replacement: TensorInfo | None = None
    trained: bool = False
    lora: LoRAModule | None = None
    conv1d: bool = False


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """What to do to the tensors that an adapter changes, by the tensor's name in the base.

    Attributes:
        untied: the head is a tensor of its own now, and was not before.
        vocab_size: of the merged model where the adapter changes it.
    """

    spec: AdapterSpec
    weights: AdapterWeights
    tensors: Mapping[str, TensorPlan]
    untied: bool
    vocab_size: int | None


def plan_adapter(
    folder: Path, config: Mapping[str, Any], base: Mapping[str, TensorSpec]
) -> AdapterPlan:
    """Read an adapter and find the place of each of its tensors in the base.

    Raises:
        AdapterInvalidError: the adapter itself is damaged or asks for what is not built.
        ExportSourceError: it does not fit the base.
        ExportUnsupportedError: the base has no way to hold the result.
    """
    spec = read_adapter(folder)
    check_targets(spec, _modules_of(base))
    return _Planner(spec, read_weights(spec), config, base).plan()


def _modules_of(base: Mapping[str, TensorSpec]) -> Mapping[str, BaseModule]:
    """The modules of a model that have weights, as far as their tensors tell."""
    modules: dict[str, BaseModule] = {}
    # A head that is tied to the embedding has no tensor of its own.
    tied = HEAD not in base
    for name, spec in base.items():
        module, _, parameter = name.rpartition(".")
        if parameter == "weight":
            embedding, linear = name.endswith(EMBEDDINGS), len(spec.shape) == 2
            kind: ModuleKind = "embedding" if embedding else "linear" if linear else "other"
            modules[module] = BaseModule(kind=kind, head=name == HEAD, tied=embedding and tied)
    head = BaseModule(kind="linear", head=True, tied=tied)
    modules.setdefault(HEAD.rpartition(".")[0], head)
    return modules


class _Planner:
    def __init__(
        self,
        spec: AdapterSpec,
        weights: AdapterWeights,
        config: Mapping[str, Any],
        base: Mapping[str, TensorSpec],
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._config = config
        self._base = base
        self._conv1d = config.get("model_type") in CONV1D_MODELS
        self._embedding = _find_embedding(base)
        self._tied = HEAD not in base and bool(
            # Families that tie by default leave the word out of their configuration.
            config.get("tie_word_embeddings", True)
        )
        self._plans: dict[str, TensorPlan] = {}

    def plan(self) -> AdapterPlan:
        replacements = (
            *((name, info, False) for name, info in self._spec.base_copies.items()),
            *((name, info, True) for name, info in self._spec.replaced.items()),
        )
        for parameter, info, trained in replacements:
            name = self._tensor_of(parameter)
            self._plans[name] = TensorPlan(
                base=self._origin(name), replacement=info, trained=trained
            )
        for module in self._spec.modules.values():
            name = self._tensor_of(f"{module.name}.weight")
            started = self._plans.get(name) or TensorPlan(base=self._origin(name))
            self._plans[name] = TensorPlan(
                base=started.base,
                replacement=started.replacement,
                trained=started.trained,
                lora=module,
                conv1d=self._conv1d and name != HEAD and not module.embedding,
            )
        untied = self._settle_tied_weights()
        for name, plan in self._plans.items():
            self._check(name, plan)
        vocab_size = self._vocab_size()
        return AdapterPlan(self._spec, self._weights, self._plans, untied, vocab_size)

    def _tensor_of(self, parameter: str) -> str:
        """The base's name for a parameter: files may carry the prefix of the model in memory
        (``model.``, ``transformer.``), or leave it out."""
        _, _, without = parameter.partition(".")
        for name in (parameter, without):
            if name in self._base or (name == HEAD and self._tied):
                return name
        longer = [name for name in self._base if name.endswith(f".{parameter}")]
        if len(longer) == 1:
            return longer[0]
        raise ExportSourceError(
            f"The base model has no tensor {parameter}, which the adapter needs."
        )

    def _origin(self, name: str) -> str:
        if name in self._base:
            return name
        if self._embedding is None:
            raise ExportUnsupportedError(
                "The adapter changes the output head, which is tied to an embedding that is not "
                "known here."
            )
        return self._embedding

    def _settle_tied_weights(self) -> bool:
        """Give the head weights of its own where it no longer equals the embedding."""
        embedding, head = self._embedding, self._plans.get(HEAD)
        if not self._tied or embedding is None:
            return False
        plan = self._plans.get(embedding)
        if head is None:
            if plan is None or (plan.lora is None and not plan.trained):
                # A copy of the base's weights, resized perhaps, is the head's as well.
                return False
            original = self._spec.base_copies.get(self._spec_name(embedding))
            self._plans[HEAD] = TensorPlan(base=embedding, replacement=original)
            return True
        if plan is not None and self._same(plan, head):
            del self._plans[HEAD]
            return False
        if head.replacement is None and plan is not None and not plan.trained:
            self._plans[HEAD] = TensorPlan(
                base=embedding, replacement=plan.replacement, lora=head.lora
            )
        return True

    def _same(self, embedding: TensorPlan, head: TensorPlan) -> bool:
        if embedding.lora is not None or head.lora is not None:
            return False
        if embedding.replacement is None or head.replacement is None:
            return False
        return self._weights.tensor(embedding.replacement) == self._weights.tensor(head.replacement)

    def _spec_name(self, tensor: str) -> str:
        """The adapter's name for a tensor of the base."""
        for name in self._spec.base_copies:
            if self._tensor_of(name) == tensor:
                return name
        return tensor

    def _check(self, name: str, plan: TensorPlan) -> None:
        shape = self._base[plan.base].shape
        if plan.replacement is not None:
            vocabulary = name == HEAD or name == self._embedding
            fits = plan.replacement.shape[1:] == shape[1:] and (
                vocabulary or plan.replacement.shape == shape
            )
            if not fits:
                raise ExportSourceError(
                    f"{name} has shape {list(shape)} in the base model and "
                    f"{list(plan.replacement.shape)} in the adapter."
                )
            shape = plan.replacement.shape
        if plan.lora is not None:
            wanted = _lora_shape(plan)
            if shape != wanted:
                raise ExportSourceError(
                    f"{name} has shape {list(shape)} in the base model, and the adapter was "
                    f"trained for {list(wanted)}."
                )

    def _vocab_size(self) -> int | None:
        if self._embedding is None:
            return None
        before = self._base[self._embedding].rows
        after = self._rows(self._embedding)
        if HEAD in self._base or HEAD in self._plans:
            head = self._rows(HEAD)
            if head != after:
                raise ExportSourceError(
                    f"The merged model would have {after} tokens in its embedding and {head} in "
                    "its output head: the adapter was saved with only one of them in its new "
                    "size. Resize and save the base model first, and give that with --base."
                )
        return after if after != before else None

    def _rows(self, name: str) -> int:
        plan = self._plans.get(name)
        if plan is None:
            return self._base[name].rows
        if plan.replacement is not None:
            return plan.replacement.shape[0]
        return self._base[plan.base].rows


def _lora_shape(plan: TensorPlan) -> tuple[int, int]:
    """The shape of the weight that a LoRA module was made for."""
    assert plan.lora is not None
    into, out = plan.lora.a.shape[1], plan.lora.b.shape[0]
    # An embedding's table is [tokens, dimensions], with the tokens on A's side.
    return (into, out) if plan.lora.embedding or plan.conv1d else (out, into)


def _find_embedding(names: Iterable[str]) -> str | None:
    found = [name for name in names if name.endswith(EMBEDDINGS)]
    return found[0] if len(found) == 1 else None
