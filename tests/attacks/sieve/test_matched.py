from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sieve_tools import ids_of, wider_target

from gradleak.attacks import find_attack
from gradleak.attacks.sieve import matched
from gradleak.attacks.sieve.batches import Batch
from gradleak.attacks.sieve.inputs import first_inputs
from gradleak.attacks.sieve.matched import read_matched
from gradleak.attacks.sieve.seen import Seen
from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.federation import Client
from gradleak.targets import Target

TEXT = "the big dog ran on a mat"
DEVIATION = 1e-4


def noisy(target: Target) -> Seen:
    update = Client(target).update([TEXT], [1])
    update = parse_defense(f"noise:{DEVIATION}").apply(update, torch.Generator().manual_seed(0))
    return Seen(target, first_inputs(target), update.tensors, torch.arange(5, len(target.word_embeddings)), 16)


def test_a_sentence_with_wrong_words_is_put_right_without_a_prior() -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    other = next(token for token in range(5, 100) if token not in truth)
    wrong = [*truth[:2], other, truth[4], truth[3], *truth[5:]]
    found = read_matched(noisy(target), Batch([wrong], [1], 0.5), None)
    assert tuple(found.sentences[0]) == truth
    assert found.labels == [1]


def test_what_leaves_nothing_but_noise_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    monkeypatch.setattr(matched, "_Search", None)
    read = Batch([list(truth)], [], 0.5)
    assert read_matched(noisy(target), read, None) is read


@pytest.mark.parametrize("length", [5, 9])
def test_a_known_length_is_kept_from_a_start_and_from_nothing(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched, "TRIED", 300)
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    start = Batch([[*truth[: length - 1], truth[-1]]], [1], 0.5)
    for read in (start, None):
        assert len(read_matched(noisy(target), read, None, length).sentences[0]) == length


def test_the_same_update_is_read_the_same_way_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched, "TRIED", 300)
    target = wider_target()
    first, second = (read_matched(noisy(target), None, None).sentences for _ in range(2))
    assert first == second


def test_a_prior_can_be_switched_off_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = wider_target()
    update = parse_defense("sign").apply(Client(target).update([TEXT], [1]), torch.Generator())
    assert find_attack("sieve")(prior="none")(target, update).token_ids
    with pytest.raises(GradleakError, match="has no weights as safetensors"):
        find_attack("sieve")(prior=str(tmp_path))(target, update)
