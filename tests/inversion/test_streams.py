"""What inverters learn from."""

from __future__ import annotations

import pytest
import torch
from small_inverters import WORDS, pseudo

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.inversion import AuxiliaryText, PseudoText, Shape, cut_texts, mixed
from gradleak.priors import marginal_distribution, marginal_of_tokens
from gradleak.targets import Target, Tokens

GPT2 = ("gpt2", "causal-lm")


def language_model() -> Target:
    return small_target(*GPT2)  # type: ignore[arg-type]


def test_the_marginal_distribution_counts_and_leaves_no_possible_token_out(bert: Target) -> None:
    shares = marginal_distribution(bert, ["the cat sat on the mat", "the dog"])
    vocabulary = bert.tokenizer.get_vocab()
    assert float(shares.sum()) == pytest.approx(1.0)
    assert int(shares.argmax()) == vocabulary["the"]
    assert float(shares[vocabulary["the"]] / shares[vocabulary["cat"]]) == pytest.approx(3.05 / 1.05)
    assert not shares[list(bert.impossible_ids)].any()
    possible = [i for i in range(len(shares)) if i not in bert.impossible_ids]
    assert bool((shares[possible] > 0).all())
    with pytest.raises(GradleakError, match="no text"):
        marginal_of_tokens(bert, torch.empty(0, dtype=torch.long))


def test_pseudo_text_follows_the_marginal_distribution() -> None:
    target = language_model()
    shares = marginal_distribution(target, ["the the the cat"])
    drawn = PseudoText(target, shares, Shape(10, 10)).draw(0, 4_000).ids
    found = torch.bincount(drawn.flatten(), minlength=len(shares)) / drawn.numel()
    assert torch.allclose(found.double(), shares, atol=0.01)


def test_pseudo_text_never_ends_and_never_repeats_itself() -> None:
    target = language_model()
    one, other = pseudo(target), pseudo(target, seed=1)
    assert torch.equal(one.draw(7, 20).ids, one.draw(7, 20).ids)
    assert not torch.equal(one.draw(7, 20).ids, one.draw(8, 20).ids)
    assert not torch.equal(one.draw(7, 20).ids, other.draw(7, 20).ids)


def test_sentences_are_framed_as_the_tokenizer_does_it(bert: Target) -> None:
    texts = ["the cat sat", "dog", "a big red mat on the"]
    found = cut_texts(bert, texts, Shape(8, 3))
    expected = bert.encode(texts)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.mask, expected.mask)
    drawn = pseudo(bert, 8, 3).draw(0, 50)
    before, after = bert.special_tokens
    assert set(drawn.lengths) == {3, 4, 5, 6, 7, 8}
    for row, length in zip(drawn.ids.tolist(), drawn.lengths, strict=True):
        assert (row[0], row[length - 1]) == (before[0], after[0])
        assert not set(row[1 : length - 1]) & set(bert.impossible_ids)
        assert not any(row[length:])


def test_texts_of_one_length_are_joined_and_cut() -> None:
    target = language_model()
    texts = ["the cat sat", "on a mat .", "dog"]
    found = cut_texts(target, texts, Shape(3, 3))
    assert [target.decode(row) for row in found.ids.tolist()] == ["the cat sat", "on a mat"]
    assert bool(found.mask.all())


def test_texts_too_long_are_cut_off_and_those_too_short_left_out(bert: Target) -> None:
    found = cut_texts(bert, ["cat", "the cat sat on a mat", "big dog"], Shape(5, 4))
    assert [bert.decode(row) for row in found.ids.tolist()] == ["the cat sat", "big dog"]


@pytest.mark.parametrize(
    ("texts", "shape", "message"),
    [
        (["cat"], Shape(6, 6), "too short"),
        ([], Shape(6, 4), "too short"),
        (["cat"], Shape(2, 2), "3 to 40 tokens"),
        (["cat"], Shape(41, 5), "3 to 40 tokens"),
        (["cat"], Shape(5, 6), "not possible"),
    ],
)
def test_text_that_gives_no_sentence_is_refused(bert: Target, texts: list[str], shape: Shape, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        cut_texts(bert, texts, shape)


@pytest.mark.parametrize("count", [4, 7, 10, 25])
def test_auxiliary_text_is_gone_through_once_an_epoch(count: int) -> None:
    ids = torch.arange(10)[:, None]
    stream = AuxiliaryText(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)))
    rows = torch.cat([stream.draw(number, count).ids.flatten() for number in range(20)])
    epochs = rows[: len(rows) // 10 * 10].view(-1, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs.tolist())
    assert epochs[0].tolist() != epochs[1].tolist()
    assert torch.equal(stream.draw(3, count).ids, stream.draw(3, count).ids)


def sentences(start: int, count: int) -> Tokens:
    ids = torch.arange(start, start + count)[:, None]
    return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize(("share", "inside"), [(0.0, 0), (0.3, 6), (1.0, 20)])
def test_a_mixture_has_the_share_of_text_in_the_distribution(share: float, inside: int) -> None:
    found = mixed(sentences(0, 50), sentences(100, 50), share, 20).ids.flatten().tolist()
    assert len(set(found)) == 20
    assert sum(row < 50 for row in found) == inside


@pytest.mark.parametrize(
    ("share", "size", "message"), [(0.5, 30, "10 sentences in"), (2.0, 4, "share"), (0.5, 0, "size")]
)
def test_a_mixture_that_the_text_is_not_enough_for_is_refused(share: float, size: int, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        mixed(sentences(0, 10), sentences(100, 50), share, size)


def test_streams_say_what_they_are() -> None:
    target = language_model()
    tokens = cut_texts(target, [WORDS] * 3, Shape(4, 4))
    assert pseudo(target).pseudo
    stream = AuxiliaryText(tokens, description="three lines")
    assert (stream.pseudo, stream.size, stream.description) == (False, 9, "three lines, 9 sentences")
