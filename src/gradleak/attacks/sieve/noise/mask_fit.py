"""Compare sentences with a noisy update of a client that trains with dropout, whose masks nobody knows.

The gradient of a sentence without dropout differs from the update far more than noise does, and a superfluous word may
bring it closer. So each sentence is compared with masks of its own. A few steps from the mean masks lower the squared
error of the whole gradient, most of which the last layers make, and a Gaussian prior with the masks' variance keeps
them small. The matched filter, in which all tensors count, then compares sentences: what was not fitted judges what
was. Fitted and compared by the same measure, a wrong sentence gains as much as the true one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.noise.visible_masks import VisibleMasks
from gradleak.matching import Candidates, Matcher

STEPS, RATE = 3, 0.01
"""Steps of Adam from the mean masks, and their size: further ones fit wrong sentences as well as the true one."""


class MaskFit:
    """The matched filter of sentences, each with dropout masks fitted to the update.

    Args:
        matched_filter: compares gradients by the matched filter.
        squares: compares the same gradients by squared error.
        deviation: standard deviation of the noise.
        visible: the masks that the update shows.
        label: the class of the sentence.
    """

    def __init__(
        self, matched_filter: Matcher, squares: Matcher, deviation: float, visible: VisibleMasks, label: int
    ) -> None:
        self._matched_filter, self._squares = matched_filter, squares
        self._deviation, self._visible, self._label = deviation, visible, label

    def __call__(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return the matched-filter output of each sentence `[sentences]`; −inf where the deadline left no time."""
        values = torch.full((len(sentences),), -torch.inf, dtype=torch.float64)
        for length in {len(ids) for ids in sentences}:
            numbers = [number for number, ids in enumerate(sentences) if len(ids) == length]
            values[numbers] = self._of_one_length([sentences[number] for number in numbers]).cpu()
        return values

    def _of_one_length(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        target, deadline = self._squares.target, self._squares.deadline
        ids = torch.tensor(sentences, device=target.device)[None, :, None]  # [1, sentences, 1, tokens]
        there, labels = torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids[..., 0], self._label)
        sites, known = self._visible.sites(ids.shape[-1]), self._visible.by_site()
        means = {name: torch.full(site.shape, 1 - site.rate).to(target.word_embeddings) for name, site in sites.items()}
        starts = {**means, **known}
        masks = {name: start.repeat(*ids.shape[:3], *[1] * start.ndim) for name, start in starts.items()}
        optimizer = torch.optim.Adam(list(masks.values()), lr=RATE)
        for _ in range(STEPS):
            if deadline.passed:
                break
            leaves = {name: mask.detach().requires_grad_() for name, mask in masks.items()}
            _, gradients = self._squares.gradients(Candidates(target.embed(ids), there, labels, leaves))
            for name, mask in masks.items():
                variance = sites[name].rate * (1 - sites[name].rate)
                fit = gradients[f"dropout.{name}"].to(mask) / (2 * self._deviation**2)
                mask.grad = fit + (mask - means[name]) / variance if name not in known else torch.zeros_like(mask)
            optimizer.step()
            for mask in masks.values():
                mask.clamp_(0, 1)
        return -self._matched_filter(Candidates(target.embed(ids), there, labels, masks))[0]
