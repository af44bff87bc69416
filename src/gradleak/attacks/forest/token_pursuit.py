"""The tokens of a batch, from the first layer: joint sparse recovery over the whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.residual import Dictionary, Residual, coefficients
from gradleak.exchange import Deadline

SHORTLIST = 32
"""How many of the best vectors of the float32 scan are compared again in float64."""

VANISHED = 1e-5
"""A token whose coefficients are below this fraction of the largest was picked by mistake."""

FADED, SPARE = 0.1, 8
"""In an update with visible noise, tokens that score less than this fraction of the best are doubtful. As many of them
are proposed as there are others, and these more: deeper layers decide."""

MEMBER, NOISY_MEMBER = 0.01, 0.1
"""A token occurs if the geometric mean over sites of the fraction outside their row spaces is below this: in a float32
gradient, and in an update with visible noise, where deeper layers sort out those that lie there by chance."""

ROUGHLY = 0.1
"""The same for the scan in float32, which is not exact to the last digits."""


def tokens_in_span(tables: Sequence[Tensor], residuals: Sequence[Residual], member: float = MEMBER) -> Tensor:
    """Return the tokens whose vectors lie in the row space of every site, in order.

    Args:
        tables: by site, the input of every token `[vocabulary, width]`.
        residuals: by site, the update's rows.
        member: the fraction of a vector outside the row space up to which it lies in it.
    """
    rough = -2 * math.log(max(ROUGHLY, 1.5 * member)) * len(residuals)
    near = (_scores(tables, residuals) > rough).nonzero().flatten()
    exact = _scores([table[near].double() for table in tables], residuals)
    return near[exact > -2 * math.log(member) * len(residuals)]


def pursue_tokens(
    tables: Sequence[Tensor],
    residuals: Sequence[Residual],
    most: int,
    deadline: Deadline,
    *,
    noisy: bool = False,
    given: Sequence[int] = (),
) -> list[int]:
    """Return the tokens whose vectors explain the rows, in the order in which they were picked.

    Args:
        tables: by site, the input of every token `[vocabulary, width]`.
        residuals: by site, the update's rows; the picks are projected out of them.
        most: how many to pick at most.
        deadline: when to return those picked so far.
        noisy: whether to stop once most picks are doubtful, as noise is never quite explained.
        given: tokens that were found by other means, picked first.
    """
    vectors = [residual.weighted(table) for residual, table in zip(residuals, tables, strict=True)]
    picked = list(given)
    for residual, own in zip(residuals, vectors, strict=True):
        if picked:
            residual.pick_all(own[torch.tensor(picked, device=own.device)])
    offered = [Dictionary(residual, own) for residual, own in zip(residuals, vectors, strict=True)]
    certain, highest = 0, 0.0
    while len(picked) < most and not all(r.explained for r in residuals) and not deadline.passed:
        scores = torch.stack([one.scores() for one in offered if not one.residual.explained]).sum(dim=0)
        scores[picked] = -1
        near = scores.topk(min(SHORTLIST, len(scores))).indices
        best = int(near[_scores([own[near].double() for own in vectors], residuals, weighted=True).argmax()])
        picked.append(best)
        highest = max(highest, float(scores[best]))
        certain += float(scores[best]) > FADED * highest
        if noisy and len(picked) > 2 * certain + SPARE:
            break
        for one in offered:
            one.pick(best)
    return picked


def take_back(table: Tensor, rows: Tensor, picked: list[int], limit: float = VANISHED) -> list[int]:
    """Return the picks without those whose coefficients vanish once all are solved for together."""
    if not picked:
        return picked
    solved, _ = coefficients(rows, table[torch.tensor(picked, dtype=torch.long, device=table.device)])
    weight = solved.norm(dim=1)
    return [token for token, own in zip(picked, weight.tolist(), strict=True) if own > limit * float(weight.max())]


def _scores(tables: Sequence[Tensor], residuals: Sequence[Residual], *, weighted: bool = False) -> Tensor:
    """Return the sum of all sites' scores of each vector `[vectors]`."""
    total = torch.zeros(len(tables[0]), dtype=tables[0].dtype, device=tables[0].device)
    for table, residual in zip(tables, residuals, strict=True):
        total += Dictionary(residual, table if weighted else residual.weighted(table)).scores()
    return total
