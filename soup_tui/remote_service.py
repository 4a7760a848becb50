"""A server somewhere else as the application sees a service."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from soup_engine.config import ServerConfig
from soup_engine.errors import SoupError
from soup_tui.drafts import drafts_sentence
from soup_tui.export_types import EXPORT_TYPES
from soup_tui.exports import cancel_sentence
from soup_tui.formatting import curl_line
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

if TYPE_CHECKING:
    from soup_engine.backends.remote import RemoteServer
    from soup_engine.config import SpeculativeConfig
    from soup_engine.export.state import ExportView
    from soup_engine.logs import LogEntry
    from soup_engine.metrics.snapshot import EngineSnapshot
    from soup_engine.sampling_params import SamplingParams

_MISSING = MappingProxyType(
    {
        Ability.STOP: "This server was started elsewhere: it goes on when you leave, and is"
        " stopped where it was started.",
        Ability.RESTART: "This server was started elsewhere: restart it there.",
    }
)

_TOLD_BY_HEALTH = {
    Ability.SLEEP: ("can_sleep", "This server cannot put its engine to sleep."),
    Ability.DRAFTS: ("can_switch_drafts", "This server drafts as it was started, if at all."),
}
"""Members of its health answer, and what is said where they are false."""


class RemoteService:
    """Implements ``Service`` over a server that is connected.

    Args:
        with_key: the server wants a key, so that the request to copy sends one.
    """

    export_types = EXPORT_TYPES

    def __init__(self, server: RemoteServer, *, with_key: bool) -> None:
        self._server = server
        lacking = {
            ability: sentence
            for ability, (member, sentence) in _TOLD_BY_HEALTH.items()
            if not server.health.get(member, False)
        }
        self.missing: Mapping[Ability, str] = MappingProxyType({**_MISSING, **lacking})
        self.address: str | None = server.url
        self.model = served_model(server.health)
        self.curl = curl_line(server.url, self.model.name, _reached_by(server.url, with_key))

    def snapshot(self) -> EngineSnapshot | None:
        return self._server.snapshot()

    def adapters(self) -> AdapterListing:
        return AdapterListing(self._server.adapters, self._server.refused)

    def logs(self, after: int) -> Sequence[LogEntry]:
        return self._server.logs(after)

    def chat(self, request: ChatRequest) -> ChatStream:
        reading: list[Any] = []

        def cancel() -> None:
            for stop in reading:
                stop()
            stream.finish("abort")

        stream = ChatStream(cancel)
        reader = _ChatReader(stream)
        try:
            reading.append(self._server.chat(chat_body(request), reader.take, reader.end))
        except SoupError as error:
            stream.fail(error)
        return stream

    def abort(self, request_id: str) -> bool:
        return self._server.abort(request_id)

    def activate(self, name: str | None) -> float | None:
        return self._server.activate(name)

    def load_adapter(self, name: str, path: str, *, replace: bool = False) -> str:
        return self._server.load_adapter(name, path, replace=replace)

    def unload_adapter(self, name: str) -> str:
        return self._server.unload_adapter(name)

    def sleep(self, drain_timeout_s: float) -> str:
        """How long running requests may go on, if at all, is the server's own setting."""
        return self._server.sleep(drain=drain_timeout_s > 0)

    def wake(self, on_progress: ProgressCallback) -> str:  # noqa: ARG002 the server reports none
        return self._server.wake()

    def speculate(self, config: SpeculativeConfig) -> str:
        view = self._server.speculate(dataclasses.asdict(config))
        return drafts_sentence(view.method, view.num_tokens)

    def exports(self) -> Sequence[ExportView]:
        return self._server.exports

    def start_export(self, order: ExportOrder) -> str:
        view = self._server.start_export(dataclasses.asdict(order))
        return f"Exporting to {view.target} on the server."

    def cancel_export(self, job_id: str) -> str:
        return cancel_sentence(self._server.cancel_export(job_id))

    def close(self, leave: Leave, drain_timeout_s: float = 0.0) -> None:  # noqa: ARG002 no say in it
        """Stop looking; the server goes on however the application is left."""
        self._server.close()


class _ChatReader:
    """Chunks of a chat completion into the stream that the application drains."""

    def __init__(self, stream: ChatStream) -> None:
        self._stream = stream
        self._finish_reason = "stop"
        self._output_tokens: int | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("usage"):
            self._output_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            self._stream.put(text, output_tokens=bool(text), answered_by=chunk["model"])
            self._finish_reason = choice["finish_reason"] or self._finish_reason

    def end(self, error: SoupError | None) -> None:
        if error is not None:
            self._stream.fail(error)
        else:
            self._stream.finish(self._finish_reason, self._output_tokens)


def chat_body(request: ChatRequest) -> dict[str, Any]:
    """A conversation as the body of a streamed chat completion."""
    messages = [{"role": role, "content": content} for role, content in request.messages]
    return {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": request.label,
        **({} if request.adapter is None else {"adapter": request.adapter}),
        **_sampling(request.params),
    }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """All fields of the sampling parameters that say something; the chat of the workbench shows
    no log-probabilities and asks for none."""
    given = {item.name: getattr(params, item.name) for item in dataclasses.fields(params)}
    del given["logprobs"]
    named = {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }
    named["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return {name: value for name, value in named.items() if value not in (None, [], {})}


def served_model(health: Mapping[str, Any]) -> ServedModel:
    """What a server says of itself to those who have its key."""
    return ServedModel(
        name=health["model"],
        source="",
        architecture=health.get("architecture", ""),
        backend=health["backend"],
        device=health["device"],
        dtype=health["dtype"],
        kv_cache_type=health["kv_cache_type"],
        max_model_len=health["max_model_len"],
        max_num_seqs=health["max_num_seqs"],
        num_parameters=health.get("num_parameters", 0),
        has_chat_template=health.get("has_chat_template", True),
        notes=tuple(health["notes"]),
    )


def _reached_by(url: str, with_key: bool) -> ServerConfig:
    """What of a server's settings a client must know to reach it."""
    uds = Path(url.removeprefix("unix:")) if url.startswith("unix:") else None
    return ServerConfig(uds=uds, api_key="set" if with_key else None)
