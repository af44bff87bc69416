"""Total variation: how rough images are."""

from __future__ import annotations

from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, summed over both directions, of each client.

    Args:
        images: `[clients, …, height, width]`.
    """
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(dim=1)
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(dim=1)
    return down + across
