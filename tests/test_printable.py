"""Nothing that is printed can command a terminal or reorder what a reader sees."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.printable import escaped_json, in_one_line, quoted, visible

ANY = st.text(st.characters(codec=None), max_size=40)


def commands(text: str) -> list[str]:
    """Return what a terminal would obey: controls, halves of pairs, and marks that embed, override or isolate."""
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return [
        sign
        for sign in text
        if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(sign) in bidi
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\x00b\x07c\x7f", "a␀b␇c␡"),
        ("\x9b31m", "<U+009B>31m"),
        ("user\u202egnp.exe", "user<U+202E>gnp.exe"),
        ("two\nlines\tand a tab", "two␊lines␉and a tab"),
        ("half \udcff", "half <U+DCFF>"),
        ("crème brûlée, 中文, 👩\u200d🔬", "crème brûlée, 中文, 👩\u200d🔬"),
    ],
)
def test_control_characters_are_symbols_and_all_else_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(ANY)
def test_no_text_has_anything_left_that_a_terminal_obeys(text: str) -> None:
    assert commands(visible(text)) == []
    assert {*commands(visible(text, lines=True))} <= {"\n"}
    assert commands(in_one_line(text)) == []


@given(ANY)
def test_json_says_the_same_without_control_characters(text: str) -> None:
    written = escaped_json(json.dumps({"text": text}, ensure_ascii=False, indent=1))
    assert {*commands(written)} <= {"\n"}
    assert json.loads(written) == {"text": text}


def test_a_quote_of_a_long_text_is_short() -> None:
    assert quoted("a\nb " * 100_000) == "a b " * 50 + "…"
