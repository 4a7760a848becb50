"""A snapshot as the JSON and as the Prometheus text of ``/metrics``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from soup_engine.messages import AdapterView, FinishReason
from soup_engine.metrics.snapshot import (
    CumulativeHistogram,
    EngineSnapshot,
    Percentiles,
    SpeculationView,
)

_OPENMETRICS = "application/openmetrics-text"
# Asked for any other escaping, prometheus_client turns the colons in sample names into
# underscores. With this one our names, which need no escaping, come out as they are.
_OPENMETRICS_ENCODING = f"{_OPENMETRICS}; version=1.0.0; escaping=allow-utf-8"
_OPENMETRICS_CONTENT_TYPE = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"

_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("ttft", "Accepted to first token."),
    "vllm:inter_token_latency_seconds": ("itl", "Gaps between output events of an answer."),
    "vllm:request_time_per_output_token_seconds": (
        "tpot",
        "Mean time of an answer's output tokens after the first.",
    ),
    "vllm:e2e_request_latency_seconds": ("e2e", "Accepted to finished, however it ended."),
    "vllm:request_queue_time_seconds": ("queue", "Accepted to first scheduled."),
    "vllm:request_inference_time_seconds": ("inference", "First scheduled to finished."),
    "vllm:request_prefill_time_seconds": ("prefill", "First scheduled to first token."),
    "vllm:request_decode_time_seconds": ("decode", "First token to finished."),
    "vllm:request_prompt_tokens": ("prompt_tokens", "Prompt tokens of an answer."),
    "vllm:request_prefill_kv_computed_tokens": (
        "prefill_tokens",
        "Prompt tokens of an answer that were not found in the prefix cache.",
    ),
    "vllm:request_generation_tokens": ("generation_tokens", "Output tokens of an answer."),
    # In vLLM the longest of a request's n answers. Here every answer counts by itself, which is
    # the same for n = 1.
    "vllm:request_max_num_generation_tokens": ("generation_tokens", "Output tokens of an answer."),
    "vllm:iteration_tokens_total": ("iteration_tokens", "Tokens of an engine step."),
    "vllm:request_num_preemptions": ("request_preemptions", "Preemptions of an answer."),
    "soup:step_duration_seconds": ("step", "Duration of an engine step."),
}
"""Name in ``EngineSnapshot.histograms`` and help, by family. A backend that does not measure
something has no such family."""


def render_json(snapshot: EngineSnapshot) -> dict[str, Any]:
    """The metrics as strict JSON: no NaN, no infinity, ``None`` where there is no figure.

    Times are milliseconds. ``latency_*`` are E2E over the last 1,000 requests, failures
    included; ``windows`` are by length (``1m``, ``5m``, ``15m``) and measure.
    """
    counters, kv, latency = snapshot.counters, snapshot.kv, snapshot.recent_e2e
    hits, queries = counters.prefix_hits, counters.prefix_queries
    return {
        "state": snapshot.state,
        "model": snapshot.model,
        "uptime_s": _finite(snapshot.uptime_s),
        "requests_total": counters.requests,
        "requests_rejected_total": counters.rejected,
        "answers_finished_total": dict(counters.finished_by_reason),
        "client_disconnects_total": counters.disconnects,
        "prompt_tokens_total": counters.prompt_tokens,
        "tokens_generated_total": counters.generation_tokens,
        "active_requests": snapshot.running,
        "waiting_requests": snapshot.waiting,
        "latency_p50_ms": _milliseconds(latency.p50),
        "latency_p95_ms": _milliseconds(latency.p95),
        "latency_p99_ms": _milliseconds(latency.p99),
        "latency_samples": latency.samples,
        "windows": {
            f"{seconds // 60}m": {name: _percentiles(item) for name, item in measures.items()}
            for seconds, measures in snapshot.windows.items()
        },
        "tokens_per_s": _finite(snapshot.tokens_per_s),
        "prompt_tokens_per_s": _finite(snapshot.prompt_tokens_per_s),
        "kv_cache": {
            "used_fraction": _finite(kv.used_fraction),
            "used_bytes": kv.used_bytes,
            "budget_bytes": kv.budget_bytes,
            "row_blocks_used": kv.row_blocks_used,
            "row_blocks_total": kv.row_blocks_total,
            "prefix_blocks_used": kv.prefix_blocks_used,
            "prefix_blocks_total": kv.prefix_blocks_total,
        },
        "preemptions_total": counters.preemptions,
        "prefix_cache": {
            "queried_tokens_total": queries,
            "hit_tokens_total": hits,
            "hit_rate": _finite(hits / queries) if queries else None,
        },
        "steps_total": counters.steps,
        "memory_rss_bytes": snapshot.memory_rss_bytes,
        "speculation": _speculation(snapshot.speculation),
    }


def render_prometheus(
    snapshot: EngineSnapshot, accept: str = "", adapters: Sequence[AdapterView] = ()
) -> tuple[bytes, str]:
    """The metrics as Prometheus text, and its content type.

    OpenMetrics 1.0 when the ``Accept`` header names it, else the classic text format. Names,
    labels and buckets are those of vLLM, so that its Grafana dashboards fit; what vLLM has no
    name for is called ``soup:``.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, adapters))
    accepted = (item.partition(";")[0].strip().lower() for item in accept.split(","))
    if _OPENMETRICS in accepted:
        encode, _ = choose_encoder(_OPENMETRICS_ENCODING)
        return encode(registry), _OPENMETRICS_CONTENT_TYPE
    # The header itself is not handed on: choose_encoder fails on a malformed version in it.
    encode, content_type = choose_encoder("")
    return encode(registry), content_type


