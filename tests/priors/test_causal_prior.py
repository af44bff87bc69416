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


def test_a_text_that_is_tokenised_again_begins_like_any_other() -> None:
    own, other = load_target("tiny"), small_target("bert")
    texts = ["the dog ran on a mat"]
    with_end, again = own.encode(texts), other.encode(texts)
    without_end = with_end.mask.clone()
    without_end[:, -1] = False
    found = load_prior("embedded", other)(again.ids, again.mask)
    torch.testing.assert_close(found, load_prior("embedded", own)(with_end.ids, without_end))


def test_a_text_that_is_longer_than_the_prior_reads_is_judged_stretch_by_stretch() -> None:
    target = load_target("tiny")
    prior = load_prior("embedded", target)
    limit = load_embedded_prior().config.max_position_embeddings
    tokens = target.encode(["the dog ran on the mat"]).ids[0]
    long = tokens.repeat(limit)[: limit + 40]
    short = torch.zeros_like(long)
    short[: len(tokens)] = tokens
    found = prior(torch.stack([long, short]), torch.stack([torch.ones_like(long), short]).bool())
    parts = [prior(part[None], torch.ones_like(part[None], dtype=torch.bool)) for part in (long[:limit], long[limit:])]
    assert found[0].item() == pytest.approx(((limit - 1) * parts[0] + 39 * parts[1]).item() / (limit + 38), rel=1e-4)
    assert found[1].item() == pytest.approx(prior(tokens[None], torch.ones(1, len(tokens)).bool()).item(), rel=1e-4)


def test_a_prior_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="nowhere' is not a folder"):
        load_prior(str(tmp_path / "nowhere"), small_target())
    with pytest.raises(GradleakError, match="no weights as safetensors"):
        load_prior(str(tmp_path), small_target())
