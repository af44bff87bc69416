from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak.attacks import find_attack
from gradleak.attacks.sieve.defended import reader
from gradleak.attacks.sieve.noise import map_search
from gradleak.attacks.sieve.noise.likelihood import Likelihood
from gradleak.attacks.sieve.noise.map_search import read_by_likelihood
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from wide_targets import ids_of, wider_target

TEXT = "the big dog ran on a mat"
DEVIATION = 1e-4


def noisy(target: Target) -> ObservedUpdate:
    update = Client(target).update([TEXT], [1])
    update = parse_defense(f"noise:{DEVIATION}").apply(update, torch.Generator().manual_seed(0))
    return ObservedUpdate(
        target, first_layer_inputs(target), update.tensors, torch.arange(5, len(target.word_embeddings)), 16
    )


def test_a_sentence_with_wrong_words_is_put_right_without_a_prior() -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    other = next(token for token in range(5, 100) if token not in truth)
    wrong = [*truth[:2], other, truth[4], truth[3], *truth[5:]]
    found = read_by_likelihood(noisy(target), DefendedReading([wrong], [1], 0.5), None)
    assert tuple(found.sentences[0]) == truth
    assert found.labels == [1]
    assert found.settled


def test_a_sentence_that_leaves_more_than_noise_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    wrong = [truth[0], *truth[3:1:-1], truth[-1]]
    monkeypatch.setattr(map_search.MapSearch, "run", lambda *_: wrong)
    assert not read_by_likelihood(noisy(target), DefendedReading([wrong], [1], 0.5), None).settled


def test_what_seems_to_leave_nothing_but_noise_is_put_right_by_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Likelihood, "leaves_only_noise", lambda *_: True)
    monkeypatch.setattr(map_search.MapSearch, "run", None)
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    other = int((target.word_directions @ target.word_directions[truth[2]]).topk(3).indices[1])
    read = DefendedReading([[*truth[:2], other, *truth[3:]]], [], 0.5)
    assert tuple(read_by_likelihood(noisy(target), read, None).sentences[0]) == truth


@pytest.mark.parametrize("length", [5, 9])
def test_a_known_length_is_kept_from_a_start_and_from_nothing(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_search, "TRIED", 60)
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    start = DefendedReading([[*truth[: length - 1], truth[-1]]], [1], 0.5)
    for read in (start, None):
        assert len(read_by_likelihood(noisy(target), read, None, length).sentences[0]) == length


def test_the_same_update_is_read_the_same_way_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_search, "TRIED", 60)
    target = wider_target()
    first, second = (read_by_likelihood(noisy(target), None, None).sentences for _ in range(2))
    assert first == second


def test_a_prior_can_be_switched_off_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = wider_target()
    update = parse_defense("sign").apply(Client(target).update([TEXT], [1]), torch.Generator())
    assert find_attack("sieve")(prior="none")(target, update).token_ids
    with pytest.raises(GradleakError, match="has no weights as safetensors"):
        find_attack("sieve")(prior=str(tmp_path))(target, update)


@pytest.mark.parametrize("several", [False, True])
def test_what_is_counted_as_several_is_read_as_one_first_where_only_one_shows(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, batch = DefendedReading([[2, 5, 3]], [1], 0.1, settled=True), DefendedReading([[2, 6, 3]] * 5, [1] * 5, 0.1)
    monkeypatch.setattr(reader, "_count", lambda *_: 5)
    monkeypatch.setattr(reader, "noise_energy", lambda *_: 1.0)
    monkeypatch.setattr(reader, "shows_several", lambda *_: several)
    monkeypatch.setattr(reader, "read_by_likelihood", lambda *_: alone)
    monkeypatch.setattr(reader, "read_batch", lambda *_: None)
    monkeypatch.setattr(reader, "read_batch_by_likelihood", lambda *_: batch)
    update = noisy(wider_target())
    assert reader.read_defended(update, Knowledge()) is (batch if several else alone)
    assert reader.read_defended(update, Knowledge(batch_size=5)) is batch
