"""The engine without threads and requests from outside: prompts in, answers out, step by step."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from soup_engine.adapters.records import AdapterLease
from soup_engine.adapters.registry import AdapterRegistry
from soup_engine.backends.adapter_loader import AdapterLoader
from soup_engine.config import EngineConfig
from soup_engine.engine.capacity import plan_capacity
from soup_engine.engine.drafting import Draft
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.errors import DraftError, EngineStepError, RequestError
from soup_engine.lora.residency import HostTier
from soup_engine.messages import AdapterBinding, DraftCounts, FinishReason, GenerationRequest
from soup_engine.metrics.recorder import EngineMetrics
from soup_engine.model.loader import LoadedModel
from soup_engine.prompt_file import FilePrompt
from soup_engine.sampling_params import SamplingParams


@dataclass(slots=True)
class Answer:
    """What came for a prompt so far."""

    prompt: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    finished: bool = False


class OfflineEngine:
    """An engine on the caller's thread.

    Args:
        config: what it does with drafts is up to whoever holds it.
        draft: room is kept for its keys and values.
    """

    def __init__(self, target: LoadedModel, config: EngineConfig, draft: Draft | None) -> None:
        layout = None if draft is None or draft.model is None else draft.model.model.layout
        self._host = HostTier()
        registry = AdapterRegistry([target.base_name], on_free=self._host.free)
        self.engine = LLMEngine(
            target,
            config,
            plan_capacity(config, target, layout),
            EngineMetrics(),
            adapters=self._host,
            release_lease=_released_by(registry),
        )
        self.adapters = AdapterLoader(
            registry,
            self._host,
            self.engine.adapter_sites,
            target.base_modules,
            served=target.base_name,
            max_rank=config.lora.max_rank,
        )
        self._numbers = itertools.count()
        self._max_waiting = config.scheduler.max_num_seqs

    def answer(
        self,
        prompts: Rows[tuple[int, ...]],
        params: Rows[SamplingParams],
        *,
        adapter: str | None = None,
        between_steps: Callable[[Rows[Answer]], bool] = lambda _answers: True,
    ) -> list[Answer]:
        """Answer all prompts, as many together as the engine lets run.

        Args:
            params: of each prompt.
            adapter: that all of them wear.
            between_steps: called after each step with all answers; False ends those that are left.

        Raises:
            EngineStepError: a step failed.
        """
        answers: dict[str, Answer] = {}
        pending = deque(zip(prompts, params, strict=True))
        try:
            while pending or self.engine.has_work:
                while pending and self.engine.num_waiting < self._max_waiting:
                    request = self._request(*pending.popleft(), adapter)
                    answers[request.request_id] = Answer(request.prompt_token_ids)
                    self.engine.add_request(request)
                for output in self.engine.step():
                    known = answers[output.request_id]
                    known.token_ids.extend(output.token_ids)
                    known.drafts = output.drafts or known.drafts
                    known.finished = output.finish_reason is not None
                    if output.finish_reason is FinishReason.ERROR:
                        raise output.error or EngineStepError("A step of the engine failed.")
                if not between_steps(list(answers.values())):
                    break
        finally:
            for request_id, known in answers.items():
                if not known.finished:
                    for output in self.engine.abort(request_id):
                        known.drafts = output.drafts or known.drafts
        return list(answers.values())

    def _request(
        self, prompt: tuple[int, ...], params: SamplingParams, adapter: str | None
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=str(next(self._numbers)),
            prompt_token_ids=prompt,
            params=params,
            arrival_time=time.monotonic(),
            adapter=adapter,
            lease=None if adapter is None else self.adapters.registry.bind(adapter, None),
        )


def _released_by(registry: AdapterRegistry) -> Callable[[AdapterBinding, int], None]:
    def release(lease: AdapterBinding, tokens: int) -> None:
        assert isinstance(lease, AdapterLease), "leases come from the registry"
        registry.release(lease, tokens=tokens)

    return release


def render_prompts(
    text: InputProcessor, prompts: Rows[FilePrompt], template: str | None = None
) -> list[tuple[int, ...]]:
    """Token ids of each chat, in the model's chat template or another one.

    Raises:
        DraftError: the template refuses one; says in which line it is.
    """
    rendered = []
    for prompt in prompts:
        try:
            rendered.append(text.render_chat(prompt.as_chat(), template=template))
        except RequestError as error:
            raise DraftError(
                f"Line {prompt.line} of the prompts cannot be asked: {error.message}"
            ) from error
    return rendered


def fitting(
    prompts: Rows[tuple[int, ...]], max_tokens: int, max_model_len: int
) -> list[tuple[int, ...]]:
    """The prompts that leave room for an answer.

    Raises:
        DraftError: there is none.
    """
    found = [prompt for prompt in prompts if prompt and len(prompt) + max_tokens <= max_model_len]
    if not found:
        raise DraftError(
            f"None of the {len(prompts)} prompts leaves room for {max_tokens} tokens of answer in"
            f" a context of {max_model_len}: use shorter ones, or a smaller --max-tokens."
        )
    return found
