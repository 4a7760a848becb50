"""Whether an adapter fits the base model that is served: names and shapes, before it is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from soup_engine.adapters.peft_format import AdapterSpec, LoRAModule
from soup_engine.adapters.peft_targets import Targets
from soup_engine.adapters.safetensors_file import TensorInfo
from soup_engine.errors import AdapterInvalidError
from soup_engine.user_paths import same_place

ModuleKind = Literal["linear", "conv1d", "embedding", "other"]
MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModule:
    """A module of the base model.

    Attributes:
        kind: ``conv1d`` is GPT-2's linear layer with its weight as [in, out].
        in_features, out_features: of an embedding, tokens and dimensions; 0 for ``other``.
        tied: its weight is another module's, too.
        head: it computes the logits.
        parameters: shapes of the parameters that are the module's own, by name, as they are in
            the model before any quantisation.
    """

    kind: ModuleKind
    in_features: int = 0
    out_features: int = 0
    tied: bool = False
    head: bool = False
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))


def check_against_base(
    spec: AdapterSpec, base_modules: Mapping[str, BaseModule], *, served: str | None = None
) -> tuple[str, ...]:
    """Check that every tensor of an adapter has its place in the base, and that the modules with
    tensors are those of the base that its configuration names.

    Args:
        base_modules: every module of the base by its name, such as ``model.layers.0.mlp``.
        served: folder or hub id of the base that is served.

    Returns:
        Sentences about what looks wrong and does not prevent anything.

    Raises:
        AdapterInvalidError: names or shapes differ; the message says which.
    """
    _check_names(spec, base_modules)
    check_targets(spec, base_modules)
    for name, module in spec.modules.items():
        _check_module(module, base_modules[name])
    for parameter, tensor in (*spec.replaced.items(), *spec.base_copies.items()):
        _check_parameter(parameter, tensor, base_modules)
    for module_name in {parameter.rpartition(".")[0] for parameter in spec.replaced}:
        _check_complete(module_name, spec, base_modules[module_name])
    if spec.base is None or served is None or _same_base(spec.base, served):
        return ()
    return (
        f"The adapter was trained for {spec.base!r}, and {served!r} is served; names and shapes "
        "fit.",
    )


def _check_names(spec: AdapterSpec, base_modules: Mapping[str, BaseModule]) -> None:
    parameters = (*spec.replaced, *spec.base_copies)
    wanted = {*spec.modules, *(parameter.rpartition(".")[0] for parameter in parameters)}
    unknown = sorted(name for name in wanted if name not in base_modules)
    if not unknown:
        return
    if len(unknown) == len(wanted):
        share = "None of the adapter's modules are"
    else:
        share = f"{len(unknown)} of the adapter's {len(wanted)} modules are not"
    hints = [_with_closest(name, base_modules) for name in unknown[:MAX_NAMED]]
    raise AdapterInvalidError(f"{share} in the base model: {_few([*hints, *unknown[MAX_NAMED:]])}.")


def check_rank(spec: AdapterSpec, highest: int) -> None:
    """Raises AdapterInvalidError: a module has a higher rank."""
    if spec.max_rank > highest:
        raise AdapterInvalidError(
            f"The adapter has rank {spec.max_rank}; the highest accepted here is "
            f"{highest} (max-lora-rank)."
        )


def check_targets(spec: AdapterSpec, base_modules: Mapping[str, BaseModule]) -> None:
    """Compare the modules that have tensors with those that the configuration names.

    PEFT passes over tensors of modules that are not named, and leaves modules that are named and
    have none as they happen to be initialised: neither is what was trained.

    Raises:
        AdapterInvalidError: they differ.
    """
    if not spec.targets.given:
        raise AdapterInvalidError(
            "adapter_config.json has no target_modules; PEFT would choose by the architecture: "
            "name the modules that were trained."
        )
    named = _targeted(spec.targets, base_modules)
    if unnamed := sorted(spec.modules.keys() - named):
        raise AdapterInvalidError(
            f"The adapter holds tensors for {_few(unnamed)}, which adapter_config.json does not "
            "name (target_modules, layers_to_transform, exclude_modules)."
        )
    if absent := sorted(named - spec.modules.keys()):
        raise AdapterInvalidError(
            f"adapter_config.json names {_few(absent)} of the base model, and the adapter holds "
            "no tensors for it (target_modules, layers_to_transform, exclude_modules)."
        )


def _targeted(targets: Targets, base_modules: Mapping[str, BaseModule]) -> set[str]:
    """The modules of the base that get LoRA."""
    if targets.all_linear:
        return {
            name
            for name, module in base_modules.items()
            if module.kind in ("linear", "conv1d") and not module.head and targets.allows(name)
        }
    named = {name for name in base_modules if targets.names(name)}
    tied = {name for name, module in base_modules.items() if module.tied} if targets.tied else set()
    return named if named.isdisjoint(tied) else named | tied


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _with_closest(name: str, known: Iterable[str]) -> str:
    # Names that end alike are what somebody looks for whose prefix is wrong, and few enough for
    # a comparison that is slow.
    last = name.rpartition(".")[2]
    alike = [other for other in known if other.rpartition(".")[2] == last]
    closest = difflib.get_close_matches(name, alike[:1000] or list(known)[:1000], n=1, cutoff=0.6)
    return f"{name} (closest there: {closest[0]})" if closest else name


def _check_module(module: LoRAModule, base: BaseModule) -> None:
    if base.kind == "other":
        raise AdapterInvalidError(
            f"{module.name} is neither a linear layer nor an embedding in the base model, so LoRA "
            "cannot be applied to it."
        )
    if module.embedding != (base.kind == "embedding"):
        adapter, there = ("an embedding", "a linear layer")[:: 1 if module.embedding else -1]
        raise AdapterInvalidError(
            f"{module.name} is {adapter} by the adapter's tensors and {there} in the base model."
        )
    fits = (module.a.shape[1], module.b.shape[0])
    if fits != (base.in_features, base.out_features):
        raise AdapterInvalidError(
            f"{module.name} takes {base.in_features} features to {base.out_features} in the base "
            f"model, and {fits[0]} to {fits[1]} in the adapter{_vocabulary_hint(module, base)}."
        )


def _vocabulary_hint(module: LoRAModule, base: BaseModule) -> str:
    tokens = 0 if base.kind == "embedding" else 1
    sizes = (module.a.shape[1], module.b.shape[0]), (base.in_features, base.out_features)
    differ_in_tokens_only = sizes[0][1 - tokens] == sizes[1][1 - tokens]
    is_vocabulary = base.kind == "embedding" or module.name.endswith("lm_head")
    if is_vocabulary and differ_in_tokens_only:
        return ": it was trained with another vocabulary"
    return ""


def _check_parameter(
    parameter: str, tensor: TensorInfo, base_modules: Mapping[str, BaseModule]
) -> None:
    module, _, name = parameter.rpartition(".")
    shape = base_modules[module].parameters.get(name)
    if shape is None:
        raise AdapterInvalidError(f"The base model has no parameter {parameter}.")
    if tensor.shape != shape:
        raise AdapterInvalidError(
            f"{parameter} has shape {list(shape)} in the base model and {list(tensor.shape)} in "
            "the adapter."
        )


def _check_complete(module: str, spec: AdapterSpec, base: BaseModule) -> None:
    for name in base.parameters:
        if f"{module}.{name}" not in spec.replaced:
            raise AdapterInvalidError(
                f"The adapter replaces {module} and holds no {name} for it, which it has in the "
                "base model."
            )


def _same_base(named: str, served: str) -> bool:
    """Whether two folders or hub ids are one model: the same place, or the same last name."""
    return same_place(named, served) or Path(named).name == Path(served).name
