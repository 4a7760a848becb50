"""Models of a stand-in for Ollama, which reads Modelfiles by the documented grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from soup_engine.errors import ExportError, ExportNotFoundError, ExportToolError, StateFileError
from soup_engine.export.ollama.deploy import Deployment, deploy, remove
from soup_engine.export.ollama.deployed import DeployedModels
from tests.support.chat_templates import CHATML, GEMMA


def save_gguf(path: Path, template: str | None, kind: str = "model") -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_token_list(["<s>", "</s>"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    folder = tmp_path / "my models"
    folder.mkdir()
    return save_gguf(folder / "a b.gguf", CHATML)


def made(kept: Path, name: str) -> list[Any]:
    return [tuple(item) for item in json.loads((kept / name).read_text())]


def test_deploy_list_remove(ollama: Path, gguf: Path) -> None:
    done = deploy(
        Deployment(path=gguf, name="me", system='Say "x"', parameters=(("num_ctx", "2048"),))
    )
    assert done.notes == ()
    commands = made(ollama, "me")
    assert [name for name, _ in commands] == [
        *("from", "template", "system", "parameter stop", "parameter num_ctx")
    ]
    assert dict(commands)["from"] == str(gguf)
    assert dict(commands)["system"] == 'Say "x"'
    assert "<|im_start|>" in dict(commands)["template"]
    (listed,) = DeployedModels().all()
    assert (listed.name, listed.path, listed.template) == ("me", str(gguf), "chatml")
    (ollama / "foreign").write_text("[]")
    with pytest.raises(ExportNotFoundError, match="No model 'foreign' was deployed by soup"):
        remove("foreign")
    assert (ollama / "foreign").exists()
    remove("me")
    assert not (ollama / "me").exists()
    assert DeployedModels().all() == ()


def test_the_models_own_system_prompt_is_kept(ollama: Path, gguf: Path) -> None:
    deploy(Deployment(path=gguf, name="me"))
    assert dict(made(ollama, "me"))["system"] == "You are a test."
    deploy(Deployment(path=gguf, name="me", system=""))
    assert dict(made(ollama, "me"))["system"] == ""
    assert len(DeployedModels().all()) == 1


def test_templates_that_do_not_fit(ollama: Path, tmp_path: Path) -> None:
    own_kind = save_gguf(tmp_path / "gemma.gguf", GEMMA)
    without = save_gguf(tmp_path / "bare.gguf", None)
    for path, why in ((own_kind, "of its own kind"), (without, "carries no chat template")):
        with pytest.raises(ExportError, match=f"{why}: choose one of chatml"):
            deploy(Deployment(path=path, name="me"))
    assert list(ollama.iterdir()) == []
    assert deploy(Deployment(path=without, name="a", template="vicuna")).notes == ()
    (note,) = deploy(Deployment(path=own_kind, name="b", template="vicuna")).notes
    assert "otherwise than the model's own" in note


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**11 }}",
        "{{ range(10**9) }}",
        "{{ 9**9**9 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_hostile_template_does_no_harm(ollama: Path, tmp_path: Path, template: str) -> None:
    path = save_gguf(tmp_path / "hostile.gguf", template)
    with pytest.raises(ExportError, match="of its own kind: choose one of chatml"):
        deploy(Deployment(path=path, name="me"))
    assert list(ollama.iterdir()) == []


def test_an_adapter_is_no_model(ollama: Path, tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "lora.gguf", None, kind="adapter")
    with pytest.raises(ExportError, match="holds no model but an adapter"):
        deploy(Deployment(path=path, name="me", template="chatml"))
    assert list(ollama.iterdir()) == []


def test_what_goes_wrong_is_said(
    ollama: Path, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not GGUF at all")
    for path, why in ((tmp_path / "x.gguf", "cannot be read as GGUF"), (tmp_path / "y", "no file")):
        with pytest.raises(ExportError, match=why):
            deploy(Deployment(path=path, name="me"))
    deploy(Deployment(path=gguf, name="me"))
    (ollama / "me").unlink()
    with pytest.raises(ExportToolError, match="ollama rm failed: Error: model 'me' not found"):
        remove("me")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportToolError, match="ollama is not on the PATH"):
        deploy(Deployment(path=gguf, name="me"))


def test_a_damaged_record_stays_as_it_is(tmp_path: Path) -> None:
    for text, why in (("{", "cannot be read"), ('{"version": 9}', "version 9"), ("[]", "damaged")):
        file = tmp_path / "ollama.json"
        file.write_text(text)
        with pytest.raises(StateFileError, match=why):
            DeployedModels(file).all()
        assert file.read_text() == text
