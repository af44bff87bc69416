from __future__ import annotations

import pytest
import torch
from small_images import private, small_target

from gradleak.vision.observation import excess, matching_loss, negative_log_likelihood, observe
from gradleak.vision.sample_gradients import flat


@pytest.mark.parametrize("defense", [(), ("sign",), ("noise:0.01",), ("prune-global:0.9",)])
def test_labels_are_read_from_the_gradient(defense: tuple[str, ...]) -> None:
    _, labels, seen = private(small_target(), 4, *defense)
    sure = ~seen.doubtful
    assert sure.any()
    assert torch.equal(seen.labels[sure], labels[sure])


@pytest.mark.parametrize(
    ("defense", "channel"),
    [
        ((), "exact"),
        (("sign",), "sign"),
        (("noise:0.1",), "noise"),
        (("noise:0.1", "sign"), "sign"),
        (("prune:0.9",), "pruned"),
    ],
)
def test_the_last_lossy_defense_names_the_channel(defense: tuple[str, ...], channel: str) -> None:
    assert private(small_target(), 2, *defense)[2].channel == channel


def test_signs_and_pruning_are_seen_without_being_told() -> None:
    target = small_target()
    for defense, channel in (("sign", "sign"), ("prune-global:0.9", "pruned")):
        sent = private(target, 2, defense)[2].sent
        shapes = {name: tensor.shape for name, tensor in target.parameters.items()}
        parts = torch.split(sent, [shape.numel() for shape in shapes.values()], dim=1)
        gradients = {n: part.view(-1, *shape) for (n, shape), part in zip(shapes.items(), parts, strict=True)}
        assert observe(target, gradients, torch.zeros(2, 1, dtype=torch.long), None).channel == channel


@pytest.mark.parametrize("defense", [(), ("sign",), ("prune-global:0.9",), ("prune:0.9",)])
def test_the_true_gradient_has_the_least_distance(defense: tuple[str, ...]) -> None:
    target = small_target()
    images, labels, seen = private(target, 2, *defense)
    true, other = (flat(target.gradients(pictures, labels)) for pictures in (images, images.flip(4)))
    assert (matching_loss(seen, true) < 1e-5).all()
    assert (matching_loss(seen, true) < matching_loss(seen, other)).all()
    one, two = (negative_log_likelihood(seen, gradient, 1e-3) for gradient in (true, other))
    assert (one < two).all()


@pytest.mark.parametrize("defense", ["prune-global:0.9", "prune:0.9"])
def test_what_pruning_would_have_sent_so_has_no_excess(defense: str) -> None:
    target = small_target()
    images, labels, seen = private(target, 2, defense)
    true = flat(target.gradients(images, labels))
    assert (excess(seen, true) < 1e-8).all()
    assert (excess(seen, 2 * true) > 0.5).all()  # a cosine sees no sizes
    unsent = torch.where(seen.sent == 0, true + 10, true)
    assert (excess(seen, unsent) > 1).all()
    torch.testing.assert_close(matching_loss(seen, unsent), matching_loss(seen, true), atol=1e-6, rtol=0)


def test_the_distance_of_near_matches_has_digits_left() -> None:
    target = small_target()
    images, labels, seen = private(target, 1)
    true = flat(target.gradients(images, labels))
    off = true + 1e-4 * true.norm() * torch.nn.functional.normalize(torch.randn(true.shape), dim=1)
    one, two = true.double()[0], off.double()[0]
    cosine = float(1 - one @ two / (one.norm() * two.norm()))
    assert float(matching_loss(seen, off)) == pytest.approx(cosine, rel=1e-3)


def test_sign_loss_counts_wrong_signs_alone() -> None:
    _, _, seen = private(small_target(), 1, "sign")
    candidate = 0.5 * seen.sent
    assert float(matching_loss(seen, candidate)) == 0
    candidate[0, 0] *= -1
    assert float(matching_loss(seen, candidate)) == pytest.approx(0.25 if seen.sent[0, 0] else 0)


def test_pruned_entries_may_not_exceed_the_smallest_that_was_sent() -> None:
    _, _, seen = private(small_target(), 1, "prune-global:0.9")
    silent = int((seen.sent[0] == 0).nonzero()[0])
    least = float(seen.sent.abs()[seen.sent != 0].min())
    below, above = seen.sent.clone(), seen.sent.clone()
    below[0, silent], above[0, silent] = 0.9 * least, 1.5 * least
    assert negative_log_likelihood(seen, above, 1e-2 * least) > 10 + negative_log_likelihood(seen, below, 1e-2 * least)
