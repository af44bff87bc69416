"""Changes of single words are scored as the changed sentence is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.attacks.sieve.hidden_states import HiddenStates
from gradleak.attacks.sieve.plain.sentence_sketch import SentenceSketch
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import row_space
from wide_targets import ids_of, sent, wider_target

KINDS = pytest.mark.parametrize(("family", "by_state"), [("bert", True), ("bert", False), ("mpnet", True)])


def sketch_of(family: str, by_state: bool) -> tuple[SentenceSketch, Tensor]:
    """Return the sketch of a text's tokens and of others at its positions, and the text."""
    target = wider_target(family)
    inputs = first_layer_inputs(target)
    states = HiddenStates.of(target, inputs) if by_state else None
    layer = target.layers[0]
    part = layer.feed_forward_in if by_state else layer.attention_output
    space = row_space([part.weight_in(sent(target).tensors)])
    ids = torch.tensor(ids_of(target)[0])
    places = torch.arange(len(ids))
    pairs = TokenPairs.of(target, inputs, torch.cat([ids, ids.flip(0)]), torch.cat([places, places]))
    return SentenceSketch(pairs, space, states), places


@KINDS
def test_a_right_sentence_leaves_nothing_outside_and_others_do(family: str, by_state: bool) -> None:
    sketch, row = sketch_of(family, by_state)
    changed = row.clone()
    changed[2] += len(row)
    right, wrong = sketch.losses(torch.stack([row, changed])).tolist()
    assert right < 1e-8
    assert wrong > 1e-3
    assert sketch.view(row).loss == pytest.approx(right, abs=1e-9)


@KINDS
def test_a_replacement_leaves_outside_what_the_replaced_sentence_does(family: str, by_state: bool) -> None:
    sketch, row = sketch_of(family, by_state)
    view = sketch.view(row)
    places = torch.arange(1, len(row) - 1)
    pairs = row[places] + len(row)
    alone = view.alone(pairs, places)
    changed = view.changed(pairs, places, alone)
    for number, place in enumerate(places.tolist()):
        other = row.clone()
        other[place] = pairs[number]
        expected = sketch.view(other)
        torch.testing.assert_close(changed[number], expected.outside, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(alone[number], expected.outside[place], rtol=1e-3, atol=1e-5)
        assert float(sketch.losses(other[None])) == pytest.approx(expected.loss, rel=1e-3)
