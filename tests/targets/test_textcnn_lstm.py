"""TextCNN and LSTM as targets: what they compute, how they are loaded and saved, and that everything takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_twin import own_logits
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from conftest import SMALL_WITHOUT_ATTENTION, small_target
from gradleak.attacks import Dlg
from gradleak.attacks.base import NEEDS
from gradleak.defenses import DPSGD
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.matching import L2, Matcher
from gradleak.studies import FineTuning, measure_utility
from gradleak.targets import Target, load_target
from gradleak.targets.dropout import dropout_sites

TEXTS = ["the cat sat on a mat", "dog", "a dog ran on"]
every_family = pytest.mark.parametrize("family", list(SMALL_WITHOUT_ATTENTION))


class Data:
    """Texts about cats and dogs: the class is which."""

    texts = ("the cat sat", "a dog ran", "big cat", "red dog", "cat on mat", "dog on mat", "the cat", "the dog")
    labels = (0, 1) * 4


def logits(target: Target, texts: list[str]) -> torch.Tensor:
    return own_logits(target, target.encode(texts))


# --- what they compute ---------------------------------------------------------------------------------------------


def test_textcnn_computes_convolutions_and_their_maxima() -> None:
    target = small_target("textcnn", dtype=torch.float64)
    model: Any = target.model
    embeddings = target.embed(target.encode(TEXTS[:1]).ids).transpose(1, 2)  # [1, width, tokens]
    pooled = []
    for layer, window in zip(model.convolutions, target.config.windows, strict=True):
        weight = layer.weight.view(layer.out_features, window, -1).transpose(1, 2)
        answers = functional.conv1d(embeddings, weight, layer.bias, padding=window - 1)
        pooled.append(answers.relu().amax(dim=2))
    assert_close(logits(target, TEXTS[:1]), model.classifier(torch.cat(pooled, dim=1)))


def test_lstm_computes_what_torchs_lstm_does() -> None:
    target = small_target("lstm", dtype=torch.float64)
    model: Any = target.model
    width, hidden = target.config.embedding_size, target.config.hidden_size
    reference = nn.LSTM(width, hidden, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.weight_ih_l0.copy_(model.from_words.weight)
        reference.bias_ih_l0.copy_(model.from_words.bias)
        reference.weight_hh_l0.copy_(model.from_state.weight)
        reference.bias_hh_l0.zero_()[hidden : 2 * hidden] = 1.0  # the forget gates' bias
        _, (last, _) = reference(target.embed(target.encode(TEXTS[:1]).ids))
        assert_close(logits(target, TEXTS[:1]), model.classifier(last[0]))


@every_family
def test_padding_changes_nothing(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    together = logits(target, TEXTS)
    for row, text in zip(together, TEXTS, strict=True):
        assert_close(row, logits(target, [text])[0])
    tokens = target.encode(TEXTS)
    assert_close(target.model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).logits, together)
    alone = target.encode(TEXTS[:1])
    assert_close(target.model(input_ids=alone.ids).logits, together[:1])


@every_family
def test_the_order_of_words_matters(family: str) -> None:
    target = small_target(family)
    one, other = logits(target, ["the cat sat on a mat", "the mat sat on a cat"])
    assert not torch.allclose(one, other)


# --- loading and saving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "millions"), [("textcnn", 9.5), ("lstm", 10.8)])
def test_they_are_known_by_name_with_weights_from_the_seed(name: str, millions: float) -> None:
    target = load_target(name, 3)
    assert target.num_labels == 3
    assert target.family.name == name
    assert sum(p.numel() for p in target.parameters.values()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert target.max_length == 256
    assert target.fingerprint == load_target(name, 3).fingerprint
    assert target.fingerprint != load_target(name, 3, seed=1).fingerprint
    with pytest.raises(GradleakError, match=f"{name} models are not supported for causal-lm"):
        load_target(name, task="causal-lm")


@every_family
def test_a_saved_model_is_loaded_as_it_was(family: str, tmp_path: Path) -> None:
    target = small_target(family, num_labels=3, seed=5)
    target.model.save_pretrained(tmp_path)
    target.tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family
    loaded = load_target(str(tmp_path))
    assert loaded.num_labels == 3
    assert loaded.fingerprint == target.fingerprint
    assert_close(logits(loaded, TEXTS), logits(target, TEXTS))
    other = load_target(str(tmp_path), 5, new_head=True)
    assert other.num_labels == 5
    assert torch.equal(other.word_embeddings, target.word_embeddings)


# --- the rest of the package takes them ----------------------------------------------------------------------------


@every_family
def test_they_have_words_and_a_classifier_and_nothing_else_that_attacks_ask_for(family: str) -> None:
    target = small_target(family)
    assert target.layers == []
    assert target.embedding_parameters == target.word_parameters == {"words.weight"}
    update = Client(target, embeddings="trained").update(TEXTS, [0, 1, 0])
    assert NEEDS["word-embedding gradients"](target, update)
    assert NEEDS["classifier gradients"](target, update)
    assert not NEEDS["attention gradients"](target, update)
    assert list(dropout_sites(target, 5)) == ["dropout"]


@every_family
def test_the_engine_knows_all_of_their_layers(family: str) -> None:
    target = small_target(family)
    matcher = Matcher(target, [Client(target, embeddings="trained").update(TEXTS, [0, 1, 0]).gradient()], L2())
    assert matcher.slow_parameters == []


@every_family
def test_other_attacks_run_on_them(family: str) -> None:
    target = small_target(family)
    update = Client(target).update(TEXTS[:1], [1])
    result = Dlg(steps=20, lr=0.05)(target, update, Knowledge(labels=[1], lengths=[8]))
    assert result.history[-1].loss < result.history[0].loss


@every_family
@pytest.mark.parametrize("defenses", [(), (DPSGD(1.0, 0.001),)], ids=["plain", "dpsgd"])
def test_the_utility_trainer_trains_them(family: str, defenses: tuple[Any, ...]) -> None:
    target = small_target(family)
    training = FineTuning(epochs=60, batch_size=8, lr=0.02, dropout=False)
    found = measure_utility(target, Data, Data, defenses=defenses, training=training)  # type: ignore[arg-type]
    assert found.accuracy == 1.0
