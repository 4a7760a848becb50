"""Every row of a batch wears another adapter, and gets what PEFT's model of it would give.

Each batch mixes rows on adapters of different kinds with rows on the base. The last part breaks
the engine on purpose and expects the comparison to notice.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_loader import AdapterLoader
from soup_engine.config import (
    CacheConfig,
    EngineConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from soup_engine.core import blocks
from soup_engine.draft.ngram import NgramProposer
from soup_engine.engine.capacity import plan_capacity
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.speculation import Speculation
from soup_engine.errors import AdapterInvalidError, EngineStepError
from soup_engine.lora.residency import HostTier
from soup_engine.messages import AdapterStatus, FinishReason, GenerationRequest
from soup_engine.metrics.recorder import EngineIdentity, EngineMetrics
from soup_engine.model import model_input
from soup_engine.model.loader import LoadedModel
from tests.support.adapters import PeftReference, make_adapter
from tests.support.equality import Answer, Reference, compare, request, run

ATTENTION = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gemma2": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["attn.c_attn", "attn.c_proj"],
}
MLP = {
    "llama": ["gate_proj", "up_proj", "down_proj"],
    "gemma2": ["gate_proj", "up_proj", "down_proj"],
    "gpt2": ["mlp.c_fc", "mlp.c_proj"],
}
EMBEDDING = {"llama": "embed_tokens", "gemma2": "embed_tokens", "gpt2": "wte"}
NORMS = {
    "llama": ["input_layernorm", "model.norm"],
    "gemma2": ["post_feedforward_layernorm", "model.norm"],
    "gpt2": ["ln_1", "ln_f"],
}
FAMILIES = ("llama", "gemma2", "gpt2")

_IDENTITY = EngineIdentity(
    model="tiny",
    backend="transformers",
    device="cpu",
    dtype="float32",
    max_model_len=256,
    started_at=0.0,
)


def kinds(family: str) -> dict[str, dict[str, Any]]:
    """Configurations of adapters, by what is special about them."""
    attention, mlp = ATTENTION[family], MLP[family]
    first = attention[0].rpartition(".")[2]
    return {
        "attention": {"r": 4, "lora_alpha": 8, "target_modules": attention},
        "mlp": {"r": 8, "lora_alpha": 8, "target_modules": mlp},
        "patterns": {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": attention + mlp,
            "rank_pattern": {first: 7},
            "alpha_pattern": {first: 3},
        },
        "rslora": {"r": 4, "lora_alpha": 4, "use_rslora": True, "target_modules": attention},
        "dora": {"r": 4, "lora_alpha": 4, "use_dora": True, "target_modules": attention + mlp},
        "vocabulary": {
            "r": 4,
            "lora_alpha": 2,
            "target_modules": [EMBEDDING[family], "lm_head", attention[0]],
        },
        "embedding_dora": {
            "r": 4,
            "lora_alpha": 2,
            "use_dora": True,
            "target_modules": [EMBEDDING[family], attention[-1]],
        },
        "saved": {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": attention,
            "modules_to_save": [*NORMS[family], mlp[0]],
        },
        "saved_vocabulary": {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": attention,
            "modules_to_save": [EMBEDDING[family], "lm_head"],
        },
    }


@dataclass
class Rig:
    """An engine with its registry and loader, as the backend puts them together."""

    engine: LLMEngine
    loader: AdapterLoader
    host: HostTier

    @property
    def registry(self) -> AdapterRegistry:
        return self.loader.registry

    def bound(self, item: GenerationRequest, adapter: str | None) -> GenerationRequest:
        lease = self.registry.bind(adapter, None)
        return replace(item, adapter=adapter, lease=lease)

    def check(self) -> None:
        self.registry.check_integrity()
        self.engine.check_integrity()
        running = sum(view.running for view in self.registry.views())
        assert running == 0, "a lease was not given back"


def make_rig(
    loaded: LoadedModel,
    *,
    slots: int = 8,
    kv_bytes: int = 64 << 20,
    max_num_batched_tokens: int = 24,
    max_model_len: int | None = None,
    slab_tokens: int = 1024,
) -> Rig:
    config = EngineConfig(
        model=ModelConfig(path=loaded.source, max_model_len=max_model_len),
        cache=CacheConfig(memory_bytes=kv_bytes, slab_tokens=slab_tokens),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=max_num_batched_tokens),
        lora=LoRAConfig(max_adapters=slots),
    )
    with torch.inference_mode():
        # Sites stay with a model, and the other tests have the same one.
        loaded = replace(loaded, model=copy.deepcopy(loaded.model))
    host = HostTier()
    registry = AdapterRegistry(["tiny"], on_free=host.free)

    def release(lease: Any, tokens: int) -> None:
        assert isinstance(lease, AdapterLease)
        registry.release(lease, tokens=tokens)

    engine = LLMEngine(
        loaded,
        config,
        plan_capacity(config, loaded),
        EngineMetrics(),
        adapters=host,
        release_lease=release,
    )
    loader = AdapterLoader(
        registry,
        host,
        engine.adapter_sites,
        loaded.base_modules,
        served=loaded.source,
        max_rank=config.lora.max_rank,
    )
    return Rig(engine, loader, host)


Loader = Callable[[str], LoadedModel]
References = Callable[[str], Reference]
Adapters = Callable[[str, str], Path]
PeftReferences = Callable[[str, str], Reference]


@pytest.fixture(scope="session")
def adapter(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Adapters:
    """Folder of an adapter of a kind for a family; each is made once."""
    made: dict[tuple[str, str], Path] = {}

    def folder(family: str, kind: str) -> Path:
        if (family, kind) not in made:
            path = tmp_path_factory.mktemp("adapters") / kind
            seed = sorted(kinds(family)).index(kind)
            config = kinds(family)[kind]
            made[family, kind] = make_adapter(tiny_model(family), path, seed=seed, **config)
        return made[family, kind]

    return folder


@pytest.fixture(scope="session")
def peft(
    tiny_model: Callable[[str], Path], adapter: Adapters, reference: References
) -> PeftReferences:
    made: dict[tuple[str, str], Reference] = {}

    def load(family: str, kind: str) -> Reference:
        if kind == "base":
            return reference(family)
        if (family, kind) not in made:
            made[family, kind] = PeftReference(tiny_model(family), adapter(family, kind))
        return made[family, kind]

    return load


def arrivals(
    rig: Rig, names: list[str], *, seed: int, each: int = 2, max_tokens: int = 16
) -> tuple[list[tuple[int, GenerationRequest]], dict[str, str]]:
    """Prompts of many lengths for every adapter (``base`` is none), some alike at their start,
    arriving while others run; and what each request wears, by its id."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(256) for _ in range(40))
    order = names * each
    rng.shuffle(order)
    items, worn = [], {}
    for number, name in enumerate(order):
        own = tuple(rng.randrange(256) for _ in range(rng.choice([3, 17, 33, 70])))
        prompt = shared[: rng.choice([16, 32])] + own if number % 2 else own
        item = rig.bound(request(number, prompt, max_tokens), None if name == "base" else name)
        items.append((rng.randrange(0, 12), item))
        worn[item.request_id] = name
    return items, worn


