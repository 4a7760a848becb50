from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
import torch

from soup_engine.core.sequence import Sequence
from soup_engine.sampling_params import SamplingParams

SequenceFactory = Callable[..., Sequence]


@pytest.fixture
def make_sequence() -> SequenceFactory:
    ids = count()

    def make(
        prompt: Iterable[int] = (1,), output: Iterable[int] = (), *, index: int = 0, **params: Any
    ) -> Sequence:
        sequence_id = next(ids)
        prompt = list(prompt)
        return Sequence(
            sequence_id=sequence_id,
            request_id=f"request-{sequence_id}",
            index=index,
            token_ids=[*prompt, *output],
            num_prompt_tokens=len(prompt),
            params=SamplingParams(**params),
            arrival_time=0.0,
        )

    return make


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
