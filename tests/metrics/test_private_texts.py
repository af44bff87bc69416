"""Reconstructions against the private text itself, through several kinds of tokenizers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gradleak import load_target
from gradleak.api import score
from gradleak.exchange import Reconstruction
from gradleak.metrics import SCORE_NAMES, BatchScores

PERFECT = dict.fromkeys(SCORE_NAMES, 100.0)
NOTHING = dict.fromkeys(SCORE_NAMES, 0.0)


@pytest.fixture(scope="module")
def uncased() -> PreTrainedTokenizerFast:
    tokenizer = load_target("tiny").tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


@pytest.fixture(scope="module")
def cased() -> PreTrainedTokenizerFast:
    """WordPiece that keeps case and accents."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "The", "the", "café", "cafe", "is", "open", "'", "s", "."]
    core = Tokenizer(models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def byte_level(normalizer: normalizers.Normalizer | None = None) -> PreTrainedTokenizerFast:
    """A vocabulary of bytes: it can write everything, and its unknown token also ends texts, as in GPT-2."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0} | {sign: i + 1 for i, sign in enumerate(alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if normalizer is None:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        core.normalizer = normalizer
    core.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=end, unk_token=end, eos_token=end, bos_token=end)


def without_unknown() -> PreTrainedTokenizerFast:
    """A vocabulary of a few letters and no unknown token: other characters vanish."""
    core = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate("<abc ")}, merges=[]))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<")


def found(tokenizer: PreTrainedTokenizerFast, *texts: str, copies: tuple[int, ...] = ()) -> Reconstruction:
    """Return what an attack would that found the tokens of these texts."""
    ids = tuple(tuple(tokenizer(text)["input_ids"]) for text in texts)
    return Reconstruction(
        token_ids=ids,
        texts=texts,
        labels=None,
        loss=0,
        seconds=0,
        attack="none",
        settings={},
        seed=0,
        version="0",
        model_hash="",
        copies=copies,
        tokenizer=tokenizer,
    )


def scored(tokenizer: PreTrainedTokenizerFast, guess: str, truth: str) -> BatchScores:
    return score(found(tokenizer, guess), [truth])


def test_what_the_vocabulary_cannot_write_is_not_recovered(uncased: PreTrainedTokenizerFast) -> None:
    result = scored(uncased, "i love you", "I love 😀 you")
    assert (result.exact, result.unrepresentable, result.precision) == (0, (0,), 0)
    assert result.rouge1 == pytest.approx(600 / 7)  # P = 3/3, R = 3/4
    assert result.token_accuracy == 50  # i, love; "you" stands in the emoji's place
    assert scored(uncased, "", "😀").as_dict() == NOTHING
    assert scored(uncased, "😀", "😀").as_dict() == NOTHING


@pytest.mark.parametrize(
    ("guess", "truth"),
    [
        ("i love you", "I LOVE You"),
        ("the resume", "The résumé"),
        ("it ' s nice , isn ' t it ?", "It's nice, isn't it?"),
        ("two words", "  two\twords\n"),
        ("a well - known e - mail : x @ y . org", "A well-known e-mail: x@y.org"),
    ],
)
def test_token_for_token_is_exact_for_an_uncased_tokenizer(
    uncased: PreTrainedTokenizerFast, guess: str, truth: str
) -> None:
    result = scored(uncased, guess, truth)
    assert result.as_dict() == PERFECT
    assert (result.precision, result.unrepresentable) == (100, ())


def test_a_cased_tokenizer_is_forgiven_neither_case_nor_accents(cased: PreTrainedTokenizerFast) -> None:
    assert scored(cased, "The café's open.", "The café's open.").as_dict() == PERFECT
    assert scored(cased, "The café ' s open .", "The café's open.").exact == 100
    assert scored(cased, "the café's open.", "The café's open.").exact == 0
    assert scored(cased, "The cafe's open.", "The café's open.").exact == 0


@pytest.mark.parametrize("guess", ["not able", "notable .", "note able"])
def test_other_words_are_not_exact(uncased: PreTrainedTokenizerFast, guess: str) -> None:
    assert scored(uncased, guess, "notable").exact == 0


def test_special_tokens_written_out_in_a_private_text_are_lost(uncased: PreTrainedTokenizerFast) -> None:
    result = scored(uncased, "mind the gap", "mind the [SEP] gap")
    assert (result.exact, result.unrepresentable) == (0, (0,))
    assert scored(uncased, "", "[SEP]").as_dict() == NOTHING


@pytest.mark.parametrize("normalizer", [None, normalizers.ByteLevel()], ids=["pre-tokenizer", "normaliser"])
def test_a_vocabulary_of_bytes_loses_nothing(normalizer: normalizers.Normalizer | None) -> None:
    tokenizer = byte_level(normalizer)
    text = "I  love 😀 you, café 中文!"
    result = scored(tokenizer, text, text)
    assert (result.exact, result.token_accuracy, result.unrepresentable) == (100, 100, ())
    assert scored(tokenizer, "I  love you, café 中文!", text).exact == 0
    # The token that ends a text is also the unknown one: it does not count.
    ended = replace(found(tokenizer, text), token_ids=((0, *tokenizer(text)["input_ids"], 0),))
    assert score(ended, [text]).exact == 100


def test_characters_dropped_without_a_trace_are_lost() -> None:
    tokenizer = without_unknown()
    assert scored(tokenizer, "abc", "abc").as_dict() == PERFECT
    assert tokenizer("ab😀c")["input_ids"] == tokenizer("abc")["input_ids"]
    result = scored(tokenizer, "abc", "ab😀c")
    assert (result.exact, result.unrepresentable) == (0, (0,))
    assert scored(tokenizer, "", "😀").as_dict() == NOTHING


def test_texts_that_differ_in_what_was_lost_are_two_secrets(uncased: PreTrainedTokenizerFast) -> None:
    guess = found(uncased, "i love you")
    assert score(guess, ["I love 😀", "I love 🎉"]).matches == (0, None)
    assert score(guess, ["I love 😀", "I love 😀"]).matches == (0, 0)


def test_copies_reach_the_scores(uncased: PreTrainedTokenizerFast) -> None:
    truth = ["the cat sat", "the cat ran"]
    assert score(found(uncased, "the cat sat"), truth).matches == (0, None)
    assert score(found(uncased, "the cat sat", copies=(2,)), truth).matches == (0, 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", max_codepoint=0x2FF), max_size=40))
def test_a_text_is_exact_token_for_token_or_said_to_be_lost(uncased: PreTrainedTokenizerFast, text: str) -> None:
    result = scored(uncased, text, text)
    lost = uncased.unk_token_id in uncased(text)["input_ids"]
    assert result.unrepresentable == ((0,) if lost else ())
    assert result.exact == (0 if lost else 100)
