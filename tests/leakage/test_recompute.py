"""Gradients that are computed again are those of the client, in its precision."""

from __future__ import annotations

import pytest
import torch

from gradleak.federation import Client
from gradleak.leakage.recompute import batch_gradient
from wide_targets import LABELS, TEXTS, ids_of, wider_target


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_batch_computed_again_in_the_precision_of_the_client_is_its_gradient(precision: str) -> None:
    target = wider_target()
    update = Client(target, precision=precision).update(TEXTS, LABELS)
    again = batch_gradient(target, ids_of(target), LABELS, list(update.tensors), precision)
    other = batch_gradient(target, ids_of(target), LABELS, list(update.tensors), "bf16")
    for name, expected in update.tensors.items():
        torch.testing.assert_close(again[name], expected, rtol=1e-4, atol=1e-6)
    differences = [float((other[name] - again[name]).norm()) for name in other]
    assert (max(differences) == 0) == (precision == "bf16")
