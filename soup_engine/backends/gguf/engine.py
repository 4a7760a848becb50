"""llama.cpp as a ``ForeignEngine``.

It reads adapters only when it starts. So to load one is to start another server beside the one that
runs, over the same file, whose pages both share; new requests go to the new one, and the old one is
closed when its answers have ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx

from soup_engine.backends.base import ProgressCallback
from soup_engine.backends.foreign.engine import AdapterCopy, Arrival, EngineFacts, ReportStep
from soup_engine.backends.gguf.adapters import ADAPTER_FILE
from soup_engine.backends.gguf.answer import AnswerReader, TokenBytes
from soup_engine.backends.gguf.description import GgufDescription
from soup_engine.backends.gguf.planning import Plan
from soup_engine.backends.gguf.sampling import completion_request
from soup_engine.backends.gguf.server import PADDING, LlamaCppServer
from soup_engine.backends.gguf.tally import StepTally
from soup_engine.core.plan import SampledToken
from soup_engine.core.sequence import Sequence
from soup_engine.engine.vocabulary import Vocabulary
from soup_engine.errors import (
    AdapterInvalidError,
    EngineStepError,
    EngineStoppedError,
    InvalidValueError,
    ModelLoadError,
)

logger = logging.getLogger(__name__)

_DEAD = "llama.cpp's server does not answer any more."
_DATA = "data: "


class GgufEngine:
    """One GGUF file, served."""

    process_ids = ()

    def __init__(self, description: GgufDescription, plan: Plan) -> None:
        self._description = description
        self._plan = plan
        self._server: LlamaCppServer | None = None
        self._client: httpx.AsyncClient | None = None
        self._token_bytes: TokenBytes | None = None
        self._tally: StepTally | None = None
        self._adapters: list[AdapterCopy] = []
        """Those of the present server, in its order."""
        self._unloaded: set[int] = set()
        self._slots = asyncio.Semaphore(plan.server.slots)
        self._changing = asyncio.Lock()
        self._dead = False

    async def start(self, report: ReportStep, on_progress: ProgressCallback) -> EngineFacts:
        plan, described = self._plan, self._description
        on_progress(f"loading {described.path.name} into llama.cpp", None)
        try:
            self._server = await asyncio.to_thread(LlamaCppServer, plan.server, ())
        except RuntimeError as error:
            raise ModelLoadError(
                f"llama.cpp does not load {described.path}: the file is damaged, needs more memory"
                f" than there is, or its architecture ({described.file.architecture}) is not known"
                " to this release of xllamacpp."
            ) from error
        # A connection for each answer: to close it ends the answer. What waits, waits here.
        alone = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(timeout=None, trust_env=False, limits=alone)
        vocabulary = Vocabulary(described.tokenizer)
        token_ids = described.tokenizer.get_vocab().values()
        self._token_bytes = await asyncio.to_thread(TokenBytes, vocabulary, token_ids)
        self._tally = StepTally(report, kv_tokens=plan.kv_tokens)
        return EngineFacts(
            device=plan.device,
            dtype=described.weights_type,
            kv_cache_type=plan.server.kv_type,
            kv_cache_bytes=plan.kv_bytes,
            kv_blocks=plan.kv_tokens // PADDING,
            block_size=PADDING,
            max_model_len=plan.server.max_model_len,
            notes=plan.notes,
            encode=self._encode,
        )

    async def stream(
        self, sequence: Sequence, adapter: AdapterCopy | None
    ) -> AsyncGenerator[Arrival, None]:
        assert self._token_bytes is not None and self._tally is not None, "it has started"
        tally = self._tally
        with tally.answering(sequence):
            async with self._slots, self._server_with(adapter) as server:
                scheduled = time.monotonic()
                tally.scheduled(sequence)
                reader = AnswerReader(self._token_bytes, sequence.params.logprobs)
                body = self._body(sequence, adapter)
                async with aclosing(self._events(server, body)) as events:
                    async for event in events:
                        tokens = reader.read(event)
                        if sequence.finished:
                            continue  # it says no more than that it has ended
                        tally.generated(sequence, len(tokens), cached=reader.cached_tokens)
                        yield Arrival(
                            tokens=tokens,
                            last=self._is_last(sequence, reader, tokens),
                            scheduled_time=scheduled,
                            cached_tokens=reader.cached_tokens,
                        )
                if not sequence.finished:
                    rest = await self._rest(server, body, reader)
                    tally.generated(sequence, len(rest), cached=reader.cached_tokens)
                    yield Arrival(tokens=rest, last=True, cached_tokens=reader.cached_tokens)

    def abandon_start(self) -> None:
        """llama.cpp reads a file in this process, and is not to be interrupted at it."""

    def why_dead(self) -> str | None:
        return _DEAD if self._dead else None

    async def load_adapter(self, adapter: AdapterCopy) -> None:
        async with self._changing:
            if self._has(adapter):
                return
            adapters = [each for each in self._adapters if each.number not in self._unloaded]
            adapters.append(adapter)
            files = [each.folder / ADAPTER_FILE for each in adapters]
            try:
                server = await asyncio.to_thread(LlamaCppServer, self._plan.server, files)
            except RuntimeError as error:
                raise AdapterInvalidError(
                    "llama.cpp does not take the adapter, or there is no room beside the model for"
                    " the moment in which it is changed over to it."
                ) from error
            old, self._server, self._adapters = self._server, server, adapters
            self._unloaded &= {each.number for each in adapters}
        if old is not None:
            old.retired = True
            await self._close_if_done(old)

    async def unload_adapter(self, adapter: AdapterCopy) -> None:
        """It stays in the memory of the present server, worn by nobody, and out of the next."""
        self._unloaded.add(adapter.number)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.close)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """From any thread."""
        while True:
            server = self._server
            if server is None:
                raise EngineStoppedError("llama.cpp is not running, so it reads no text.")
            try:
                return server.tokenize(text, add_special_tokens)
            except EngineStoppedError:
                if self._server is server:
                    raise

    @asynccontextmanager
    async def _server_with(self, adapter: AdapterCopy | None) -> AsyncIterator[LlamaCppServer]:
        """The present server, kept as long as it is used."""
        if adapter is not None and not self._has(adapter):
            # This engine stands in for one that died.
            await self.load_adapter(adapter)
        server = self._server
        if server is None:
            raise EngineStoppedError(_DEAD)
        server.users += 1
        try:
            yield server
        finally:
            server.users -= 1
            await self._close_if_done(server)

    def _has(self, adapter: AdapterCopy) -> bool:
        return any(loaded.number == adapter.number for loaded in self._adapters)

    async def _close_if_done(self, server: LlamaCppServer) -> None:
        if server.retired and not server.users:
            server.retired = False
            await asyncio.shield(asyncio.to_thread(server.close))

    def _body(self, sequence: Sequence, adapter: AdapterCopy | None) -> dict[str, Any]:
        body = completion_request(
            sequence.token_ids[: sequence.num_prompt_tokens],
            sequence.params,
            index=sequence.index,
            reuse_prompt=self._plan.reuse_prompts,
        )
        worn = None if adapter is None else adapter.number
        body["lora"] = [
            {"id": place, "scale": float(loaded.number == worn)}
            for place, loaded in enumerate(self._adapters)
        ]
        return body

    async def _events(
        self, server: LlamaCppServer, body: Mapping[str, Any]
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """What comes of a request. Closing this closes the connection, which ends the answer.

        Raises:
            InvalidValueError, EngineStepError, EngineStoppedError: as ``ForeignEngine.stream``.
        """
        assert self._client is not None, "it has started"
        url = f"{server.address}/completion"
        with self._connecting():
            async with self._client.stream(
                "POST", url, json=body, headers=server.headers
            ) as answer:
                if answer.is_error:
                    raise _refusal(await answer.aread())
                async for line in answer.aiter_lines():
                    if line.startswith(_DATA):
                        event = json.loads(line.removeprefix(_DATA))
                        if "error" in event:
                            raise _failure(event)
                        yield event

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            self._dead = True
            raise EngineStoppedError(_DEAD) from error
        except httpx.TransportError as error:
            raise EngineStepError("llama.cpp broke off this answer.") from error

    def _is_last(
        self, sequence: Sequence, reader: AnswerReader, tokens: tuple[SampledToken, ...]
    ) -> bool:
        """Whether llama.cpp says no more than that it has ended."""
        if not tokens:
            return False
        ended = tokens[-1].token_id in self._description.eos_token_ids
        return ended or len(reader.token_ids) >= sequence.params.max_tokens

    async def _rest(
        self, server: LlamaCppServer, body: Mapping[str, Any], reader: AnswerReader
    ) -> tuple[SampledToken, ...]:
        """The last tokens of an answer that ends within a character, which were not told.

        They are drawn once more: the same ones where the best ones are taken.
        """
        if reader.ended_by_token:
            # An end token of which only llama.cpp knows is as good as one that the file names.
            return tuple(map(SampledToken, sorted(self._description.eos_token_ids)[:1]))
        if not reader.left_out:
            return ()
        assert self._client is not None, "it has started"
        again = {
            **body,
            "prompt": [*body["prompt"], *reader.token_ids],
            "n_predict": reader.left_out,
            "stream": False,
        }
        url = f"{server.address}/completion"
        with self._connecting():
            answer = await self._client.post(url, json=again, headers=server.headers)
        if answer.is_error:
            raise _refusal(answer.content)
        return tuple(SampledToken(int(token_id)) for token_id in answer.json()["tokens"])


def _refusal(content: bytes) -> InvalidValueError:
    try:
        reason = str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = "it does not say why"
    return InvalidValueError(f"llama.cpp refuses the request: {' '.join(reason.split())[:300]}.")


def _failure(event: Mapping[str, Any]) -> EngineStepError:
    logger.error("llama.cpp failed at a request: %s", event["error"])
    return EngineStepError("llama.cpp failed at this request; the log says why.")
