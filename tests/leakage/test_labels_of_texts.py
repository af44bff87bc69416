"""The labels of known texts, in closed form and by distance."""

from __future__ import annotations

import pytest
import torch

from gradleak.leakage.labels import labels_from_classifier, nearest_labels
from wide_targets import ids_of, sent, wider_target

every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2"])


@every_family
@pytest.mark.parametrize("num_labels", [2, 5])
def test_labels_are_read_in_closed_form(family: str, num_labels: int) -> None:
    target = wider_target(family, num_labels=num_labels)
    labels = [num_labels - 1, 0, 1]
    assert labels_from_classifier(target, sent(target, labels=labels).tensors, ids_of(target)) == labels


@pytest.mark.parametrize("truth", [[2], [0, 1], [2, 0, 1, 1]])
def test_the_nearest_labels_are_found_one_by_one(truth: list[int]) -> None:
    def distances(tried: list[list[int]]) -> torch.Tensor:
        wrong = [sum(one != other for one, other in zip(labels, truth, strict=True)) for labels in tried]
        return torch.tensor(wrong, dtype=torch.float64)

    assert nearest_labels(distances, len(truth), 3) == (truth, 0.0)