def _speculation(view: SpeculationView | None) -> dict[str, Any] | None:
    if view is None:
        return None
    counts = view.counts
    return {
        "method": view.method,
        "drafts_total": counts.drafts,
        "draft_tokens_total": counts.drafted,
        "accepted_tokens_total": counts.accepted,
        "accepted_tokens_by_position_total": list(counts.accepted_by_position),
        "acceptance_rate": _finite(counts.acceptance_rate),
        "mean_acceptance_length": _finite(counts.mean_acceptance_length),
        "alpha": _finite(counts.alpha),
        "modelled_speedup": _finite(view.modelled_speedup),
        "measured_speedup": _finite(view.measured_speedup),
    }


def _finite(value: float | None) -> float | None:
    """Rounded to what a reader can use."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else _finite(seconds * 1000)


def _percentiles(item: Percentiles) -> dict[str, float | None]:
    return {
        "samples": item.samples,
        "p50_ms": _milliseconds(item.p50),
        "p95_ms": _milliseconds(item.p95),
        "p99_ms": _milliseconds(item.p99),
        "mean_ms": _milliseconds(item.mean),
    }


class _SnapshotCollector(Collector):
    """The metric families of one snapshot and of the adapters at that time."""

    def __init__(self, snapshot: EngineSnapshot, adapters: Sequence[AdapterView]) -> None:
        self._snapshot = snapshot
        self._adapters = adapters
        self._labels = {"model_name": snapshot.model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._by_adapter()
        if self._snapshot.speculation is not None:
            yield from self._drafts(self._snapshot.speculation)
        for name, (key, documentation) in _HISTOGRAMS.items():
            if key in self._snapshot.histograms:
                yield self._histogram(name, documentation, self._snapshot.histograms[key])

    def _gauges(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield self._gauge("vllm:num_requests_running", "Answers in progress.", snapshot.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", snapshot.waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV memory budget in use; 1 is all of it.",
            snapshot.kv.used_fraction,
        )
        yield self._gauge(
            "soup:kv_cache_budget_bytes", "KV memory budget.", snapshot.kv.budget_bytes
        )
        yield self._gauge(
            "soup:resident_memory_bytes",
            "Resident memory of the process.",
            snapshot.memory_rss_bytes,
        )
        yield self._gauge("soup:uptime_seconds", "Since the engine started.", snapshot.uptime_s)
        info = InfoMetricFamily("soup:engine", "What serves.", labels=tuple(self._labels))
        about = {"backend": snapshot.backend, "device": snapshot.device, "dtype": snapshot.dtype}
        info.add_metric(tuple(self._labels.values()), {**about, "state": snapshot.state})
        yield info

    def _counters(self) -> Iterator[Metric]:
        counters = self._snapshot.counters
        hits, computed = counters.prefix_hits, counters.prompt_tokens
        by_reason = counters.finished_by_reason
        for name, documentation, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found.", hits),
            ("vllm:num_preemptions", "Preemptions.", counters.preemptions),
            ("vllm:prompt_tokens", "Prompt tokens computed or found.", computed + hits),
            ("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.", hits),
            ("vllm:generation_tokens", "Output tokens.", counters.generation_tokens),
            ("soup:requests_accepted", "Requests taken into the queue.", counters.requests),
            ("soup:requests_rejected", "Requests refused before the queue.", counters.rejected),
            ("soup:client_disconnects", "Clients gone before the end.", counters.disconnects),
            ("soup:engine_steps", "Engine steps.", counters.steps),
        ):
            yield self._counter(name, documentation, [({}, value)])
        yield self._counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens, by where their keys and values came from.",
            [({"source": "local_compute"}, computed), ({"source": "local_cache_hit"}, hits)],
        )
        yield self._counter(
            "vllm:request_success",
            "Finished answers, by reason, those that ended badly included.",
            [
                ({"finished_reason": reason.value}, by_reason.get(reason.value, 0))
                for reason in FinishReason
            ],
        )

    def _by_adapter(self) -> Iterator[Metric]:
        if not self._adapters:
            return
        running = GaugeMetricFamily("soup:adapter_requests_running", "Requests of an adapter.")
        for view in self._adapters:
            labels = {**self._labels, "adapter": view.name}
            running.add_sample("soup:adapter_requests_running", labels, view.running)
        yield running
        yield self._counter(
            "soup:adapter_requests",
            "Requests that an adapter was chosen for.",
            [({"adapter": view.name}, view.requests) for view in self._adapters],
        )
        yield self._counter(
            "soup:adapter_generation_tokens",
            "Output tokens of an adapter's requests that have ended.",
            [({"adapter": view.name}, view.tokens) for view in self._adapters],
        )

    def _drafts(self, speculation: SpeculationView) -> Iterator[Metric]:
        counts = speculation.counts
        for name, documentation, value in (
            ("vllm:spec_decode_num_drafts", "Drafts that were verified.", counts.drafts),
            ("vllm:spec_decode_num_draft_tokens", "Drafted tokens.", counts.drafted),
            ("vllm:spec_decode_num_accepted_tokens", "Accepted tokens.", counts.accepted),
        ):
            yield self._counter(name, documentation, [({}, value)])
        by_position = list(counts.accepted_by_position)
        by_position += [0] * (speculation.num_tokens - len(by_position))
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by their position in a draft.",
            [({"position": str(place)}, value) for place, value in enumerate(by_position)],
        )
        adapters = [(item.adapter or "", item.counts) for item in speculation.adapters]
        yield self._counter(
            "soup:adapter_spec_decode_num_draft_tokens",
            "Drafted tokens by adapter, empty for the base.",
            [({"adapter": name}, item.drafted) for name, item in adapters],
        )
        yield self._counter(
            "soup:adapter_spec_decode_num_accepted_tokens",
            "Accepted tokens by adapter, empty for the base.",
            [({"adapter": name}, item.accepted) for name, item in adapters],
        )

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation)
        family.add_sample(name, self._labels, value)
        return family

    def _counter(
        self, name: str, documentation: str, samples: Iterable[tuple[dict[str, str], float]]
    ) -> Metric:
        family = CounterMetricFamily(name, documentation)
        for labels, value in samples:
            family.add_sample(f"{name}_total", {**self._labels, **labels}, value)
        return family

    def _histogram(self, name: str, documentation: str, histogram: CumulativeHistogram) -> Metric:
        family = HistogramMetricFamily(name, documentation, labels=tuple(self._labels))
        bounds = (*map(floatToGoString, histogram.bounds), "+Inf")
        buckets = list(zip(bounds, (*histogram.counts, histogram.count), strict=True))
        family.add_metric(tuple(self._labels.values()), buckets, sum_value=histogram.total)
        return family
