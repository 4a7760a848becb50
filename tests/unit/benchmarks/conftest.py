from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.environments import Environment
from benchmarks.fleet import Start
from benchmarks.prompts import PromptMaker
from benchmarks.servers import Server, Settings

PROGRAM = Path(__file__).with_name("streaming_server.py")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer, which is all that the harness reads of a model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(
        ["In 1900, at noon, the baker painted a silver key near the harbour."], trainer
    )
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def prompts(model_folder: Path) -> PromptMaker:
    return PromptMaker(model_folder, seed=0)


@pytest.fixture
def settings(model_folder: Path) -> Settings:
    return Settings(model=model_folder, dtype="float32")


@pytest.fixture
def streaming_server() -> Callable[..., Start]:
    """Makes the start of a real server process that streams made-up answers."""

    def make(called: str = "soup", **options: float) -> Start:
        class Streaming(Server):
            name = called
            environment = Environment(name="none", requirements=())
            packages = ()

            def command(self, python: Path, settings: Settings, port: int) -> list[str]:
                assert settings.model.is_dir()
                given: list[Any] = [f"{name}={value}" for name, value in options.items()]
                return [str(python), str(PROGRAM), str(port), *given]

        return Start(Streaming(), Path(sys.executable))

    return make
