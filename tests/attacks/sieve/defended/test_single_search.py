from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from gradleak.attacks.sieve.defended.sentence_scorer import SentenceScorer
from gradleak.attacks.sieve.defended.signal_subspace import signal_subspace
from gradleak.attacks.sieve.defended.single_search import read_sentence, refine_sentence
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.defenses import parse_defense
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from wide_targets import ids_of, wider_target


def test_the_signal_is_what_stands_out_of_noise_and_nothing_stands_out_of_noise_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 80, generator=generator)
    noise = torch.randn(120, 80, generator=generator)
    found = signal_subspace([torch.randn(120, 3, generator=generator) @ rows + 0.3 * noise])
    assert found is not None
    assert len(found.factor) == 3
    assert found.captured_energy(rows.double()) > 0.9
    assert found.captured_energy(torch.randn(3, 80, generator=generator).double()) < 0.2
    assert signal_subspace([noise]) is None


@pytest.mark.parametrize("defense", ["noise", "sign", "prune:0.8"])
def test_a_sentence_is_read_exactly_through_a_defense_with_nothing_known(defense: str) -> None:
    target = wider_target()
    text = "a big dog ran on the mat"
    found = read_sentence(observed_by(target, defended(target, text, defense)), None)
    assert found is not None
    assert found[0] == ids_of(target, [text])[0]


def test_a_known_length_is_kept() -> None:
    target = wider_target()
    gradient = defended(target, "the big dog ran on", "noise")
    found = read_sentence(observed_by(target, gradient), 5)
    assert found is not None
    assert len(found[0]) == 5


def test_the_best_words_are_those_that_a_sentence_lacks() -> None:
    target = wider_target()
    text = "the big dog ran on"
    scorer = SentenceScorer(observed_by(target, defended(target, text, "noise")))
    truth = torch.tensor(ids_of(target, [text])[0])
    for place in range(1, len(truth) - 1):
        hole = truth.clone()
        hole[place] = target.tokenizer.unk_token_id
        assert int(scorer.best_words(hole, place, 1)) == int(truth[place])


def test_a_refinement_repairs_length_order_and_words_of_a_start() -> None:
    target = wider_target()
    text = "the big dog ran on the mat"
    gradient = defended(target, text, "noise")
    observed = observed_by(target, gradient)
    truth = torch.tensor(ids_of(target, [text])[0])
    shorter = truth[[0, 1, 3, 2, 4, 5, 6, 8]]
    sentence, distance = refine_sentence(observed, SentenceScorer(observed), [shorter], resize=True)
    assert sentence.tolist() == truth.tolist()
    assert distance < 0.5


def observed_by(target: Target, gradient: Mapping[str, torch.Tensor]) -> ObservedUpdate:
    return ObservedUpdate(
        target, first_layer_inputs(target), gradient, torch.arange(5, len(target.word_embeddings)), 16
    )


def defended(target: Target, text: str, defense: str) -> Mapping[str, torch.Tensor]:
    """Return an update with noise of a tenth of the first maps' size, or with another defense."""
    update = Client(target).update([text], [1])
    generator = torch.Generator().manual_seed(0)
    if defense != "noise":
        return parse_defense(defense).apply(update, generator).tensors
    size = max(float(update.tensors[part.weight].std()) for part in (target.layers[0].query, target.layers[0].key))
    return {name: t + 0.1 * size * torch.randn(t.shape, generator=generator) for name, t in update.tensors.items()}
