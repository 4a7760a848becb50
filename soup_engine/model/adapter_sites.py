"""Brings adapters to a model: where its modules are once layers were fused and weights packed.

Layers of the engine's own (``fused_layers``) know their sites. All other modules are reached by
forward hooks, which are put on a module when the first adapter that changes it comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from soup_engine.adapters.base_check import BaseModule, ModuleKind
from soup_engine.adapters.peft_format import AdapterSpec
from soup_engine.errors import AdapterInvalidError
from soup_engine.lora.host_adapter import HostAdapter, ModuleDelta
from soup_engine.lora.sites import LinearPart, LinearSite, ModuleSite
from soup_engine.model import attention
from soup_engine.model.causal_lm import CausalLM
from soup_engine.model.fused_layers import FusedDecoderLayer
from soup_engine.model.linear import FusedLinear, PackedLinear

EXPERTS = "experts"
"""Modules below one of this name see some of the tokens, in an order of their own."""

PLAIN_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def describe_modules(model: PreTrainedModel) -> Mapping[str, BaseModule]:
    """The modules of a model before anything about it is changed, by name."""
    holders: defaultdict[int, int] = defaultdict(int)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] += 1
    head = model.get_output_embeddings()
    return MappingProxyType(
        {
            name: _describe(
                name,
                module,
                tied=any(holders[id(p)] > 1 for p in _own(module)),
                head=module is head,
            )
            for name, module in model.named_modules()
            if name
        }
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module of the original model is now: itself, or part ``number`` of a fused one."""

    module: nn.Module
    number: int = 0
    layer: FusedDecoderLayer | None = None


