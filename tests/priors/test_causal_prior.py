"""The prior prefers text to word salad, in whichever vocabulary the target has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import small_target
from gradleak.assets.models import load_embedded_prior
from gradleak.errors import GradleakError
from gradleak.priors import OtherVocabulary, SharedVocabulary, load_prior
from gradleak.targets import load_target

TEXTS = ["the dog ran on the mat", "mat the on ran dog the"]


def test_the_embedded_prior_reads_the_embedded_targets_tokens() -> None:
    target = load_target("tiny")
    prior = load_prior("embedded", target)
    assert isinstance(prior, SharedVocabulary)
    tokens = target.encode(TEXTS)
    likely, salad = prior(tokens.ids, tokens.mask).tolist()
    assert likely < salad
    logits = load_embedded_prior()(input_ids=tokens.ids[:1]).logits[0, :-1].log_softmax(dim=-1)
    by_hand = -logits.gather(1, tokens.ids[0, 1:, None]).mean()
    assert likely == pytest.approx(by_hand.item(), rel=1e-5)


def test_padding_does_not_count() -> None:
    target = load_target("tiny")
    prior = load_prior("embedded", target)
    alone = target.encode(TEXTS[:1])
    padded = target.encode([TEXTS[0], "a much longer sentence that goes on and on for quite a while"])
    torch.testing.assert_close(prior(alone.ids, alone.mask), prior(padded.ids, padded.mask)[:1], rtol=1e-4, atol=1e-4)


def test_leading_dimensions_are_kept() -> None:
    target = load_target("tiny")
    tokens = target.encode(TEXTS)
    many = load_prior("embedded", target)(tokens.ids.expand(3, 4, 2, -1), tokens.mask.expand(3, 4, 2, -1))
    assert many.shape == (3, 4, 2)
    assert (many == many[0, 0]).all()


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_another_vocabulary_is_tokenised_again(family: str) -> None:
    target = small_target(family)
    prior = load_prior("embedded", target)
    assert isinstance(prior, OtherVocabulary)
    tokens = target.encode(TEXTS)
    likely, salad = prior(tokens.ids, tokens.mask).tolist()
    assert likely < salad


def test_a_prior_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="could not be loaded"):
        load_prior(str(tmp_path), small_target())
