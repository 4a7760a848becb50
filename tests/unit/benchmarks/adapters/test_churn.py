"""What a request may get, and how an answer is judged by that."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.adapters.churn import ALIAS, NAMES, Churned, Expected, Names, churn_report, judged
from benchmarks.adapters.forcing import ForcedWord
from benchmarks.answers import PartialAnswer

RED, BLUE = ForcedWord(" red", Path("red")), ForcedWord(" blue", Path("blue"))
WORDS = (RED, BLUE)


def answered(text: str, model: str = "name-0") -> PartialAnswer:
    return PartialAnswer(200, model, text, True)


@pytest.fixture
def names() -> Names:
    """``name-0`` is red, and the others are not there."""
    names = Names("base")
    with names.words[NAMES[0]].changing(RED):
        pass
    return names


def expected_now(names: Names, asked: str | None) -> Expected:
    now = perf_counter()
    return names.expected(asked, now, now)


def test_a_word_fits_itself_over_and_over_and_broken_off() -> None:
    assert RED.fits(" red")
    assert RED.fits(" red red re")
    assert not RED.fits(" red blue")
    assert not RED.fits("red red")
    assert not RED.fits("")


def test_a_name_gets_its_adapter_and_a_name_without_one_is_refused(names: Names) -> None:
    assert expected_now(names, NAMES[0]) == Expected(words={" red"}, models={NAMES[0]})
    there_is_none = expected_now(names, NAMES[1])
    assert (there_is_none.words, there_is_none.refused, there_is_none.base) == (set(), True, False)


def test_while_it_is_replaced_either_may_answer(names: Names) -> None:
    with names.words[NAMES[0]].changing(BLUE):
        assert expected_now(names, NAMES[0]).words == {" red", " blue"}
    assert expected_now(names, NAMES[0]).words == {" blue"}


def test_who_names_nothing_gets_the_active_one(names: Names) -> None:
    assert expected_now(names, None) == Expected(base=True, models={"base"})
    with names.active.changing(NAMES[0]):
        assert expected_now(names, None) == Expected({" red"}, True, False, {"base", NAMES[0]})
    assert expected_now(names, None) == Expected({" red"}, models={NAMES[0]})


def test_an_alias_gets_what_it_leads_to(names: Names) -> None:
    with names.alias.changing(NAMES[0]):
        pass
    assert expected_now(names, ALIAS) == Expected({" red"}, models={NAMES[0]})
    with names.words[NAMES[0]].changing(None):
        pass
    assert expected_now(names, ALIAS).refused


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (answered(" red red"), "right"),
        (answered(" blue blue"), "wrong"),
        (answered(" red blue"), "wrong"),
        (answered("Paris is the"), "wrong"),
        (answered(" red red", model="name-1"), "wrong"),
        (PartialAnswer(200, "name-0", "", False), "empty"),
        (PartialAnswer(None, None, "", False), "unanswered"),
    ],
)
def test_answers_of_an_adapter(answer: PartialAnswer, outcome: str) -> None:
    expected = Expected(words={" red"}, models={"name-0"})
    got, problem = judged(answer, expected, WORDS)
    assert got == outcome
    assert (problem is not None) == (outcome == "wrong")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("Paris is the", "right"), (" red", "right"), (" red red", "wrong"), (" blue blu", "wrong")],
)
def test_answers_of_the_base(text: str, outcome: str) -> None:
    expected = Expected(base=True, models={"base"})
    assert judged(answered(text, "base"), expected, WORDS)[0] == outcome


def test_a_refusal_is_right_where_there_may_be_no_adapter() -> None:
    refusal = PartialAnswer(404, None, "no such adapter", True)
    assert judged(refusal, Expected(refused=True), WORDS) == ("refused", None)
    _, problem = judged(refusal, Expected(words={" red"}), WORDS)
    assert problem == "HTTP 404: no such adapter"
    _, problem = judged(PartialAnswer(500, None, "oops", True), Expected(refused=True), WORDS)
    assert problem == "HTTP 500: oops"


def churned(**changed: object) -> Churned:
    plain: dict[str, object] = {
        "seconds": 60.0,
        "outcomes": {"right": 90, "disconnected": 10},
        "changes": {"load": 5},
        "wrong": (),
        "errors": (),
        "memory": (500, *[1000] * 18, 1010),
    }
    return Churned(**{**plain, **changed})  # type: ignore[arg-type]


def test_the_report_of_a_good_churn() -> None:
    table, goals, problems = churn_report(churned(), "bfloat16")
    assert "| requests | 100 |" in table
    assert "| of which disconnected | 10 |" in table
    assert [goal.reached for goal in goals] == [True, True, True]
    assert goals[2].got == "1.00"
    assert problems == []


def test_the_report_of_a_bad_churn() -> None:
    bad = churned(wrong=("w",) * 9, errors=("e",), memory=(500, *[1000] * 10, *[1200] * 9))
    _, goals, problems = churn_report(bad, "bfloat16")
    assert [goal.reached for goal in goals] == [False, False, False]
    assert problems == ["w"] * 5
    _, goals, _ = churn_report(churned(memory=()), "bfloat16")
    assert goals[2].got is None
