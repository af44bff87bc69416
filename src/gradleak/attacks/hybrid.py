"""What attacks share that turn from embeddings to token orders and back: LAMP and GRAB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.dlg import Dlg, labels_of
from gradleak.exchange import Deadline, Finding, Victim
from gradleak.matching import Matcher
from gradleak.optimisation.descent import Descender, Descent, Guess, Penalty, keep_better
from gradleak.optimisation.guess import pick_starts, trimmed
from gradleak.search import Move, draw_orders, neighbour_orders, shuffle
from gradleak.targets import Target

# A distance below this share of that at the start is rounding: no words are nearer.
SOLVED = 1e-5
# Numbers in the variants of a guess that are made at once: a gigabyte of them.
MOST_NUMBERS = 1 << 28
# The same where a deadline has to be asked meanwhile.
FEWER_NUMBERS = 1 << 24
# The share of the time that is left which the search for a start may take.
START = 0.25

# What gradleak adds to the papers' attacks at their end; more than ten times is hardly ever needed.
ORDERED = {"polish": 10}


@dataclass(frozen=True, kw_only=True)
class Hybrid(Dlg):
    """Base of the hybrid attacks: a start that is the best of many, orders and their distances, a last polish.

    `polish` is gradleak's own, in no paper, and therefore off unless a preset such as `best` sets it: so many times at
    most the words that were found are put in a nearer order, each time the nearest of all swaps and moves of one token.
    """

    least: ClassVar[Mapping[str, float]] = {**Dlg.least, "decay": 0, "starts": 1, "permutations": 1, "polish": 0}

    steps: int = 2_000
    lr: float = 0.01
    decay: float = 0.89
    starts: int = 500
    permutations: int = 500
    polish: int = 0

    def _descent(self, steps: int) -> Descent:
        return replace(super()._descent(steps), decay=self.decay)

    def _penalty(self, target: Target) -> Penalty | None:
        """Return what is added to the distance in a descent."""
        return None

    def _for_a_start(self, matcher: Matcher) -> Matcher:
        """Return the matcher with a deadline of its own for the search for a start: most time is the descent's."""
        return matcher.until(matcher.deadline.sooner(START * matcher.deadline.left))

    def _best_start(self, target: Target, matcher: Matcher, first: Guess, victims: Sequence[Victim]) -> Guess:
        """Return the best of many Gaussian samples (LAMP, section 5), each as long as words are on average.

        Where several lengths are tried, they share the samples among them.
        """
        lengths = first.losses.shape[1]
        count = max(1, self.starts // lengths)
        alone = (
            first.starts(torch.full_like(first.losses[:, :1], start, dtype=torch.long)) for start in range(lengths)
        )
        best = [self._best_sample(target, matcher, guess, victims, count) for guess in alone]
        return replace(first, embeddings=torch.cat(best, dim=1))

    def _best_sample(
        self, target: Target, matcher: Matcher, guess: Guess, victims: Sequence[Victim], count: int
    ) -> Tensor:
        """Return the embeddings `[V, 1, B, T, width]` of the best of so many samples for a guess with one start."""
        if matcher.deadline.passed:
            return guess.embeddings
        norm = target.word_embeddings.norm(dim=1).mean()
        width = target.word_embeddings.shape[1]

        def draw(number: int, many: int) -> Tensor:
            mask = guess.slots.mask[number, 0]  # [B, T]
            tokens = int(mask.any(dim=0).sum())
            shape, generator = (len(mask), tokens, width), victims[number].generator
            # One by one, so that it does not matter how many of them fit.
            drawn = torch.stack([torch.randn(shape, generator=generator) for _ in range(many)])
            whole = torch.zeros(many, *mask.shape, width)
            whole[:, :, :tokens] = drawn / drawn.norm(dim=-1, keepdim=True)
            return whole

        best = guess
        for part, many in self._variants(guess, count, matcher.deadline):
            samples = torch.stack([draw(number, part.stop - part.start) for number in range(len(victims))])
            tried = replace(many, embeddings=samples.to(target.device, target.dtype) * norm)
            tried = replace(tried, losses=matcher(tried.candidates(target))).best_starts(1)
            best = keep_better(best, tried, tried.losses)
        return best.embeddings

    def _best_permutation(self, target: Target, matcher: Matcher, guess: Guess, victims: Sequence[Victim]) -> Guess:
        """Return the best of many permutations of a guess, itself among them."""
        if matcher.deadline.passed:
            return guess
        count = max(1, self.permutations // guess.losses.shape[1])
        orders = self._draw_orders(guess, victims, count, (shuffle,))
        return guess.rearranged(best_orders(orders, self._order_losses(target, matcher, guess, orders)))

    def _best_lengths(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Where many lengths are tried, descend briefly with all of them and go on with the best."""
        if guess.losses.shape[1] <= self.lengths_kept:
            return guess
        briefly = max(1, self.steps // 10)
        descender = Descender(target, matcher, guess, self._descent(briefly), self._penalty(target))
        return descender.run(briefly).best_starts(self.lengths_kept)

    def _draw_orders(self, guess: Guess, victims: Sequence[Victim], count: int, moves: Sequence[Move]) -> Tensor:
        """Draw orders `[V, starts, count, B, T]`, the first of each the present one."""
        rows = [
            torch.stack([draw_orders(free, count, moves, victim.generator) for free in starts])
            for victim, starts in zip(victims, guess.slots.free, strict=True)
        ]
        orders = torch.stack(rows)
        orders[:, :, 0] = torch.arange(orders.shape[-1], device=orders.device)
        return orders

    def _order_losses(self, target: Target, matcher: Matcher, guess: Guess, orders: Tensor) -> Tensor:
        """Return the distances `[V, starts, count]` of a guess in other orders `[V, starts, count, B, T]`.

        They are infinite where the deadline came first, but for the first order.
        """
        losses = [
            matcher(many.rearranged(orders[:, :, part].flatten(1, 2)).candidates(target))
            for part, many in self._variants(guess, orders.shape[2], matcher.deadline)
        ]
        return with_unknown(_per_start(losses, guess), orders.shape[2])

    def _variants(self, guess: Guess, count: int, deadline: Deadline) -> Iterator[tuple[slice, Guess]]:
        """Yield parts of `count` variants, and the guess repeated as often, so many at once as there is room for.

        After the first part it ends when the deadline has passed.
        """
        each = guess.embeddings.numel() + sum(mask.numel() for mask in guess.dropout.values())
        if guess.labels_per_token:
            each += guess.labels.numel()
        step = max(1, (FEWER_NUMBERS if deadline.limited else MOST_NUMBERS) // each)
        for first in range(0, count, step):
            if first and deadline.passed:
                break
            part = slice(first, min(first + step, count))
            yield part, guess.repeated(part.stop - part.start)

    def _nearest_words(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Return the words nearest to a guess, and how far their gradients are."""
        _, words = guess.words(target)
        return replace(words, losses=matcher(words.candidates(target)))

    def _polished(self, target: Target, matcher: Matcher, guess: Guess) -> list[Finding]:
        """Put each victim's words in order, and return what was found."""
        return findings(target, self._in_order(target, matcher, guess))

    def _in_order(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Put each victim's words in order; victims of the same lengths are looked at together."""
        if self.polish and matcher.deadline.passed:
            return guess
        alike: dict[tuple[bool, ...], list[int]] = {}
        for victim, free in enumerate(guess.slots.free.flatten(1).tolist()):
            alike.setdefault(tuple(free), []).append(victim)
        ordered = [self._polish(target, matcher.select(some), guess.select(some)) for some in alike.values()]
        joined = [victim for some in alike.values() for victim in some]
        return Guess.joined(ordered).select([joined.index(victim) for victim in range(len(joined))])

    def _polish(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Go to the nearest neighbour of each victim's words as long as it is nearer than they are.

        The gradient alone decides here: it knows the order exactly, and a language model's taste would outvote it.

        Args:
            target: the model.
            matcher: compares with these victims' gradients.
            guess: their words, one start each, of the same lengths for all of them.
        """
        ids, words = guess.words(target)
        present = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
        neighbours = [neighbour_orders(free) for free in guess.slots.free[0, 0]]
        going = list(range(len(ids)))
        for _ in range(self.polish):
            if matcher.deadline.passed:
                break
            best = present.clone()
            best[going] = self._best_neighbour(target, matcher.select(going), words.select(going), neighbours)
            words = words.rearranged(best)
            changed = (best != present).flatten(1).any(dim=1).tolist()
            going = [victim for victim in going if changed[victim]]
            if not going:
                break
        return replace(words, losses=matcher(words.candidates(target)))

    def _best_neighbour(self, target: Target, matcher: Matcher, words: Guess, neighbours: Sequence[Tensor]) -> Tensor:
        """Return the order `[V, 1, B, T]` of the nearest of all neighbours; one sequence has another order in it.

        Args:
            target: the model.
            matcher: compares with these victims' gradients.
            words: their words, one start each.
            neighbours: the orders to try for each sequence `[count, T]`, the present one first.
        """
        present = torch.arange(words.slots.ids.shape[3], device=words.losses.device)
        moves = present.repeat(*words.slots.ids.shape[:3], 1)
        losses: list[Tensor] = []
        for number, tried in enumerate(neighbours):
            if number and matcher.deadline.passed:
                losses.append(torch.full_like(losses[0], torch.inf))
                continue
            held, alone, longest = matcher, words, len(present)
            if len(neighbours) > 1:
                held = matcher.with_fixed_sequences(words.candidates(target), number)
                longest = int(words.slots.mask[:, :, number].sum(dim=-1).max())
                alone = words.sequence(number).shortened(longest)
            orders = tried[None, None, :, None, :longest].expand(len(words.losses), -1, -1, -1, -1)
            of_orders = self._order_losses(target, held, alone, orders)
            moves[:, :, number, :longest] = best_orders(orders, of_orders)[:, :, 0]
            losses.append(of_orders.amin(dim=2))
        chosen = torch.stack(losses, dim=2).argmin(dim=2, keepdim=True)
        here = torch.arange(len(neighbours), device=moves.device) == chosen
        return torch.where(here[..., None], moves, present)


def findings(target: Target, words: Guess) -> list[Finding]:
    """Return words, one start for each victim, as what was found."""
    ids, classes = words.slots.project(target, words.embeddings), labels_of(target, words)
    return [
        Finding(
            token_ids=trimmed(ids[victim, 0], words.slots.mask[victim, 0]),
            labels=None if classes is None else classes[victim, 0].tolist(),
            loss=loss,
        )
        for victim, loss in enumerate(words.losses[:, 0].tolist())
    ]


def are_solved(words: Guess, first: Tensor) -> list[bool]:
    """Tell whose words give the gradient but for rounding, seen beside the distances `[V, starts]` at first."""
    return (words.losses.amin(dim=1) < SOLVED * first.amin(dim=1)).tolist()


def best_orders(orders: Tensor, losses: Tensor) -> Tensor:
    """Return the orders `[V, starts, B, T]` with the smallest losses."""
    chosen = losses.argmin(dim=2)
    return pick_starts(orders.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view(*orders.shape[:2], *orders.shape[3:])


def with_unknown(losses: Tensor, count: int) -> Tensor:
    """Return losses `[…, some]` with infinity after them, for what was not compared `[…, count]`."""
    return torch.nn.functional.pad(losses, (0, count - losses.shape[-1]), value=torch.inf)


def _per_start(losses: Sequence[Tensor], guess: Guess) -> Tensor:
    """Return losses `[V, starts, count]` from parts `[V, starts × count of the part]`."""
    return torch.cat([part.view(*guess.losses.shape, -1) for part in losses], dim=2)