class AdapterSites:
    """The sites of one model, made as adapters need them.

    ``check`` and ``parameter`` may be called from any thread, everything else by the thread that
    owns the model.
    """

    def __init__(
        self, model: CausalLM, base_modules: Mapping[str, BaseModule], num_slots: int
    ) -> None:
        self.num_slots = num_slots
        self.dtype = model.dtype
        self.device = model.device
        self._model = model
        self._base_modules = base_modules
        self._places = _find_places(model.model)
        self._head = model.model.get_output_embeddings()
        self._sites: dict[int, LinearSite | ModuleSite] = {}  # by id of the module
        self._filled: defaultdict[int, list[LinearSite | ModuleSite]] = defaultdict(list)

    def check(self, spec: AdapterSpec) -> None:
        """Refuse what fits the base and cannot be applied to it here.

        Raises:
            AdapterInvalidError: the message names the module.
        """
        for name in {parameter.rpartition(".")[0] for parameter in spec.replaced}:
            base = self._base_modules[name]
            if base.kind == "other" and not self._is_replaceable(name, base):
                raise AdapterInvalidError(
                    f"modules_to_save holds {name}, and of other modules than linear layers, "
                    "embeddings and norms over the hidden size none can be replaced for single "
                    "rows."
                )

    def parameter(self, name: str) -> Tensor:
        """A parameter of the base, dense and as the original module had it.

        Raises:
            AdapterInvalidError: it is held quantised.
        """
        module_name, _, own_name = name.rpartition(".")
        place = self._places[module_name]
        if isinstance(place.module, FusedLinear):
            found = place.module.part_weight(place.number)
        elif isinstance(place.module, PackedLinear):
            found = place.module.weight
        else:
            found = getattr(place.module, own_name).detach()
        shape = self._base_modules[module_name].parameters.get(own_name)
        if tuple(found.shape) != shape or found.dtype not in PLAIN_DTYPES:
            raise AdapterInvalidError(
                f"{name} is quantised in the base model; DoRA and saved vocabulary layers need "
                "it as it was."
            )
        return found

    @torch.inference_mode()
    def put(self, slot: int, adapter: HostAdapter) -> None:
        """Copy an adapter into a slot that is clear."""
        deltas: defaultdict[int, dict[int, ModuleDelta]] = defaultdict(dict)
        replaced: defaultdict[int, dict[int, Mapping[str, Tensor]]] = defaultdict(dict)
        sites: dict[int, LinearSite | ModuleSite] = {}
        for name in adapter.modules:
            place = self._places[name]
            key = id(place.module)
            sites[key] = self._site(name, place)
            if name in adapter.deltas:
                deltas[key][place.number] = adapter.deltas[name]
            if name in adapter.replaced:
                replaced[key][place.number] = self._as_linear(name, adapter.replaced[name])
        self._filled[slot] = list(sites.values())
        for key, site in sites.items():
            site.put(slot, deltas[key], replaced[key])

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        for site in self._filled.pop(slot, ()):
            site.clear(slot)

    def _is_replaceable(self, name: str, base: BaseModule) -> bool:
        hidden = self._model.model.get_input_embeddings().embedding_dim
        if name not in self._places or any(s != (hidden,) for s in base.parameters.values()):
            return False
        return "Norm" in type(self._places[name].module).__name__

    def _as_linear(self, name: str, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self._base_modules[name].kind != "conv1d":
            return parameters
        return {**parameters, "weight": parameters["weight"].T.contiguous()}

    def _site(self, name: str, place: _Place) -> LinearSite | ModuleSite:
        site = self._sites.get(id(place.module))
        if site is None:
            site = self._make_site(name, place)
            self._sites[id(place.module)] = site
        return site

    def _make_site(self, name: str, place: _Place) -> LinearSite | ModuleSite:
        module: Any = place.module
        base = self._base_modules[name]
        if base.kind not in ("linear", "conv1d"):
            scale = float(getattr(module, "embed_scale", 1.0))
            site = ModuleSite(module, scale=scale, device=self.device)
            if place.layer is None:
                module.register_forward_hook(_hook(site, of_samples=False))
            else:
                place.layer.norm_sites[id(module)] = site
            return site
        if isinstance(module, FusedLinear):
            parts, in_features = module.parts, module.in_features
        else:
            parts = (LinearPart(slice(0, base.out_features), module.bias),)
            in_features = base.in_features
        linear = LinearSite(
            in_features, parts, num_slots=self.num_slots, dtype=self.dtype, device=self.device
        )
        if isinstance(module, FusedLinear):
            module.site = linear
        else:
            of_samples = module is self._head and self._model.selects_logits
            module.register_forward_hook(_hook(linear, of_samples=of_samples))
        return linear


def _hook(site: LinearSite | ModuleSite, *, of_samples: bool) -> Any:
    """A forward hook for a module that is called with [1, num_tokens, …] as models do."""

    def apply(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        adapters = attention.current_adapters()
        if adapters is None:
            return None
        rows = adapters.samples if of_samples else adapters.tokens
        if rows.bits & site.bits:
            site.apply(rows, inputs[0][0], output[0])  # in place
        return None

    return apply


def _find_places(model: nn.Module) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for name, module in model.named_modules():
        if isinstance(module, FusedDecoderLayer):
            for below, linear, number in module.linear_parts():
                places[f"{name}.{below}"] = _Place(linear, number)
            for below, norm in module.norms():
                places[f"{name}.{below}"] = _Place(norm, layer=module)
        elif name:
            places[name] = _Place(module)
    return places


def _describe(name: str, module: nn.Module, *, tied: bool, head: bool) -> BaseModule:
    kind = _kind(name, module)
    parameters = {own: tuple(p.shape) for own, p in module.named_parameters(recurse=False)}
    in_features = out_features = 0
    if kind == "linear":
        in_features, out_features = int(module.in_features), int(module.out_features)  # type: ignore[arg-type]
        # A quantised weight has a shape of its own.
        parameters["weight"] = (out_features, in_features)
    elif isinstance(module, Conv1D):
        in_features, out_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        in_features, out_features = module.num_embeddings, module.embedding_dim
    return BaseModule(
        kind=kind,
        in_features=in_features,
        out_features=out_features,
        tied=tied,
        head=head,
        parameters=MappingProxyType(parameters),
    )


def _kind(name: str, module: nn.Module) -> ModuleKind:
    if EXPERTS in name.split("."):
        return "other"
    if isinstance(module, Conv1D):
        return "conv1d"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return "linear"
    return "other"


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))
