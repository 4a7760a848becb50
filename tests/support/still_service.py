"""A service that stands still: pictures of a scripted engine under a clock that the test moves."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.config import SpeculativeConfig
from soup_engine.errors import SoupError
from soup_engine.export.state import ExportProgress, ExportView, JobState
from soup_engine.logs import LogEntry
from soup_engine.messages import AdapterStatus, AdapterView, DraftCounts, GenerationRequest
from soup_engine.metrics.snapshot import (
    AdapterSpeculation,
    EngineSnapshot,
    SpeculationInterval,
    SpeculationView,
)
from soup_engine.sampling_params import SamplingParams
from soup_tui.export_types import EXPORT_TYPES
from soup_tui.history import History
from soup_tui.service import (
    Ability,
    AdapterListing,
    ChatRequest,
    ChatStream,
    ExportOrder,
    Leave,
    ProgressCallback,
    ServedModel,
)

WALL_TIME = 1_780_000_000.0
MODEL = ServedModel(
    name="SmolLM2-135M-Instruct",
    source="/models/SmolLM2-135M-Instruct",
    architecture="LlamaForCausalLM",
    backend="transformers",
    device="cpu",
    dtype="bfloat16",
    kv_cache_type="bf16",
    max_model_len=8_192,
    max_num_seqs=32,
    num_parameters=134_515_008,
)
CURL = (
    "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
    '\'{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hello"}]}\''
)


@dataclass
class StillService:
    """See ``soup_tui.service.Service``. What it is asked to do is kept in ``asked``."""

    figures: EngineSnapshot
    listing: AdapterListing = field(default_factory=AdapterListing)
    entries: Sequence[LogEntry] = ()
    jobs: Sequence[ExportView] = ()
    model: ServedModel = MODEL
    export_types: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EXPORT_TYPES)
    missing: Mapping[Ability, str] = field(default_factory=lambda: MappingProxyType({}))
    address: str | None = "http://127.0.0.1:8000"
    curl: str = CURL
    answer: str = "Hello."
    refusal: SoupError | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def snapshot(self) -> EngineSnapshot:
        return self.figures

    def adapters(self) -> AdapterListing:
        return self.listing

    def logs(self, after: int) -> Sequence[LogEntry]:
        return [entry for entry in self.entries if entry.sequence > after]

    def chat(self, request: ChatRequest) -> ChatStream:
        self.asked.append(("chat", request))
        times = iter([0.0, 0.25])
        last = 1.25
        stream = ChatStream(lambda: None, lambda: next(times, last))
        if self.refusal is not None:
            stream.fail(self.refusal)
            return stream
        stream.put(self.answer, 21, request.adapter or self.model.name)
        stream.finish("stop")
        return stream

    def abort(self, request_id: str) -> bool:
        self.asked.append(("abort", request_id))
        return True

    def activate(self, name: str | None) -> float | None:
        self.asked.append(("activate", name))
        return 0.42

    def load_adapter(self, name: str, path: str, *, replace: bool = False) -> str:
        self.asked.append(("load", name, path, replace))
        return f"Loaded {name}."

    def unload_adapter(self, name: str) -> str:
        self.asked.append(("unload", name))
        return "It is unloaded."

    def sleep(self, drain_timeout_s: float) -> str:
        self.asked.append(("sleep", drain_timeout_s))
        self.figures = dataclasses.replace(self.figures, state="sleeping", requests=(), running=0)
        return "The weights are off the device."

    def wake(self, on_progress: ProgressCallback) -> str:
        self.asked.append(("wake",))
        on_progress("loading weights", 0.43)
        self.figures = dataclasses.replace(self.figures, state="ready")
        return "It takes requests again."

    def speculate(self, config: SpeculativeConfig) -> str:
        self.asked.append(("speculate", config))
        return "Drafts are changed."

    def exports(self) -> Sequence[ExportView]:
        return self.jobs

    def start_export(self, order: ExportOrder) -> str:
        self.asked.append(("export", order))
        return f"Exporting to {order.target}."

    def cancel_export(self, job_id: str) -> str:
        self.asked.append(("cancel", job_id))
        return f"{job_id} is cancelled."

    def close(self, leave: Leave, drain_timeout_s: float = 0.0) -> None:
        self.asked.append(("close", leave, drain_timeout_s))


def adapter_view(name: str, **fields: object) -> AdapterView:
    values: dict[str, object] = {
        "name": name,
        "path": f"/srv/adapters/{name}",
        "origin": "start",
        "status": AdapterStatus.READY,
        "reason": None,
        "revision": 1,
        "content_hash": "5f2c8a91d04e77b1",
        "base": "SmolLM2-135M-Instruct",
        "rank": 8,
        "target_modules": ("q_proj", "v_proj"),
        "size_bytes": 1_900_000,
        "active": False,
        "aliases": (),
        "reloading": False,
        "running": 0,
        "earlier_revisions": 0,
        "loads": 1,
        "requests": 0,
        "tokens": 0,
        "last_load_ms": 38.0,
        "last_swap_ms": None,
        "loaded_at": WALL_TIME - 600,
    }
    return AdapterView(**(values | fields))  # type: ignore[arg-type]


def adapters() -> AdapterListing:
    """One of each kind."""
    views = (
        adapter_view("code", requests=341, running=2, rank=16, size_bytes=3_800_000),
        adapter_view(
            "pirate", active=True, requests=512, running=3, last_swap_ms=0.42, aliases=("prod",)
        ),
        adapter_view("poem", requests=96, revision=3, origin="watched", earlier_revisions=1),
        adapter_view(
            "torn",
            status=AdapterStatus.FAILED,
            reason="The file adapter_model.safetensors ends before its last tensor.",
            revision=0,
            rank=None,
            size_bytes=None,
            content_hash=None,
            last_load_ms=None,
            target_modules=(),
        ),
    )
    return AdapterListing(views, {"wide": "Its rank is 512; --max-lora-rank allows 256."})


def export_view(number: int, state: JobState, **fields: object) -> ExportView:
    values: dict[str, object] = {
        "id": f"export-{number:012x}",
        "sequence": 1,
        "state": state,
        "source": MODEL.source,
        "target": "/srv/out/SmolLM2-135M-Instruct.q8_0.gguf",
        "format": "gguf",
        "quant": "q8_0",
        "created": WALL_TIME + 60 * number,
    }
    if state is not JobState.QUEUED:
        values["started"] = WALL_TIME + 60 * number + 1
    if state.is_final:
        values["ended"] = WALL_TIME + 60 * number + 42
    return ExportView(**(values | fields))


def export_views() -> tuple[ExportView, ...]:
    """One of each kind, the oldest first."""
    figures = {
        "runtime": "llama.cpp (xllamacpp)",
        "bytes": 144_811_936,
        "greedy_agreement": 0.9871,
        "answers": 10,
        "answers_equal": 8,
        "mean_kl": 0.00214,
        "max_kl": 0.01,
        "passed": True,
        "perplexity": 14.21,
        "perplexity_source": 14.18,
        "tokens_per_s": 61.0,
    }
    worse = {**figures, "mean_kl": 0.412, "greedy_agreement": 0.7123, "answers_equal": 1}
    small = "/srv/out/SmolLM2-135M-Instruct.q4_0.gguf"
    merged = {"source": "/srv/adapters/pirate", "format": "merge", "quant": "keep"}
    return (
        export_view(1, JobState.CANCELLED, target="/srv/out/old.gguf", quant="bf16"),
        export_view(
            2,
            JobState.SUCCEEDED,
            result="/srv/out/SmolLM2-135M-Instruct.q8_0.gguf",
            manifest="/srv/out/SmolLM2-135M-Instruct.q8_0.gguf.manifest.json",
            notes=("1 tensor has rows that are no multiple of 32 and is kept in f16.",),
            verification=figures,
        ),
        export_view(
            3,
            JobState.FAILED,
            quant="q4_0",
            target=small,
            error="The result answers too differently from its source: its mean KL divergence is "
            f"0.412 and may be 0.2. The result was kept as {small}.unverified.",
            error_code="export_unverified",
            result=f"{small}.unverified",
            verification={**worse, "max_kl": 0.2, "passed": False},
        ),
        export_view(
            4,
            JobState.RUNNING,
            **merged,
            target="/srv/out/pirate-merge-keep",
            progress=ExportProgress(
                stage="writing tensors",
                tensors_done=120,
                tensors_total=272,
                bytes_done=101_000_000,
                bytes_total=269_000_000,
                bytes_per_s=48_500_000.0,
                seconds_left=3.46,
            ),
            notes=("The tokenizer is the adapter's own.",),
        ),
        export_view(5, JobState.QUEUED, format="onnx", quant="fp32", target="/srv/out/model-onnx"),
    )


def log_entries() -> list[LogEntry]:
    texts = [
        ("INFO", "soup_engine.runtime", "serving SmolLM2-135M-Instruct on cpu", None),
        ("INFO", "soup_engine.adapter_service", "loaded the adapter code, revision 1", None),
        ("INFO", "soup_engine.adapter_service", "loaded the adapter pirate, revision 1", None),
        (
            "WARNING",
            "soup_engine.adapter_service",
            "the folder of the adapter wide is refused",
            None,
        ),
        ("ERROR", "soup_engine.engine.engine_loop", "the step failed: out of memory", "chat-17"),
        ("INFO", "soup_engine.server.access", "aborted: the client went away", "chat-18"),
    ]
    return [
        LogEntry(number, WALL_TIME + 7 * number, level, logger, message, request_id)
        for number, (level, logger, message, request_id) in enumerate(texts, start=1)
    ]


async def lived_through(seconds: int = 240, seed: int = 7) -> tuple[EngineSnapshot, History]:
    """What an engine shows after so many seconds of traffic, and what the application remembers
    of them: five steps a second, requests that come in waves, prefill that stalls them."""
    now = 1_000.0
    dice = random.Random(seed)
    script = FakeScript(name=MODEL.name, step_s=None, max_running=12)
    backend = FakeBackend(script, clock=lambda: now, wall_clock=lambda: WALL_TIME)
    backend.start()
    history = History()
    tasks: list[asyncio.Task[None]] = []
    sent = 0
    for second in range(seconds):
        wave = 1 + (second // 30) % 3
        for _ in range(dice.choice((0, 0, 1, 1, wave))):
            sent += 1
            tasks.append(asyncio.create_task(_consume(backend, _request(sent, now, dice))))
        await asyncio.sleep(0)
        for _ in range(5):
            running = backend.snapshot().running if second % 10 == 0 else 6
            now += 0.16 + 0.006 * running + dice.expovariate(30)
            backend.step()
        await asyncio.sleep(0)
        active = "pirate" if second > seconds * 0.6 else None
        history.add(_with_preemptions(backend.snapshot(), int(second > seconds * 0.8)), active)
    snapshot = _with_preemptions(backend.snapshot(), 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    as_real = dataclasses.replace(
        snapshot, backend=MODEL.backend, dtype=MODEL.dtype, max_model_len=MODEL.max_model_len
    )
    return as_real, history


def _with_preemptions(snapshot: EngineSnapshot, number: int) -> EngineSnapshot:
    """The scripted engine preempts nobody."""
    counters = dataclasses.replace(snapshot.counters, preemptions=number)
    return dataclasses.replace(snapshot, counters=counters)


def _request(number: int, now: float, dice: random.Random) -> GenerationRequest:
    length = dice.choice((20, 40, 60, 160))
    return GenerationRequest(
        request_id=f"chat-{number}",
        prompt_token_ids=tuple(FakeBackend().text.encode("x" * length)),
        params=SamplingParams(max_tokens=dice.choice((12, 24, 40)), ignore_eos=True),
        arrival_time=now,
        adapter=dice.choice((None, "pirate", "pirate", "code")),
        label="chat",
    )


async def _consume(backend: FakeBackend, request: GenerationRequest) -> None:
    with suppress(asyncio.CancelledError):
        async for _ in backend.generate(request):
            continue


def speculation_view() -> SpeculationView:
    """Drafts that pay off for the base, and not for an adapter."""
    base = DraftCounts(lengths=(0, 40, 60, 80, 220), histogram=(90, 70, 80, 60, 100), rejected=250)
    code = DraftCounts(lengths=(0, 50, 70), histogram=(96, 20, 4), rejected=110)
    intervals = tuple(
        SpeculationInterval(
            start=5.0 * number,
            drafts=10,
            drafted=40,
            accepted=round(20 + 12 * math.sin(number / 9) + number % 3),
        )
        for number in range(120)
    )
    return SpeculationView(
        method="draft_model",
        draft="/srv/models/[bold]draft",
        num_tokens=5,
        always=False,
        counts=base,
        adapters=(
            AdapterSpeculation(adapter=None, counts=base, alpha=0.74, measured_speedup=1.38),
            AdapterSpeculation(
                adapter="code",
                counts=code,
                alpha=0.18,
                measured_speedup=0.93,
                off_for_s=21.0,
                reason="plain decoding was faster; tried again in 21 s",
            ),
        ),
        intervals=intervals,
        mean_length=3.2,
        draft_cost=0.12,
        verify_cost=1.21,
        plain_step_s=0.031,
        modelled_speedup=1.44,
        measured_speedup=1.31,
        notes=("The draft splits text as the model does.",),
    )


async def untouched() -> EngineSnapshot:
    """What an engine shows that has just started."""
    backend = FakeBackend(
        FakeScript(name=MODEL.name, step_s=None),
        clock=lambda: 1_000.0,
        wall_clock=lambda: WALL_TIME,
    )
    backend.start()
    return dataclasses.replace(
        backend.snapshot(),
        backend=MODEL.backend,
        dtype=MODEL.dtype,
        max_model_len=MODEL.max_model_len,
    )
