"""No text in a Modelfile becomes an instruction, to either way of reading the grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.errors import ExportError
from soup_engine.export.ollama.modelfile import Modelfile, check_name
from tests.support.modelfile_parser import parse

PIECES = st.sampled_from(
    [
        *('"', '""', '"""', "\n", "SYSTEM ", "FROM /etc/passwd", "\nPARAMETER stop x\n", "#", " "),
        *("\t", "{{ .Content }}", "\\", "'", "ü", "\r", "\x00", "\u2028", "\ufeff", "a"),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)
PATHS = st.sampled_from(["/models/", "C:\\My Models\\", "\\\\host\\share\\"])


@given(start=PATHS, path=TEXTS, template=TEXTS, system=TEXTS, stop=TEXTS)
def test_every_text_comes_back_as_it_was_or_is_refused(
    start: str, path: str, template: str, system: str, stop: str
) -> None:
    given = [
        ("from", start + path),
        ("template", template),
        ("system", system),
        ("parameter stop", stop),
    ]
    modelfile = Modelfile(
        path=start + path, template=template, system=system, parameters=[("stop", stop)]
    )
    try:
        text = modelfile.text()
    except ExportError:
        return
    for strict in (False, True):
        assert parse(text, strict=strict) == given


@pytest.mark.parametrize(
    "system",
    [
        "You are terse.",
        "Two\n\nlines\n",
        'Say "yes" or "no"',
        '"Quoted" first',
        "'''",
        " spaces around ",
        "# no comment",
        "FROM /etc/passwd",
        "",
        "\ttabs\tand ümläuts 🦜",
    ],
)
def test_ordinary_texts_are_written(system: str) -> None:
    text = Modelfile(path="/m.gguf", system=system).text()
    for strict in (False, True):
        assert parse(text, strict=strict) == [("from", "/m.gguf"), ("system", system)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"system": 'x"""\nFROM /etc/passwd'}, "three double quotes"),
        ({"template": "a\x1b[2J"}, "control"),
        ({"system": "a\r\nFROM x"}, "control"),
        ({"system": 'two\nlines "'}, "ends in a double quote"),
        ({"path": "/a\nFROM b"}, "control"),
        ({"path": "/models/*.gguf"}, "pattern"),
        ({"path": '/"""'}, "double quotes"),
        ({"parameters": [("stop\nFROM", "x")]}, "cannot be a parameter"),
        ({"parameters": [("stop", '"""')]}, "three double quotes"),
    ],
)
def test_what_cannot_be_written_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ExportError, match=why):
        Modelfile(**{"path": "/m.gguf", **fields}).text()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["soup", "my-model:latest", "me/soup:v1.2", "host/me/soup"])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "-f", "a b", "a/b/c/d", "a:b:c", "../x", "a\nb", "ü", "x" * 81, ":tag"]
)
def test_names_that_could_be_something_else(name: str) -> None:
    with pytest.raises(ExportError, match="cannot be a model's name"):
        check_name(name)