class WornReference(Reference):
    """To each text its own reference: what wrote it."""

    def __init__(self, by_text: dict[tuple[int, ...], Reference]) -> None:
        self._by_text = by_text

    def logprobs(self, token_ids: list[int]) -> Tensor:
        return self._by_text[tuple(token_ids)].logprobs(token_ids)


def differences(
    answers: dict[str, Answer], worn: dict[str, str], reference_of: Callable[[str], Reference]
) -> list[str]:
    """What is not as the reference of the adapter that the request wore has it."""
    by_text = {
        (*answer.prompt, *answer.token_ids): reference_of(worn[request_id])
        for request_id, answer in answers.items()
    }
    return compare(WornReference(by_text), list(answers.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_on_different_adapters(
    family: str, loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    rig = make_rig(loaded(family), slots=9)
    for kind in kinds(family):
        rig.loader.load(kind, adapter(family, kind))
    items, worn = arrivals(rig, ["base", *kinds(family)], seed=1)
    answers = run(rig.engine, items)
    assert differences(answers, worn, lambda kind: peft(family, kind)) == []
    rig.check()
    counters = rig.engine.snapshot(_IDENTITY, "ready").counters
    assert counters.prefix_hits > 0
    assert all(view.tokens == 32 for view in rig.registry.views())


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_on_different_adapters_with_drafts(
    family: str, loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    """The head is applied to several positions of a row, each on the row's adapter."""
    rig = make_rig(loaded(family), slots=9)
    for kind in kinds(family):
        rig.loader.load(kind, adapter(family, kind))
    items, worn = arrivals(rig, ["base", *kinds(family)], seed=2, max_tokens=24)
    rig.engine.speculation = Speculation(
        SpeculativeConfig(ngram=1, always=True), NgramProposer(1), max_model_len=256
    )
    answers = run(rig.engine, items)
    assert differences(answers, worn, lambda kind: peft(family, kind)) == []
    rig.check()
    view = rig.engine.speculation.view()
    assert {item.adapter for item in view.adapters} == {None, *kinds(family)}
    assert sum(item.counts.accepted > 0 for item in view.adapters) >= 2
    assert 0 < view.counts.accepted <= view.counts.drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_every_adapter_changes_the_text(family: str, loaded: Loader, adapter: Adapters) -> None:
    rig = make_rig(loaded(family), slots=9)
    # The tiny Gemma says its last token again and again, whatever it wears, unless that costs.
    settings = {"frequency_penalty": 2.0} if family == "gemma2" else {}
    prompt = tuple(range(40, 60))
    items = [(0, request(0, prompt, 12, **settings))]
    for number, kind in enumerate(kinds(family), start=1):
        rig.loader.load(kind, adapter(family, kind))
        items.append((0, rig.bound(request(number, prompt, 12, **settings), kind)))
    answers = run(rig.engine, items)
    assert len({tuple(answer.token_ids) for answer in answers.values()}) == len(items)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_more_adapters_than_slots_and_preemption(
    family: str, loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    model = loaded(family)
    budget = 360 * _token_bytes(model)
    rig = make_rig(model, slots=2, kv_bytes=budget, max_model_len=128, slab_tokens=128)
    for kind in kinds(family):
        rig.loader.load(kind, adapter(family, kind))
    items, worn = arrivals(rig, ["base", *kinds(family)], seed=2, max_tokens=30)
    answers = run(rig.engine, items)
    assert differences(answers, worn, lambda kind: peft(family, kind)) == []
    rig.check()
    assert rig.engine.snapshot(_IDENTITY, "ready").counters.preemptions > 0
    assert len(rig.engine.slots.slots) == 2


def test_a_long_prompt_on_one_adapter_goes_by_runs(
    loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    rig = make_rig(loaded("llama"), max_num_batched_tokens=200)
    rig.loader.load("patterns", adapter("llama", "patterns"))
    rig.loader.load("dora", adapter("llama", "dora"))
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(256) for _ in range(150)) for _ in range(2)]
    items = [
        (number, rig.bound(request(number, prompt, 24), name))
        for number, (prompt, name) in enumerate(zip(prompts, ["patterns", "dora"], strict=True))
    ]
    answers = run(rig.engine, items)
    worn = {"r0": "patterns", "r1": "dora"}
    assert differences(answers, worn, lambda kind: peft("llama", kind)) == []


def test_a_swap_leaves_running_requests_on_what_they_began_with(
    loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    rig = make_rig(loaded("llama"))
    prompt = tuple(range(30, 70))
    rig.loader.load("style", adapter("llama", "attention"))
    old = rig.bound(request(0, prompt, 30), "style")
    rig.engine.add_request(old)
    answers = {"r0": Answer(prompt), "r1": Answer(prompt)}
    step(rig, answers, 6)
    assert old.lease is not None
    old_hash = old.lease.content_hash
    view = rig.loader.load("style", adapter("llama", "mlp"), replace=True)
    assert (view.revision, view.earlier_revisions) == (2, 1)
    rig.engine.add_request(rig.bound(request(1, prompt, 30), "style"))
    assert old_hash in rig.host
    step(rig, answers)
    worn = {"r0": "attention", "r1": "mlp"}
    assert differences(answers, worn, lambda kind: peft("llama", kind)) == []
    # The old weights went with their last request, and nothing of them is left in a slot.
    assert old_hash not in rig.host
    rig.engine.step()
    assert old_hash not in rig.engine.slots.slots
    rig.check()


def test_an_unload_waits_for_what_runs(
    loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    rig = make_rig(loaded("gpt2"))
    prompt = tuple(range(30, 70))
    rig.loader.load("style", adapter("gpt2", "attention"))
    rig.engine.add_request(rig.bound(request(0, prompt, 30), "style"))
    answers = {"r0": Answer(prompt)}
    step(rig, answers, 6)
    assert rig.loader.unload("style").status is AdapterStatus.UNLOADING
    assert not rig.registry.wait_until_gone("style", 0.0)
    step(rig, answers)
    assert rig.registry.wait_until_gone("style", 0.0)
    assert differences(answers, {"r0": "attention"}, lambda kind: peft("gpt2", kind)) == []
    assert rig.host.num_bytes == 0
    rig.check()


def test_weights_that_come_back_answer_like_a_cold_start(
    loaded: Loader, adapter: Adapters, peft: PeftReferences
) -> None:
    rig = make_rig(loaded("llama"))
    prompt = tuple(range(30, 70))
    worn = {}
    answers: dict[str, Answer] = {}
    for number, kind in enumerate(["attention", "mlp", "attention"]):
        rig.loader.load("style", adapter("llama", kind), replace=True)
        answers |= run(rig.engine, [(0, rig.bound(request(number, prompt, 12), "style"))])
        worn[f"r{number}"] = kind
    assert differences(answers, worn, lambda kind: peft("llama", kind)) == []
    assert answers["r0"].token_ids == answers["r2"].token_ids != answers["r1"].token_ids
    rig.check()


def test_leases_end_with_their_requests(
    loaded: Loader, adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(loaded("llama"))
    rig.loader.load("style", adapter("llama", "attention"))
    several = rig.bound(request(0, (1, 2, 3), 5, n=3, temperature=1.0, seed=1), "style")
    rig.engine.add_request(several)
    while rig.engine.has_work:
        rig.engine.step()
    assert rig.registry.view("style").tokens == 15
    rig.check()

    rig.engine.add_request(rig.bound(request(1, (1, 2, 3), 50), "style"))
    rig.engine.step()
    assert [o.finish_reason for o in rig.engine.abort("r1")] == [FinishReason.ABORT]
    rig.check()

    rig.engine.add_request(rig.bound(request(2, (1, 2, 3), 50), "style"))
    rig.engine.end_all(EngineStepError("over"))
    rig.check()

    def fail(*_: Any) -> None:
        raise RuntimeError("out of everything")

    rig.engine.add_request(rig.bound(request(3, (1, 2, 3), 50), "style"))
    with monkeypatch.context() as broken:
        broken.setattr(rig.engine.adapter_sites, "put", fail)
        rig.loader.load("other", adapter("llama", "mlp"))
        rig.engine.add_request(rig.bound(request(4, (1, 2, 3), 50), "other"))
        outputs = rig.engine.step()
    assert {o.request_id: o.finish_reason for o in outputs} == {
        "r3": FinishReason.ERROR,
        "r4": FinishReason.ERROR,
    }
    rig.check()


def test_what_cannot_be_applied_is_refused_by_name(
    loaded: Loader, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_model("qwen3")
    head_norm = make_adapter(
        base, tmp_path / "norm", seed=1, target_modules=["q_proj"], modules_to_save=["q_norm"]
    )
    rig = make_rig(loaded("qwen3"))
    with pytest.raises(AdapterInvalidError, match=r"modules_to_save holds .*q_norm"):
        rig.loader.load("norm", head_norm)
    high = make_adapter(base, tmp_path / "high", seed=1, r=300, target_modules=["q_proj"])
    with pytest.raises(AdapterInvalidError, match="rank 300; the highest accepted here is 256"):
        rig.loader.load("high", high)
    assert rig.registry.view("high").status is AdapterStatus.FAILED
    assert rig.host.num_bytes == 0
    rig.registry.check_integrity()


def step(rig: Rig, answers: dict[str, Answer], steps: int | None = None) -> None:
    """Step so often, or until all is done."""
    while rig.engine.has_work and steps != 0:
        for output in rig.engine.step():
            answers[output.request_id].take(output)
        rig.engine.check_integrity()
        steps = None if steps is None else steps - 1


def _token_bytes(model: LoadedModel) -> int:
    return model.model.layout.bytes_per_token(torch.float32)


# --- Teeth: each of these engines is wrong, and must be found out.


def _wrong_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_input._slot

    def neighbour(item: Any, layout: Any) -> int | None:
        slot = honest(item, layout)
        return None if slot is None else (slot + 1) % 2

    monkeypatch.setattr(model_input, "_slot", neighbour)


def _base_wears_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_input._slot
    monkeypatch.setattr(model_input, "_slot", lambda item, layout: honest(item, layout) or 0)


def _hash_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = blocks.root_hash
    monkeypatch.setattr(blocks, "root_hash", lambda _hash, salt: honest(b"", salt))


@pytest.mark.parametrize("mutate", [_wrong_slot, _base_wears_an_adapter, _hash_ignored])
def test_the_comparison_has_teeth(
    mutate: Callable[[pytest.MonkeyPatch], None],
    loaded: Loader,
    adapter: Adapters,
    peft: PeftReferences,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    rig = make_rig(loaded("llama"), slots=2)
    prompt = tuple(range(10, 50))
    worn = {"r0": "attention", "r1": "mlp", "r2": "base"}
    for kind in ("attention", "mlp"):
        rig.loader.load(kind, adapter("llama", kind))
    items = [
        (12 * number, rig.bound(request(number, prompt, 24), None if kind == "base" else kind))
        for number, kind in enumerate(worn.values())
    ]
    answers = run(rig.engine, items)
    assert differences(answers, worn, lambda kind: peft("llama", kind)) != []
