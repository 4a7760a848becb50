import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.engine.stop_strings import StopMatcher


def run(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stop)
    delivered = []
    for piece in pieces:
        delivered.append(matcher.push(piece))
        if matcher.matched is not None:
            return delivered, matcher.matched
    return [*delivered, matcher.finish()], None


@pytest.mark.parametrize(
    ("stop", "pieces", "delivered", "matched"),
    [
        (("END",), ["one E", "N", "D two"], ["one ", "", ""], "END"),
        (("END",), ["one E", "N", "E"], ["one ", "", "EN", "E"], None),
        (("\n\n", "User:"), ["a\n", "Us", "er: x"], ["a", "\n", ""], "User:"),
        (("abab",), ["aba", "bab"], ["", ""], "abab"),
        (("abac",), ["abab", "ac"], ["ab", ""], "abac"),
        (("bcd", "c"), ["abcd"], ["ab"], "c"),
        (("bc", "abc"), ["xab", "c"], ["x", ""], "abc"),
        (("x",), ["", "ab", ""], ["", "ab", "", ""], None),
    ],
)
def test_examples(stop, pieces, delivered, matched) -> None:
    assert run(stop, pieces) == (delivered, matched)


SHORT = st.text("ab", min_size=1, max_size=4)


@given(st.lists(SHORT, min_size=1, max_size=4), st.lists(st.text("abc", max_size=5), max_size=8))
def test_it_agrees_with_a_search_of_the_whole_text(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    end, _, expected = min(ends, default=(len(text), 0, None))
    delivered, matched = run(tuple(stop), pieces)
    assert matched == expected
    assert "".join(delivered) == text[: end - len(expected or "")]


@given(st.lists(SHORT, min_size=1, max_size=4), st.lists(st.text("abc", max_size=5), max_size=8))
def test_exactly_what_may_begin_a_stop_string_is_held_back(stop: list[str], pieces) -> None:
    matcher = StopMatcher(tuple(stop))
    text = delivered = ""
    for piece in pieces:
        text += piece
        delivered += matcher.push(piece)
        if matcher.matched is not None:
            break
        beginnings = [s[:n] for s in stop for n in range(len(s)) if text.endswith(s[:n])]
        assert delivered == text[: len(text) - max(map(len, beginnings))]
