"""Dropout masks as variables of a guess (GRAB, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradleak.exchange import Victim
from gradleak.optimisation.guess import Guess
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_sites


def with_dropout_masks(target: Target, guess: Guess, victims: Sequence[Victim], *, bernoulli: bool) -> Guess:
    """Add a mask for every dropout layer to a guess.

    Args:
        target: the model.
        guess: the guess at the victims.
        victims: each draws from its own random stream.
        bernoulli: draw the masks as dropout does; else they start at their mean, which is no dropout.
    """
    batch, tokens = guess.slots.mask.shape[:3], guess.slots.mask.shape[3]
    sites = dropout_sites(target, tokens)
    masks = {name: torch.full((*batch, *site.shape), 1 - site.rate, dtype=target.dtype) for name, site in sites.items()}
    for number, victim in enumerate(victims if bernoulli else ()):
        own = int(guess.slots.mask[number].sum(dim=-1).max())
        for name, site in sites.items():
            shape = [own if dim in site.token_dims else size for dim, size in enumerate(site.shape)]
            kept = torch.rand(*batch[1:], *shape, generator=victim.generator) >= site.rate
            part: tuple[slice, ...] = (slice(None), slice(None), *(slice(size) for size in shape))
            masks[name][number][part] = kept.to(target.dtype)
    return replace(guess, dropout={name: mask.to(target.device) for name, mask in masks.items()}, sites=sites)
