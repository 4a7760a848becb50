"""A GGUF file served over real HTTP, beside the same weights on our own engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from soup_engine.config import AdapterConfig, ServerConfig
from soup_engine.runtime import Runtime
from tests.support.gguf_models import TwoForms, client_of, make_backend, make_two_forms

WAIT_S = 10.0


@pytest.fixture(scope="session")
def two_forms(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TwoForms]:
    """The tiny model with a kind of tokenizer; each is made once."""
    made: dict[str, TwoForms] = {}

    def forms(tokenizer: str) -> TwoForms:
        if tokenizer not in made:
            made[tokenizer] = make_two_forms(tmp_path_factory.mktemp(tokenizer), tokenizer)
        return made[tokenizer]

    return forms


@pytest.fixture(scope="session")
def adapters(two_forms: Callable[[str], TwoForms]) -> dict[str, tuple[Path, Path]]:
    """Two adapters of the model with bytes, each as a folder and as a file."""
    forms = two_forms("bytes")
    return {name: forms.adapter(name, seed=seed) for seed, name in enumerate(("one", "two"), 1)}


@pytest.fixture(scope="module")
def served(
    two_forms: Callable[[str], TwoForms], adapters: dict[str, tuple[Path, Path]]
) -> Iterator[Runtime]:
    """The file with both adapters, from a working directory that they lie in."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(two_forms("bytes").file.parent)
        runtime = Runtime(
            make_backend(two_forms("bytes").file, "gguf"),
            ServerConfig(port=0),
            adapters=AdapterConfig(at_start=tuple((n, file) for n, (_, file) in adapters.items())),
        )
    with runtime:
        yield runtime
        registry = runtime.adapters.registry
        assert registry is not None
        registry.check_integrity()


@pytest.fixture(scope="module")
def ours(
    two_forms: Callable[[str], TwoForms], adapters: dict[str, tuple[Path, Path]]
) -> Iterator[Runtime]:
    """The folder on the backend transformers."""
    with Runtime(
        make_backend(two_forms("bytes").folder, "transformers"),
        ServerConfig(port=0),
        adapters=AdapterConfig(at_start=tuple((n, folder) for n, (folder, _) in adapters.items())),
    ) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def client(served: Runtime) -> Iterator[openai.OpenAI]:
    with client_of(served) as made:
        yield made


@pytest.fixture(scope="module")
def our_client(ours: Runtime) -> Iterator[openai.OpenAI]:
    with client_of(ours) as made:
        yield made


@pytest.fixture
def http(served: Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address or "", timeout=30) as made:
        yield made


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait
