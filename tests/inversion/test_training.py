"""Inverters learn, stop, and go on where they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from small_inverters import QUICK, language_model, pseudo

from conftest import small_target
from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.inversion import (
    PAPER,
    RATES,
    InverterTrainer,
    JointTraining,
    Recipe,
    TrainingReport,
    checkpoint_rate,
    choose_rate,
    train_inverter,
)
from gradleak.inversion.checkpoint import CHECKPOINT, TrainingState
from gradleak.inversion.joint_training import countable
from gradleak.inversion.sentence_order import best_orders, matched_loss, take_order
from gradleak.inverters.network import Inverter
from gradleak.inverters.storage import FILE, load_inverter, read_card, save_inverter
from gradleak.targets import Target


class KilledError(Exception):
    """Stands for whatever ends a training."""


def weights(inverter: Inverter) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in inverter.state_dict().items()}


def test_an_inverter_learns_to_read_unseen_text(tmp_path: Path) -> None:
    target = language_model()
    reports: list[TrainingReport] = []
    recipe = replace(QUICK, epochs=4)
    held_out = pseudo(target, seed=1)
    inverter = train_inverter(target, recipe, pseudo(target, size=1_500), held_out, tmp_path, reports.append)
    assert inverter.card.accuracy > 50
    assert reports[-1].samples == reports[-1].total == 12 * 4 * 128
    assert reports[-1].loss < reports[0].loss
    assert reports[0].accuracy is None
    assert reports[-1].seconds_left == 0
    card = (tmp_path / "CARD.md").read_text(encoding="utf-8")
    assert target.fingerprint in card
    assert f"{inverter.card.accuracy:.1f} %" in card


HASHED, WHOLE = {"reduction": "hash"}, {"output": "vocabulary", "direct": False}


@pytest.mark.parametrize(
    ("texts", "changes"),
    [([], WHOLE), (["sign"], HASHED), (["prune-global:0.9"], WHOLE), (["noise:0.001", "clip:1"], HASHED)],
    ids=str,
)
def test_it_learns_under_defenses_with_every_reduction_and_output(texts: list[str], changes: dict[str, str]) -> None:
    target = language_model()
    recipe = replace(QUICK, defenses=tuple(map(parse_defense, texts)), **changes)  # type: ignore[arg-type]
    stream = pseudo(target)
    training = JointTraining(
        target, [InverterTrainer.fresh(target, recipe, stream, 24)], stream, pseudo(target, seed=1), 64
    )
    first = training.accuracies()[0]
    losses = [float(training.train(number)[0]) for number in range(6)]
    assert losses[-1] < 0.9 * losses[0]
    assert training.accuracies()[0] > first


def test_inverters_trained_together_learn_what_they_would_alone() -> None:
    target = language_model()
    stream, held_out = pseudo(target), pseudo(target, seed=1)
    recipes = [QUICK, replace(QUICK, defenses=(parse_defense("sign"),))]
    together = [InverterTrainer.fresh(target, recipe, stream, 8) for recipe in recipes]
    training = JointTraining(target, together, stream, held_out, 32)
    for number in range(2):
        training.train(number)
    for recipe, trainer in zip(recipes, together, strict=True):
        alone = InverterTrainer.fresh(target, recipe, stream, 8)
        other = JointTraining(target, [alone], stream, held_out, 32)
        for number in range(2):
            other.train(number)
        expected = weights(alone.inverter)
        assert all(torch.allclose(value, expected[name]) for name, value in weights(trainer.inverter).items())


def test_only_the_gradients_that_are_needed_are_made() -> None:
    target = language_model()
    stream = pseudo(target)
    few = InverterTrainer.fresh(target, replace(QUICK, share=0.01, defenses=(parse_defense("sign"),)), stream, 1)
    whole = InverterTrainer.fresh(target, replace(QUICK, share=0.01, defenses=(parse_defense("clip:1"),)), stream, 1)
    assert set(few.names) == set(few.inverter.reduction.names) < set(QUICK.sent(target))
    assert set(whole.names) == set(QUICK.sent(target))


# --- interruption ----------------------------------------------------------------------------------------------------


def test_training_that_was_killed_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = language_model()
    stream, held_out = pseudo(target, size=512), pseudo(target, seed=1)
    whole = train_inverter(target, QUICK, stream, held_out, tmp_path / "whole")
    monkeypatch.setattr("gradleak.inversion.training.CHECKPOINT_SECONDS", 0.0)

    def kill(report: TrainingReport) -> None:
        if report.samples >= 6 * QUICK.chunk:
            raise KilledError

    with pytest.raises(KilledError):
        train_inverter(target, QUICK, stream, held_out, tmp_path / "killed", kill)
    reports: list[TrainingReport] = []
    resumed = train_inverter(target, QUICK, stream, held_out, tmp_path / "killed", reports.append)
    assert [report.samples for report in reports] == [7 * QUICK.chunk, 8 * QUICK.chunk]
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    assert resumed.card == whole.card


def test_a_finished_training_is_not_repeated_and_another_is_refused(tmp_path: Path) -> None:
    target = language_model()
    stream, held_out = pseudo(target, size=256), pseudo(target, seed=1)
    first = train_inverter(target, QUICK, stream, held_out, tmp_path)
    reports: list[TrainingReport] = []
    again = train_inverter(target, QUICK, stream, held_out, tmp_path, reports.append)
    assert not reports
    assert again.card == first.card
    with pytest.raises(GradleakError, match="another training"):
        train_inverter(target, replace(QUICK, lr=1e-4), stream, held_out, tmp_path)
    with pytest.raises(GradleakError, match="another training"):
        train_inverter(language_model(seed=1), QUICK, stream, held_out, tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(GradleakError, match="cannot be read") as caught:
        train_inverter(target, QUICK, stream, held_out, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_rate_of_an_unfinished_training_is_remembered(tmp_path: Path) -> None:
    target = language_model()
    assert checkpoint_rate(tmp_path) is None
    recipe = replace(QUICK, lr=1e-4, epochs=1)
    train_inverter(target, recipe, pseudo(target, size=128), pseudo(target, seed=1), tmp_path)
    assert checkpoint_rate(tmp_path) == 1e-4


def test_training_stops_when_accuracy_stops_rising_and_the_best_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([10.0, 30.0, 20.0, 25.0, 90.0])
    monkeypatch.setattr(InverterTrainer, "accuracy", lambda *_: next(found))
    target = language_model()
    recipe = replace(QUICK, epochs=10, patience=2)
    inverter = train_inverter(target, recipe, pseudo(target, size=128), pseudo(target, seed=1), tmp_path)
    assert (inverter.card.accuracy, inverter.card.samples) == (30.0, 2 * 128)
    assert next(found) == 90.0


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"reduction": "hash", "direct": False}, {"output": "vocabulary"}], ids=str)
def test_a_saved_inverter_answers_as_before(tmp_path: Path, changes: dict[str, object]) -> None:
    target = language_model()
    stream = pseudo(target)
    trainer = InverterTrainer.fresh(target, replace(QUICK, **changes), stream, 1)  # type: ignore[arg-type]
    save_inverter(trainer.inverter, tmp_path)
    state = torch.get_rng_state()
    loaded = load_inverter(tmp_path, target)
    assert torch.equal(torch.get_rng_state(), state)
    assert loaded.card == trainer.inverter.card == read_card(tmp_path)
    features = torch.randn(3, loaded.reduction.features) * trainer.inverter.mean.abs().mean()
    assert torch.allclose(loaded(features), trainer.inverter(features), atol=2e-2)
    assert loaded(features).shape == (3, 1, 6, len(target.word_embeddings))


def test_an_output_of_words_is_far_smaller_than_one_of_the_vocabulary(tmp_path: Path) -> None:
    target = language_model()
    target.model.resize_token_embeddings(4_000)  # type: ignore[operator]
    target = Target(target.model, target.tokenizer, target.family, task="causal-lm")
    stream = pseudo(target)
    sizes = {}
    for output in ("words", "vocabulary"):
        recipe = replace(QUICK, output=output, direct=False, chunk=32, probe=64)
        save_inverter(InverterTrainer.fresh(target, recipe, stream, 1).inverter, tmp_path / output)
        sizes[output] = (tmp_path / output / FILE).stat().st_size
    assert sizes["words"] < 0.2 * sizes["vocabulary"]


@pytest.mark.parametrize("content", [b"", b"nothing at all", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_inverter_is_refused_with_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(GradleakError, match="cannot be read") as caught:
        load_inverter(tmp_path, language_model())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": [10**9]},
        {"hidden": [77]},
        {"hidden": "wide"},
        {"tokens": "many"},
        {"origin": 3},
        {"parameters": ["\x1b[31m"]},
        {"share": "all"},
        {"reduction": "magic"},
    ],
    ids=repr,
)
def test_a_card_that_makes_no_sense_is_refused_with_one_line(tmp_path: Path, changes: dict[str, object]) -> None:
    target = language_model()
    recipe = replace(QUICK, direct=False, chunk=32, probe=64)
    inverter = InverterTrainer.fresh(target, recipe, pseudo(target), 1).inverter
    save_inverter(inverter, tmp_path)
    with safe_open(str(tmp_path / FILE), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        metadata = file.metadata()
    card = json.loads(metadata["card"]) | changes
    save_file(tensors, tmp_path / FILE, metadata=metadata | {"card": json.dumps(card)})
    with pytest.raises(GradleakError, match=r"is damaged|cannot be read|speaks of a layer|unknown reduction"):
        load_inverter(tmp_path, target)


@pytest.mark.parametrize("key", ["card", "training", "chunks", "steps", "accuracies"])
@pytest.mark.parametrize("value", ["", "{", "[]", "9" * 5_000, "null"])
def test_a_checkpoint_that_makes_no_sense_is_refused_with_one_line(tmp_path: Path, key: str, value: str) -> None:
    target = language_model()
    metadata = {"card": "{}", "training": "{}", "chunks": "1", "steps": "1", "accuracies": "[]"} | {key: value}
    save_file({"w": torch.zeros(1)}, tmp_path / CHECKPOINT, metadata=metadata)
    with pytest.raises(GradleakError, match=r"checkpoint\.safetensors is damaged"):
        TrainingState.load(tmp_path, target, QUICK, pseudo(target), 1)


# --- batches of several ----------------------------------------------------------------------------------------------


def test_sentences_of_a_batch_may_be_answered_in_any_order() -> None:
    ids = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    logits = torch.nn.functional.one_hot(ids[:, [2, 0, 1]], 8).float() * 20
    assert best_orders(logits, ids).tolist() == [[1, 2, 0]]
    assert torch.equal(take_order(logits.argmax(dim=-1), best_orders(logits, ids)), ids)
    assert float(matched_loss(logits, ids)) < 1e-4
    assert float(matched_loss(logits.flip(2), ids)) > 1


def test_an_inverter_learns_batches_of_two() -> None:
    target = language_model()
    stream = pseudo(target, 4)
    recipe = replace(QUICK, tokens=4, shortest=4, sequences=2)
    training = JointTraining(
        target, [InverterTrainer.fresh(target, recipe, stream, 60)], stream, pseudo(target, 4, seed=1), 64
    )
    losses = [float(training.train(number)[0]) for number in range(15)]
    assert losses[-1] < 0.8 * losses[0]


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_the_papers_values() -> None:
    assert RATES == (1e-3, 1e-4, 1e-5)
    assert (PAPER.reduction, PAPER.share, PAPER.hidden, PAPER.batch, PAPER.epochs) == ("hash", 0.1, (600, 1000), 64, 20)
    assert (PAPER.output, PAPER.direct, PAPER.tokens, PAPER.embeddings) == ("vocabulary", False, 16, "words-frozen")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reduction": "hsh"}, "did you mean 'hash'"),
        ({"output": "letters"}, "output"),
        ({"share": 0.0}, "share"),
        ({"lr": 0.0}, "lr"),
        ({"hidden": (0,)}, "at least 1"),
        ({"sequences": 5}, "at most 4"),
        ({"sequences": 2, "defenses": (parse_defense("dpsgd:1,0.1"),)}, "dpsgd"),
    ],
    ids=str,
)
def test_a_recipe_that_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Recipe(**changes)  # type: ignore[arg-type]


def test_a_share_too_small_for_any_row_is_refused() -> None:
    target = language_model()
    with pytest.raises(GradleakError, match="larger"):
        InverterTrainer.fresh(target, replace(QUICK, share=1e-9), pseudo(target), 1)


def test_the_learning_rate_is_chosen_by_trying() -> None:
    target = language_model()
    recipe = replace(QUICK, chunk=32, batch=32, hidden=(16,), probe=64)
    assert choose_rate(target, recipe, pseudo(target), pseudo(target, seed=1)) == 1e-3


def test_special_tokens_and_padding_do_not_count() -> None:
    target = small_target("bert")
    tokens = pseudo(target, 6, 4).draw(0, 20)
    counted = countable(target, tokens.ids, tokens.mask)
    assert counted.sum(dim=1).tolist() == [length - 2 for length in tokens.lengths]
