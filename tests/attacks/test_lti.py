"""LTI: an inverter reads an update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Lti, LtiP
from gradleak.defenses import defend, defense_stream, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update
from gradleak.federation import Client
from gradleak.inversion import AuxiliaryText, InverterTrainer, JointTraining, PseudoText, Recipe, Shape, cut_texts
from gradleak.inverters.storage import FILE, save_inverter
from gradleak.priors import marginal_distribution
from gradleak.targets import Target

WORDS = "the a cat dog sat ran on mat red big . ,"
TEXTS = ["the cat sat on a mat", "a dog ran , the dog", "big red mat . on .", ", the cat ran . ."]
RECIPE = Recipe(tokens=6, shortest=6, hidden=(64, 64), share=0.2, chunk=128, batch=32, probe=256)


def language_model(seed: int = 0) -> Target:
    return small_target("gpt2", "causal-lm", n_embd=32, seed=seed)


def pseudo(target: Target, shape: Shape) -> PseudoText:
    return PseudoText(target, marginal_distribution(target, [WORDS] * 20), shape)


def trained(target: Target, folder: Path, chunks: int = 40, **changes: Any) -> Path:
    """Train an inverter for a few seconds and save it."""
    recipe = replace(RECIPE, **changes)
    stream = pseudo(target, recipe.shape)
    trainer = InverterTrainer.fresh(target, recipe, stream, chunks * 4)
    training = JointTraining(target, [trainer], stream, stream, 8)
    for number in range(chunks):
        training.train(number)
    save_inverter(trainer.inverter, folder)
    return folder


@pytest.fixture(scope="module")
def inverter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(language_model(), tmp_path_factory.mktemp("inverter"))


def token_accuracy(found: tuple[int, ...], text: str, target: Target) -> float:
    truth = target.encode([text]).ids[0].tolist()
    return sum(a == b for a, b in zip(found, truth, strict=True)) / len(truth)


def test_it_reads_text_that_nobody_showed_the_inverter(inverter: Path) -> None:
    target = language_model()
    attack = Lti(inverter=str(inverter))
    updates = [Client(target).update([text]) for text in TEXTS]
    results = attack.many(target, updates, [Knowledge(lengths=[6])] * len(TEXTS))
    found = [token_accuracy(result.token_ids[0], text, target) for result, text in zip(results, TEXTS, strict=True)]
    assert sum(found) / len(found) > 0.6
    alone = attack(target, updates[1], Knowledge(lengths=[6]))
    assert alone.token_ids == results[1].token_ids


def test_the_loss_is_the_cosine_distance_of_what_was_found(inverter: Path) -> None:
    target = language_model()
    update = Client(target).update(TEXTS[:1])
    result = Lti(inverter=str(inverter))(target, update, Knowledge(lengths=[6]))
    again = Client(target).update(result.texts).tensors
    cosines = [
        torch.nn.functional.cosine_similarity(update.tensors[n].flatten(), again[n].flatten(), dim=0) for n in again
    ]
    assert result.loss == pytest.approx(1 - float(torch.stack(cosines).mean()), abs=1e-4)


def test_it_learns_lengths_special_tokens_and_labels_of_a_classifier(tmp_path: Path) -> None:
    target = small_target("bert", hidden_size=32)
    folder = trained(target, tmp_path, tokens=8, shortest=4, embeddings="words-frozen", share=0.5, chunks=60)
    update = Client(target, embeddings="words-frozen").update(["the cat sat"], [1])
    told = Lti(inverter=str(folder))(target, update, Knowledge(lengths=[5], labels=[1]))
    before, after = target.special_tokens
    assert told.token_ids[0][:1] == before
    assert told.token_ids[0][-1:] == after
    assert len(told.token_ids[0]) == 5
    read = Lti(inverter=str(folder))(target, update, Knowledge())
    assert len(read.token_ids[0]) == 5
    assert read.labels == (1,)
    assert any("lengths 5: read by the inverter" in note for note in read.notes)


def test_batches_of_two_are_read_and_lengths_given_to_the_answers_they_fit(tmp_path: Path) -> None:
    target = small_target("bert")
    folder = trained(target, tmp_path, chunks=2, sequences=2, tokens=8, shortest=4)
    update = Client(target).update(["the cat", "a big red dog ran"], [0, 1])
    result = Lti(inverter=str(folder))(target, update, Knowledge(lengths=[4, 7], labels=[0, 1]))
    assert tuple(map(len, result.token_ids)) == (4, 7)
    unlabelled = Lti(inverter=str(folder))(target, update, Knowledge(lengths=[4, 7]))
    assert unlabelled.labels is not None
    assert unlabelled.loss <= result.loss + 1e-6


# --- which inverter --------------------------------------------------------------------------------------------------


def test_of_several_the_one_for_the_defense_is_taken(tmp_path: Path) -> None:
    target = language_model()
    for name, defenses in (("none", ()), ("sign", (parse_defense("sign"),))):
        trained(target, tmp_path / name, chunks=1, defenses=defenses)
    sign = parse_defense("sign")
    update = defend(Client(target).update(TEXTS[:1]), [sign], defense_stream(0))
    attack = Lti(inverter=str(tmp_path))
    told = attack(target, update, Knowledge(lengths=[6], defenses=["sign"]))
    alone = Lti(inverter=str(tmp_path / "sign"))(target, update, Knowledge(lengths=[6]))
    assert told.token_ids == alone.token_ids
    assert not told.notes
    other = attack(target, update, Knowledge(lengths=[6], defenses=["noise:0.1"]))
    assert "learnt under defense none; this update is under noise:0.1" in other.notes[0]
    both = attack.many(target, [update, update], [Knowledge(lengths=[6], defenses=d) for d in (["sign"], ())])
    assert both[0].token_ids == told.token_ids


def test_an_update_that_shows_more_is_read_as_well(inverter: Path) -> None:
    target = language_model()
    frozen, more = (Client(target, embeddings=e).update(TEXTS[:1]) for e in ("frozen", "trained"))  # type: ignore[arg-type]
    results = [Lti(inverter=str(inverter))(target, update, Knowledge(lengths=[6])) for update in (frozen, more)]
    assert results[0].token_ids == results[1].token_ids


def refused(attack: Lti, target: Target, update: Update, known: Knowledge) -> str:
    with pytest.raises(GradleakError) as caught:
        attack(target, update, known)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_update_of_another_target_is_refused(inverter: Path) -> None:
    other = language_model(seed=1)
    update = Client(other).update(TEXTS[:1])
    message = refused(Lti(inverter=str(inverter)), other, update, Knowledge(lengths=[6]))
    assert "trained for other weights" in message
    assert other.fingerprint[:12] in message
    assert language_model().fingerprint[:12] in message


def test_updates_that_an_inverter_cannot_read_are_refused(inverter: Path, tmp_path: Path) -> None:
    target = language_model()
    attack = Lti(inverter=str(inverter))
    update = Client(target).update(TEXTS[:1])
    one = Knowledge(lengths=[6])
    assert "at most 6 tokens" in refused(attack, target, update, Knowledge(lengths=[40]))
    assert "batches of 1" in refused(attack, target, update, Knowledge(lengths=[6, 6]))
    with pytest.raises(GradleakError, match="this text has 7"):
        attack.many(target, [update, update], [one, Knowledge(lengths=[7])])
    part = update.with_tensors(dict(list(update.tensors.items())[:1]))
    assert "not sent" in refused(attack, target, part, one)
    assert "there is no inverter in" in refused(Lti(inverter=str(tmp_path)), target, update, one)
    assert "gradleak invert train" in refused(Lti(), target, update, one)
    (tmp_path / FILE).write_bytes(b"nothing")
    assert "cannot be read" in refused(Lti(inverter=str(tmp_path)), target, update, one)


def test_lti_p_takes_no_inverter_that_has_seen_text(inverter: Path, tmp_path: Path) -> None:
    target = language_model()
    update = Client(target).update(TEXTS[:1])
    known = Knowledge(lengths=[6])
    expected = Lti(inverter=str(inverter))(target, update, known).token_ids
    assert LtiP(inverter=str(inverter))(target, update, known).token_ids == expected
    text = AuxiliaryText(cut_texts(target, TEXTS * 3, RECIPE.shape))
    save_inverter(InverterTrainer.fresh(target, RECIPE, text, 1).inverter, tmp_path)
    assert "not on pseudo-data alone" in refused(LtiP(inverter=str(tmp_path)), target, update, known)
    Lti(inverter=str(tmp_path))(target, update, known)
