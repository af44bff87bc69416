from __future__ import annotations

import pytest

from gradleak.federation import Client
from gradleak.leakage.dropout import dropout_is_off
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import row_space
from wide_targets import LABELS, TEXTS, wider_target


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("send", ["fp32", "fp16", "bf16"])
def test_dropout_is_told_from_a_rounded_row_space(dropout: bool, send: str) -> None:
    target = wider_target()
    inputs = first_layer_inputs(target)
    update = Client(target, dropout=dropout, send=send, seed=3).update(TEXTS[:2], LABELS[:2])
    maps = [part.weight_in(update.tensors) for part in inputs.maps]
    space = row_space(maps, perturbed=send != "fp32")
    assert dropout_is_off(target, inputs, space) is not dropout
