from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from gradleak.attacks.sieve.noise.likelihood import Likelihood
from gradleak.attacks.sieve.noise.visible_masks import visible_masks
from gradleak.exchange import Deadline
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_masks, dropout_sites
from wide_targets import ids_of, wider_target

TEXT = "the big dog ran on a mat"
DEVIATION = 1e-5


@pytest.fixture(scope="module")
def target() -> Target:
    return wider_target()


def drawn_masks(target: Target, tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: (torch.rand(1, *site.shape, generator=generator) > site.rate).float()
        for name, site in dropout_sites(target, tokens).items()
    }


def noisy_gradient(target: Target, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of one sentence by autograd, with these masks and noise."""
    (truth,) = ids_of(target, [TEXT])
    ids = torch.tensor([truth])
    leaves = {name: own for name, own in target.parameters.items() if name not in target.embedding_parameters}
    for leaf in leaves.values():
        leaf.requires_grad_()
    with dropout_masks(target, masks):
        losses = target.sequence_losses(target.embed(ids), torch.ones_like(ids, dtype=torch.bool), torch.tensor([1]))
    gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(0)
    return {
        name: own + DEVIATION * torch.randn(own.shape, generator=generator)
        for name, own in zip(leaves, gradients, strict=True)
    }


def test_the_masks_of_the_last_layer_and_the_classifier_are_read(target: Target) -> None:
    (truth,) = ids_of(target, [TEXT])
    masks = drawn_masks(target, len(truth))
    found = visible_masks(target, noisy_gradient(target, masks), DEVIATION)
    assert len(found.masks) == 3
    for name, own in found.by_site().items():
        true = masks[name][0, :1] if dropout_sites(target, len(truth))[name].token_dims else masks[name][0]
        assert own.shape == true.shape
        assert ((own > 0.5) == (true > 0.5)).float().mean() > 0.9


def test_without_dropout_no_mask_is_seen(target: Target) -> None:
    assert not visible_masks(target, noisy_gradient(target, {}), DEVIATION).masks


def test_masks_bring_the_true_sentence_closer_and_a_wrong_one_less_so(target: Target) -> None:
    (truth,) = ids_of(target, [TEXT])
    gradient = noisy_gradient(target, drawn_masks(target, len(truth)))
    likelihood = Likelihood(target, gradient, DEVIATION, 1)
    wrong = (*truth[:2], truth[3], truth[2], *truth[4:])
    plain, fitted = likelihood([truth]), likelihood.with_masks([truth, wrong])
    assert float(fitted[0]) > float(plain[0])
    assert float(fitted[0]) > float(fitted[1])


def test_masks_are_not_fitted_when_the_time_is_up(target: Target) -> None:
    (truth,) = ids_of(target, [TEXT])
    gradient = noisy_gradient(target, drawn_masks(target, len(truth)))
    late = Likelihood(target, gradient, DEVIATION, 1, Deadline(0))
    assert float(late.with_masks([truth])[0]) == pytest.approx(float(late([truth])[0]), rel=1e-3)
