from __future__ import annotations

import pytest
import torch

import gradleak as gl
from gradleak.attacks.sieve.defended.reader import read_defended
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.rounded.peeling import Peeling, Search, number_of_equal_parts
from gradleak.exchange import Knowledge
from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.recompute import batch_gradient
from gradleak.targets import Target
from wide_targets import LABELS, TEXTS, ids_of, wider_target


@pytest.mark.parametrize(
    ("settings", "counted", "found"),
    [
        ({"steps": 4, "batch": 2}, 8, 8),
        ({"steps": 4, "batch": 2}, 5, 8),  # five texts would be taken unequally often
        ({"steps": 4, "batch": 2}, 4, 4),  # twice each
        ({"steps": 2, "batch": 1}, 3, 2),  # the third text is never taken
        ({"epochs": 10, "batch": 4}, 16, 16),
        ({"epochs": 10, "batch": 4}, None, None),
        ({"epochs": 1}, 3, 3),
        ({"steps": 4, "batch": 2, "momentum": 0.9}, 8, None),
        ({"steps": 4, "batch": 2, "clip": 1.0}, 8, None),
        ({"steps": 4, "batch": 2, "schedule": "linear"}, 8, None),
        ({"steps": 4, "batch": 2, "optimizer": "adamw"}, 8, None),
    ],
)
def test_the_number_of_texts_with_equal_parts(
    settings: dict[str, object], counted: int | None, found: int | None
) -> None:
    assert number_of_equal_parts(FedAvg(lr=1e-4, **settings), counted) == found


def test_what_known_sentences_leave_is_the_gradient_of_the_others_as_far_as_rounding_shows_it() -> None:
    target = wider_target()
    update = Client(target, fedavg=FedAvg(steps=3, lr=1e-6, batch=1)).update(TEXTS, LABELS)
    gradient, inputs = as_gradient(target, update), first_layer_inputs(target)
    words = torch.arange(5, len(target.word_embeddings))
    observed = ObservedUpdate(target, inputs, gradient, words, 16, protocol=update.protocol).counted(3).restored
    texts = list(zip(ids_of(target), LABELS, strict=True))
    rest = Peeling(observed, 3, 16, 1, lambda *_: ()).without(dict(texts[:2]))
    truth = batch_gradient(target, [texts[2][0]], [texts[2][1]], list(gradient))
    name = inputs.maps[-1].weight
    assert observed.floors
    assert (rest.gradient[name] - truth[name]).norm() < 0.1 * truth[name].norm()
    assert (gradient[name] - truth[name]).norm() > 0.5 * truth[name].norm()


@pytest.mark.parametrize("settings", [{"epochs": 4, "batch": 1}, {"epochs": 4, "batch": 3}, {"steps": 12, "batch": 1}])
def test_texts_that_are_taken_several_times_are_read(settings: dict[str, int]) -> None:
    target = wider_target()
    update = Client(target, fedavg=FedAvg(lr=1e-4, **settings)).update(TEXTS, LABELS)  # type: ignore[arg-type]
    found = gl.attack("sieve", target, update, budget=60)
    assert sorted(found.texts) == sorted(TEXTS)
    assert found.verified


def peeling_of(target: Target, search: Search) -> Peeling:
    """Return what peels the update of three small steps, a text each."""
    update = Client(target, fedavg=FedAvg(steps=3, lr=1e-5, batch=1)).update(TEXTS, LABELS)
    gradient, words = as_gradient(target, update), torch.arange(5, len(target.word_embeddings))
    observed = ObservedUpdate(target, first_layer_inputs(target), gradient, words, 16, protocol=update.protocol)
    return Peeling(observed.counted(3).at_mean_weights().restored, 3, 16, 1, search)


def test_a_text_with_a_wrong_word_is_read_again_without_the_others() -> None:
    target = wider_target()
    first, second, third = ids_of(target)
    wrong = (*second[:-2], first[2], second[-1])
    peeling = peeling_of(target, lambda *_: ())
    texts = dict(zip((first, wrong, third), LABELS, strict=True))
    assert peeling.read_again(texts, wrong) == dict(zip((first, third, second), (1, 1, 0), strict=True))
    right = dict(zip((first, second, third), LABELS, strict=True))
    assert peeling.read_again(right, second) == right


def test_a_text_that_resembles_none_is_searched_in_what_the_others_leave() -> None:
    target = wider_target()
    first, second, third = ids_of(target)
    wrong = (*first[:3], third[2], third[-1])
    texts = dict(zip((first, wrong, third), (LABELS[0], 1 - LABELS[1], LABELS[2]), strict=True))

    def search(alone: ObservedUpdate, missing: int) -> list[list[int]]:
        assert missing == 1
        near = read_defended(alone, Knowledge(batch_size=1))
        return near.sentences if near else []

    peeling = peeling_of(target, search)
    assert peeling.search_again(texts, wrong) == (second, LABELS[1])
    right = dict(zip((first, second, third), LABELS, strict=True))
    assert peeling.search_again(right, second) is None


def test_near_misses_that_remain_when_all_texts_are_found_are_not_subtracted() -> None:
    target = wider_target()
    peeling = peeling_of(target, lambda *_: ())
    texts = ids_of(target)
    peeling._known = dict(zip(texts, LABELS, strict=True))
    peeling._near = {(*texts[0][:3], texts[1][2], texts[0][-1]): 0}
    peeling._misfits = dict(zip(texts, (0.01, 0.01, 0.1), strict=True))  # the last is doubtful
    assert not peeling._search_each_alone()
    assert list(peeling._known) == texts


@pytest.mark.slow
def test_steps_of_which_rounding_hides_half_are_read_sentence_by_sentence() -> None:
    target = gl.load_target("tiny")
    texts = [
        "While I might want to, this is the kind of thing that Harris has already suggested.",
        "Who has seen my snorkel?",
        "Which goddess helped us?",
        "They have no old.",
    ]
    update = gl.Client(target, fedavg=FedAvg(steps=4, lr=1e-5, batch=1)).update(texts, labels=[1, 1, 1, 0])
    result = gl.attack("sieve", target, update, budget=300)
    assert gl.score(result, texts).exact == 100
    assert result.verified
