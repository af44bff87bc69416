"""Token orders of a guess: draw them, score them, and put words in order. Used by LAMP and GRAB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Victim, group_by_key
from gradleak.matching import Matcher
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.slots import pick_starts
from gradleak.priors import Prior
from gradleak.search import Move, draw_orders, neighbour_orders

# Numbers in the variants of a guess that are made at once: a gigabyte of them.
MOST_NUMBERS = 1 << 28
# The same where a deadline has to be checked in between.
MOST_NUMBERS_WITH_DEADLINE = 1 << 24
# Tokens that a prior scores at once where there is a deadline.
PRIOR_TOKENS = 2_048


def draw_guess_orders(guess: Guess, victims: Sequence[Victim], count: int, moves: Sequence[Move]) -> Tensor:
    """Draw orders `[V, starts, count, B, T]` from each victim's random stream; the first one is the present order."""
    rows = [
        torch.stack([draw_orders(free, count, moves, victim.generator) for free in starts])
        for victim, starts in zip(victims, guess.slots.free, strict=True)
    ]
    orders = torch.stack(rows)
    orders[:, :, 0] = torch.arange(orders.shape[-1], device=orders.device)
    return orders


def order_losses(matcher: Matcher, guess: Guess, orders: Tensor) -> Tensor:
    """Return the distances `[V, starts, count]` of a guess in other orders `[V, starts, count, B, T]`.

    Orders that the deadline leaves no time for are infinitely far away; the first is always compared.
    """
    losses = [
        matcher(many.rearranged(orders[:, :, part].flatten(1, 2)).candidates(matcher.target))
        for part, many in variants(guess, orders.shape[2], matcher.deadline)
    ]
    return with_unscored(torch.cat([part.view(*guess.losses.shape, -1) for part in losses], dim=2), orders.shape[2])


def prior_losses(prior: Prior, ids: Tensor, mask: Tensor, deadline: Deadline) -> Tensor:
    """Return the prior's mean loss of words `[V, starts, count, B, T]` as `[V, starts, count]`; infinite if late."""
    count = ids.shape[2]
    step = max(1, PRIOR_TOKENS * count // ids.numel()) if deadline.limited else count
    parts = []
    for first in range(0, count, step):
        if deadline.passed:
            break
        part = slice(first, first + step)
        parts.append(prior(ids[:, :, part], mask[:, :, part]).mean(dim=-1).double())
    return with_unscored(torch.cat([ids.new_empty(*ids.shape[:2], 0, dtype=torch.float64), *parts], dim=2), count)


def best_orders(orders: Tensor, losses: Tensor) -> Tensor:
    """Return the orders `[V, starts, B, T]` with the smallest losses."""
    chosen = losses.argmin(dim=2)
    return pick_starts(orders.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view(*orders.shape[:2], *orders.shape[3:])


def variants(guess: Guess, count: int, deadline: Deadline) -> Iterator[tuple[slice, Guess]]:
    """Yield slices of `count` variants, each with the guess repeated as often, as many at once as fit the memory.

    After the first slice it ends when the deadline has passed.
    """
    each = guess.embeddings.numel() + sum(mask.numel() for mask in guess.dropout.values())
    if guess.labels_per_token:
        each += guess.labels.numel()
    step = max(1, (MOST_NUMBERS_WITH_DEADLINE if deadline.limited else MOST_NUMBERS) // each)
    for first in range(0, count, step):
        if first and deadline.passed:
            break
        part = slice(first, min(first + step, count))
        yield part, guess.repeated(part.stop - part.start)


def with_unscored(losses: Tensor, count: int) -> Tensor:
    """Pad losses `[…, some]` with infinity to `[…, count]`, for candidates that were not scored."""
    return torch.nn.functional.pad(losses, (0, count - losses.shape[-1]), value=torch.inf)


def put_in_order(matcher: Matcher, words: Guess, iterations: int) -> Guess:
    """Move words to the nearest of all swaps and one-token moves until none is nearer; gradleak's own, in no paper.

    The gradient alone decides: it determines the order exactly, and a language model's preference would outvote it.

    Args:
        matcher: the distance to the victims' gradients.
        words: their words, one start each.
        iterations: how often at most; ten are hardly ever exceeded.
    """
    if iterations and matcher.deadline.passed:
        return words
    groups = group_by_key(map(tuple, words.slots.free.flatten(1).tolist()))  # equal lengths have equal neighbourhoods
    ordered = [_climb(matcher.select(some), words.select(some), iterations) for some in groups]
    joined = [victim for some in groups for victim in some]
    return Guess.joined(ordered).select([joined.index(victim) for victim in range(len(joined))])


def best_neighbours(matcher: Matcher, words: Guess, neighbours: Sequence[Tensor]) -> Tensor:
    """Return the order `[V, 1, B, T]` of the nearest neighbour, in which one sequence has another order.

    Args:
        matcher: the distance to the victims' gradients.
        words: their words, one start each.
        neighbours: the orders to try for each sequence `[count, T]`, the present one first.
    """
    target = matcher.target
    present = torch.arange(words.slots.ids.shape[3], device=words.losses.device)
    moves = present.repeat(*words.slots.ids.shape[:3], 1)
    losses: list[Tensor] = []
    for number, tried in enumerate(neighbours):
        if number and matcher.deadline.passed:
            losses.append(torch.full_like(losses[0], torch.inf))
            continue
        of_sequence, alone, longest = matcher, words, len(present)
        if len(neighbours) > 1:
            of_sequence = matcher.with_fixed_sequences(words.candidates(target), number)
            longest = int(words.slots.mask[:, :, number].sum(dim=-1).max())
            alone = words.sequence(number).shortened(longest)
        orders = tried[None, None, :, None, :longest].expand(len(words.losses), -1, -1, -1, -1)
        of_orders = order_losses(of_sequence, alone, orders)
        moves[:, :, number, :longest] = best_orders(orders, of_orders)[:, :, 0]
        losses.append(of_orders.amin(dim=2))
    chosen = torch.stack(losses, dim=2).argmin(dim=2, keepdim=True)
    here = torch.arange(len(neighbours), device=moves.device) == chosen
    return torch.where(here[..., None], moves, present)


def _climb(matcher: Matcher, words: Guess, iterations: int) -> Guess:
    """Put in order the words, one start each, of victims with the same lengths."""
    ids, words = words.words(matcher.target)
    present = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    neighbours = [neighbour_orders(free) for free in words.slots.free[0, 0]]
    active = list(range(len(ids)))
    for _ in range(iterations):
        if matcher.deadline.passed:
            break
        best = present.clone()
        best[active] = best_neighbours(matcher.select(active), words.select(active), neighbours)
        words = words.rearranged(best)
        changed = (best != present).flatten(1).any(dim=1).tolist()
        active = [victim for victim in active if changed[victim]]
        if not active:
            break
    return replace(words, losses=matcher(words.candidates(matcher.target)))
