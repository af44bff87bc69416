from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.plain.attention_test import outside_contexts
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import row_space
from gradleak.targets.hooks import captured_inputs
from wide_targets import ids_of, sent, wider_target


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2"])
def test_contexts_are_those_of_the_model(family: str) -> None:
    target = wider_target(family).to(dtype=torch.float64)
    ids = torch.tensor([[2, 7, 9, 7, 3]])
    pairs = TokenPairs.of(target, first_layer_inputs(target), ids[0], torch.arange(5))
    module = target.layers[0].attention_output.module
    expected = captured_inputs(target, ids, [module])[module]
    torch.testing.assert_close(pairs.contexts(torch.arange(5)[None]), expected)


def test_a_right_sentence_leaves_nothing_outside_and_a_changed_one_does() -> None:
    target = wider_target()
    space = row_space([target.layers[0].attention_output.weight_in(sent(target).tensors)])
    ids = torch.tensor(ids_of(target)[0])
    other = ids.clone()
    other[2] = 20
    tokens, positions = torch.cat([ids, other]), torch.arange(len(ids)).repeat(2)
    pairs = TokenPairs.of(target, first_layer_inputs(target), tokens, positions)
    right, wrong = outside_contexts(pairs, torch.arange(2 * len(ids)).view(2, -1), space)
    assert right < 1e-5
    assert wrong > 1e-2


def test_no_pairs_have_no_contexts() -> None:
    target = wider_target()
    none = torch.zeros(0, dtype=torch.long)
    assert TokenPairs.of(target, first_layer_inputs(target), none, none).key.shape == (0, 4, 24)
