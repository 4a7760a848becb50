"""What a GGUF file says of itself, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soup_engine.gguf_file import GgufError, is_gguf, read_gguf


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_layer_norm_rms_eps(0.5)
    writer.add_add_bos_token(True)
    writer.add_token_list(["a", "é", b"\xe2\x80"])
    writer.add_token_types([1, 1, 6])
    writer.add_tensor("token_embd.weight", np.zeros((5, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_says_what_was_written(written: Path) -> None:
    file = read_gguf(written)
    assert (file.architecture, file.is_adapter) == ("llama", False)
    assert file.of_architecture("block_count") == 3
    assert file.of_architecture("attention.layer_norm_rms_epsilon") == 0.5
    assert file.metadata["tokenizer.ggml.add_bos_token"] is True
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert tokens[:2] == ["a", "é"]
    assert tokens[2].encode("utf-8", "surrogateescape") == b"\xe2\x80"
    assert file.metadata["tokenizer.ggml.token_type"] == [1, 1, 6]
    assert file.tensors == {"token_embd.weight": (4, 5), "output_norm.weight": (4,)}


@settings(deadline=None)
@given(place=st.integers(0, 400), value=st.integers(0, 255), length=st.integers(0, 600))
def test_damage_is_an_error_of_its_own(
    written: Path, tmp_path_factory: pytest.TempPathFactory, place: int, value: int, length: int
) -> None:
    damaged = tmp_path_factory.getbasetemp() / "damaged.gguf"
    content = bytearray(written.read_bytes()[:length])
    if place < len(content):
        content[place] = value
    damaged.write_bytes(content)
    try:
        read_gguf(damaged)
    except GgufError as error:
        assert str(error)


def test_by_its_name(written: Path, tmp_path: Path) -> None:
    assert is_gguf(written) and is_gguf(str(written))
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    assert not is_gguf(folder) and not is_gguf(tmp_path / "none.gguf")
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    assert not is_gguf(tmp_path / "model.bin")
    with pytest.raises(GgufError, match="no GGUF file"):
        read_gguf(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path
