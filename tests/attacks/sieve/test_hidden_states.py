"""What enters the first feed-forward map, as a function of tokens and contexts."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.hidden_states import HiddenStates
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets.hooks import captured_inputs
from wide_targets import wider_target


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_hidden_states_are_those_of_the_model_but_for_scale_and_shift(family: str) -> None:
    target = wider_target(family).to(dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in target.parameters.items():
            if parameter.ndim == 1:  # fresh norms scale by 1 and shift by 0
                parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    inputs = first_layer_inputs(target)
    states = HiddenStates.of(target, inputs)
    assert states is not None
    ids = torch.tensor([[2, 7, 9, 7, 3]])
    contexts = TokenPairs.of(target, inputs, ids[0], torch.arange(5)).contexts(torch.arange(5)[None])[0]
    found = states.own(ids[0], torch.arange(5)) + contexts @ states.mixing
    module = target.layers[0].feed_forward_in.module
    expected = captured_inputs(target, ids, [module])[module][0] - states.shift
    torch.testing.assert_close(torch.nn.functional.normalize(found), torch.nn.functional.normalize(expected))


@pytest.mark.parametrize("family", ["albert", "gpt2"])
def test_no_linear_function_is_claimed_where_the_layer_is_another(family: str) -> None:
    target = wider_target(family)
    assert HiddenStates.of(target, first_layer_inputs(target)) is None
