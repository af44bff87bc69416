from __future__ import annotations

import json
from itertools import combinations

import pytest
from fake_records import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from gradleak.reports.words import LONGEST_WORD, clean, cleaned, mark_matches, sentence_record


def longest_common(left: list[str], right: list[str]) -> int:
    """Return the length of the longest common subsequence, by trying all."""
    for size in range(min(len(left), len(right)), 0, -1):
        others = set(combinations(right, size))
        if any(part in others for part in combinations(left, size)):
            return size
    return 0


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_as_many_words_are_marked_as_the_longest_common_subsequence_has(left: list[str], right: list[str]) -> None:
    truth, guess = mark_matches(" ".join(left), " ".join(right))
    marked = [[w for w, hit in zip(side.words, side.matched, strict=True) if hit] for side in (truth, guess)]
    assert marked[0] == marked[1]
    assert len(marked[0]) == longest_common(left, right)


def test_case_and_punctuation_do_not_count() -> None:
    truth, guess = mark_matches("Which goddess helped us?", "which goddess, us")
    assert truth.pattern == "1101"
    assert guess.pattern == "111"


def test_words_that_a_tokenizer_has_taken_apart_still_match() -> None:
    truth, guess = mark_matches("It's the cat's mat, isn't it?", "it ' s the cat ' s mat , isn ' t it ?")
    assert set(truth.pattern) == {"1"}
    assert set(guess.pattern) == {"1"}
    assert mark_matches("I love 😀", "i love 😀")[1].pattern == "111"
    assert mark_matches("I love 😀", "i hate 😡")[1].pattern == "100"
    assert mark_matches("...", "the ...")[0].pattern == "0"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_character_without_a_shape_is_left(text: str) -> None:
    shown = clean(text)
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in shown)
    assert not any(character in shown for character in "\u202e\u202c\u200b\u2066\u2069\ufeff")


@given(st.text())
def test_any_text_can_be_cleaned_and_written_as_utf8(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    json.dumps(cleaned({text: [text, 1, None]}), ensure_ascii=False).encode()


def test_half_a_character_and_piled_up_marks_are_made_harmless() -> None:
    assert clean("\ud800") == "⟨U+D800⟩"
    assert len(clean("a" + "\u0301" * 50)) <= 4


def test_redacted_sentence_holds_lengths_and_matches_and_no_word() -> None:
    secret = "harriet alternated folk songs"
    record = sentence_record(secret, "harriet sang songs", {"rougeL": 57.14285})
    assert record == {
        "words": 4,
        "matched": "1001",
        "read_words": 3,
        "read_matched": "101",
        "scores": {"rougeL": 57.14},
    }
    revealed = sentence_record(secret, None, None, reveal=True)
    assert revealed["reference"] == secret.split()
    assert revealed["read"] == []


def test_very_long_words_are_cut_and_their_rest_counted() -> None:
    record = sentence_record("w" * 1000, "x", {}, reveal=True)
    assert record["reference"] == ["w" * LONGEST_WORD + f"…(+{1000 - LONGEST_WORD})"]
