from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from screens import WORKBENCH
from soup_engine.errors import ConfigError
from soup_tui.actions import ACTIONS, APP, BY_ID, SCREENS, key_name
from soup_tui.app import SoupApp
from soup_tui.help_text import help_text
from soup_tui.keymap import Objective, Preferences, load_preferences


def write(folder: Path, text: str) -> Path:
    path = folder / "tui.toml"
    path.write_text(text)
    return path


def test_every_action_has_its_handler() -> None:
    owners = {screen.NAME: screen for screen in WORKBENCH} | {APP: SoupApp}
    assert tuple(owners)[:-1] == SCREENS
    for action in ACTIONS:
        name = action.call.removeprefix("app.").partition("(")[0]
        assert callable(getattr(owners[action.scope], f"action_{name}")), action.id


def test_no_key_means_two_things_on_a_screen() -> None:
    for scope in SCREENS:
        keys = [
            key
            for action in ACTIONS
            if action.scope in (APP, scope)
            for key in action.key.split(",")
        ]
        assert not [key for key, number in Counter(keys).items() if number > 1], scope


def test_the_help_screen_names_every_action_and_its_key() -> None:
    changed = Preferences(keys={"serving.abort": "k"})
    lines = help_text("latency", changed).splitlines()
    assert lines[0] == "Latency screen"
    for action in ACTIONS:
        (line,) = (line for line in lines if line.endswith(f" {action.id}"))
        assert action.title in line
        assert line.split()[0] == changed.key_name(action.id)
        assert len(line) <= 72


def test_keys_are_written_as_people_know_them() -> None:
    assert [key_name(keys) for keys in ("question_mark", "ctrl+p", "plus,x", "a")] == [
        "?",
        "^p",
        "+",
        "a",
    ]


def test_without_a_file_nothing_is_changed(tmp_path: Path) -> None:
    assert load_preferences(tmp_path / "none.toml") == Preferences()


def test_a_file_changes_keys_theme_characters_and_objective(tmp_path: Path) -> None:
    found = load_preferences(
        write(
            tmp_path,
            'theme = "nord"\nglyphs = "block"\n[keys]\n"app.leave" = "Q"\n'
            '[objective]\nmeasure = "itl"\nseconds = 0.05\nalert = true\n',
        )
    )
    assert (found.theme, found.glyphs) == ("nord", "block")
    assert found.key("app.leave") == "Q"
    assert found.key("app.help") == BY_ID["app.help"].key
    assert found.objective == Objective("itl", 0.05, alert=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("theme =", "is no TOML"),
        ("colour = 1", "there is no setting 'colour'; there are theme, glyphs, keys, objective."),
        ("theme = 1", "theme is the name of a theme."),
        ('glyphs = "emoji"', "glyphs is one of braille, block, ascii, not 'emoji'."),
        ("keys = 1", "keys is a table"),
        ('[keys]\n"serving.fly" = "f"', "there is no action 'serving.fly'"),
        ('[keys]\n"serving.abort" = ""', "the key of serving.abort is a text"),
        (
            '[keys]\n"serving.abort" = "q"',
            "the key 'q' is given to both app.leave and serving.abort.",
        ),
        ("objective = 1", "objective is a table with measure, seconds and alert."),
        ('[objective]\nmeasure = "x"', "objective.measure is one of ttft, itl, e2e, not 'x'."),
        ("[objective]\nseconds = 0", "objective.seconds is a number above 0."),
        ("[objective]\nalert = 1", "objective.alert is true or false."),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load_preferences(path)
    assert str(path) in refusal.value.message
    assert sentence in refusal.value.message


def test_the_readme_names_every_action_and_its_key() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    for action in ACTIONS:
        if not action.id.startswith("app.show-"):
            title = action.title[0].lower() + action.title[1:]
            assert f"`{key_name(action.key)}` {title}" in readme, action.id
