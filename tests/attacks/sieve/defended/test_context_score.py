from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from gradleak.attacks.sieve.defended.context_score import ContextScore, best_by_context
from gradleak.attacks.sieve.defended.edits import (
    Replacements,
    lengthened,
    neighbours,
    replaced,
    word_positions,
)
from gradleak.attacks.sieve.observed import EVEN
from gradleak.defenses import parse_defense
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from gradleak.targets.hooks import captured_inputs
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target


def changed(target: Target, defense: str) -> Mapping[str, torch.Tensor]:
    return parse_defense(defense).apply(sent(target, TEXTS, LABELS), torch.Generator().manual_seed(0)).tensors


def truth_of(target: Target) -> list[torch.Tensor]:
    return [torch.tensor(ids) for ids in ids_of(target)]


def sentences_of(groups: list[torch.Tensor | Replacements]) -> list[torch.Tensor]:
    return [group.sentences if isinstance(group, Replacements) else group for group in groups]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_first_layer_by_pairs_is_the_first_layer(family: str) -> None:
    target = wider_target(family)
    score = ContextScore(target, first_layer_inputs(target), changed(target, "sign"), EVEN)
    ids = truth_of(target)[2].repeat(3, 1)
    ids[1, 2], ids[2, 3] = ids[0, 3], ids[0, 2]
    torch.testing.assert_close(score.first_layer(ids), score(ids, 1), rtol=1e-4, atol=1e-5)
    beside = score.with_fixed_sequences(truth_of(target)[:1])
    torch.testing.assert_close(beside.first_layer(ids), beside(ids, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "mpnet"])
def test_replaced_words_are_scored_as_whole_sentences_are(family: str) -> None:
    target = wider_target(family)
    score = ContextScore(target, first_layer_inputs(target), changed(target, "sign"), EVEN)
    first, _, third = truth_of(target)
    words = torch.arange(5, len(target.word_embeddings))[:9].expand(len(third) + 1, -1)
    places = word_positions(target, third)
    for own in (score, score.with_fixed_sequences([first])):
        for group in (replaced(third, places, words), lengthened(third, places, words)):
            torch.testing.assert_close(own.first_layer(group), own(group.sentences, 1), rtol=1e-4, atol=1e-5)


def spanned_by_contexts(target: Target) -> Mapping[str, torch.Tensor]:
    """Return gradients whose rows are random mixtures of the true sentences' contexts, and a little noise."""
    generator = torch.Generator().manual_seed(0)
    gradient = {}
    for layer in target.layers:
        part = layer.attention_output
        contexts = [captured_inputs(target, ids[None], [part.module])[part.module][0] for ids in truth_of(target)]
        basis = torch.linalg.qr(torch.cat(contexts).T)[0]
        mixed = torch.randn(96, basis.shape[1], generator=generator) @ basis.T
        gradient[part.weight] = mixed + 0.1 * torch.randn(96, 96, generator=generator)
    return gradient


def test_a_true_sentence_passes_better_than_its_neighbours_whatever_else_is_in_the_batch() -> None:
    target = wider_target(num_hidden_layers=4)
    score = ContextScore(target, first_layer_inputs(target), spanned_by_contexts(target), EVEN)
    assert score.depth == 3  # the last layer says little
    words = torch.arange(5, len(target.word_embeddings))
    for truth in truth_of(target):
        best = float(score(truth[None]))
        for kind in sentences_of(neighbours(target, truth, words.expand(16, -1), 16)):
            wrong = kind if kind.shape[1] != len(truth) else kind[(kind != truth).any(dim=1)]
            assert float(score(wrong).max()) < best


def test_layers_count_by_their_weights() -> None:
    target = wider_target(num_hidden_layers=4)
    inputs, gradient, ids = first_layer_inputs(target), spanned_by_contexts(target), truth_of(target)[0][None]
    alone = [ContextScore(target, inputs, gradient, (0.0,) * layer + (1.0,))(ids) for layer in range(3)]
    together = ContextScore(target, inputs, gradient, (0.5, 1.5, 2.0))(ids)
    torch.testing.assert_close(together, (0.5 * alone[0] + 1.5 * alone[1] + 2.0 * alone[2]) / 4.0)


def test_a_sentence_that_is_held_is_not_found_again() -> None:
    target = wider_target()
    score = ContextScore(target, first_layer_inputs(target), changed(target, "prune:0.5"), EVEN)
    first, _, third = truth_of(target)
    beside = score.with_fixed_sequences([first])
    assert float(beside(first[None])) < 0.01
    assert float(beside(third[None])) > 10 * float(beside(first[None]))
    assert float(score(first[None])) > 0.5


def test_likeliest_are_the_best_of_all_the_best_first() -> None:
    target = wider_target()
    score = ContextScore(target, first_layer_inputs(target), changed(target, "sign"), EVEN)
    words = torch.arange(5, len(target.word_embeddings))
    kinds = neighbours(target, truth_of(target)[0], words.expand(16, -1), 16)
    every = torch.cat([score(kind) for kind in sentences_of(kinds)])
    sentences, shares = best_by_context(score, kinds, (len(every), len(every), 5))
    assert len(sentences) == 5
    torch.testing.assert_close(shares, every.topk(5).values)
    torch.testing.assert_close(torch.cat([score(ids[None]) for ids in sentences]), shares)


def test_nothing_stands_out_of_noise() -> None:
    target = wider_target()
    noise = {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(0)) for n, t in target.parameters.items()}
    assert ContextScore(target, first_layer_inputs(target), noise, EVEN).depth == 0
