"""Dropout masks that the update of one sentence shows: those of the classifier's input and of the last layer.

A classifier uses one token of each sentence, so with one sentence the gradients of the classifier and of the last
layer's maps after its attention are outer products. Where dropout follows a map, the gradient of its output is zero
for entries that were dropped; where it precedes one, the input is. What is left there is noise, and more entries are
as small as noise than the number of slightly larger ones lets expect. That also tells whether a client has dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.matching.rule_check import check_rules
from gradleak.targets import Target
from gradleak.targets.dropout import DropoutSite, dropout_sites

NOISE, CERTAIN, SHARE = 2.5, 3.0, 0.04
"""Entries below the first number of deviations may be noise alone; some were dropped if there are more of them than
expected, by the second number of deviations and by the last fraction of all."""


@dataclass(frozen=True)
class VisibleMasks:
    """Masks of one sentence's first token.

    Attributes:
        target: the model.
        masks: the probability that an entry was kept, by dropout site `[width]`; empty if no dropout shows.
    """

    target: Target
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    _sites: dict[int, dict[str, DropoutSite]] = field(default_factory=dict, repr=False)

    def sites(self, tokens: int) -> dict[str, DropoutSite]:
        """Return all dropout sites of a sentence of so many tokens."""
        if tokens not in self._sites:
            self._sites[tokens] = dropout_sites(self.target, tokens)
        return self._sites[tokens]

    def by_site(self) -> dict[str, Tensor]:
        """Return the masks by site, for sentences of any length `[1, width]`, or `[width]` of the classifier's input.

        After its attention the last layer's other tokens do not count: they may as well have the first one's mask.
        """
        sites = self.sites(self.target.min_length) if self.masks else {}
        return {name: mask[None] if sites[name].token_dims else mask for name, mask in self.masks.items()}


def visible_masks(target: Target, gradient: Mapping[str, Tensor], deviation: float) -> VisibleMasks:
    """Return the masks that the noisy update of one sentence shows.

    Args:
        target: the model.
        gradient: gradients by name.
        deviation: standard deviation of the noise.
    """
    if target.task != "classification" or not check_rules(target).cls_token_only:
        return VisibleMasks(target)
    sites = dropout_sites(target, target.min_length)
    found = {}
    weight = gradient.get(f"{target.classifier}.weight")
    last = next(reversed(sites.items()), None)
    if weight is not None and last is not None and last[1].shape == weight.shape[1:]:
        found[last[0]] = _kept(weight.T, deviation, last[1].rate)
    for part in (target.layers[-1].attention_output, target.layers[-1].feed_forward_out):
        parent = part.module.rpartition(".")[0]
        for name, site in sites.items():
            if name.rpartition(".")[0] == parent and part.weight in gradient and site.token_dims == (0,):
                own = part.weight_in(gradient)
                found[name] = _kept(own, deviation, site.rate) if site.shape[1:] == own.shape[:1] else None
    return VisibleMasks(target, {name: kept.to(target.dtype) for name, kept in found.items() if kept is not None})


def _kept(outer: Tensor, deviation: float, rate: float) -> Tensor | None:
    """Return the probability that each row of a noisy outer product was kept; None if hardly any seems dropped.

    Args:
        outer: the gradient, with a row for each entry that may have been dropped.
        deviation: standard deviation of the noise.
        rate: the fraction that is dropped.
    """
    right = torch.linalg.svd(outer.double(), full_matrices=False)[2][0]
    sizes = (outer.double() @ right).abs() / deviation
    expected = int(((sizes >= NOISE) & (sizes < 3 * NOISE)).sum()) / 2
    more = int((sizes < NOISE).sum()) - expected
    if more < max(CERTAIN * (expected + 1) ** 0.5, SHARE * len(sizes)):
        return None
    dropped = rate * (2 / torch.pi) ** 0.5 * (-sizes.square() / 2).exp()  # densities of entries of this size
    kept = (expected + 1) / NOISE / len(sizes)
    return torch.where(sizes < 3 * NOISE, kept / (kept + dropped), 1.0)
