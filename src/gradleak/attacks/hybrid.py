"""What attacks share that turn from embeddings to token orders and back: LAMP and GRAB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.base import Finding, Victim
from gradleak.attacks.descent import Descender, Descent, Guess, Penalty
from gradleak.attacks.dlg import Dlg, labels_of
from gradleak.attacks.guesses import pick_starts, trimmed
from gradleak.matching import Matcher
from gradleak.search import Move, draw_orders, neighbour_orders, shuffle
from gradleak.targets import Target

# A distance below this share of that at the start is rounding: no words are nearer.
SOLVED = 1e-5
# Numbers in the variants of a guess that are made at once: a gigabyte of them.
MOST_NUMBERS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Hybrid(Dlg):
    """Base of the hybrid attacks: a start that is the best of many, orders and their distances, a last polish."""

    steps: int = 2_000
    lr: float = 0.01
    decay: float = 0.89
    starts: int = 500
    permutations: int = 500
    polish: int = 10

    def _descent(self, steps: int) -> Descent:
        return replace(super()._descent(steps), decay=self.decay)

    def _penalty(self, target: Target) -> Penalty | None:
        """Return what is added to the distance in a descent."""
        return None

    def _best_start(self, target: Target, matcher: Matcher, first: Guess, victims: Sequence[Victim]) -> Guess:
        """Return the best of many Gaussian samples (LAMP, section 5), each as long as words are on average.

        Where several lengths are tried, they share the samples among them.
        """
        norm = target.word_embeddings.norm(dim=1).mean()
        width = target.word_embeddings.shape[1]
        lengths = first.losses.shape[1]
        count = max(1, self.starts // lengths)

        def draw(number: int, start: int) -> Tensor:
            mask = first.slots.mask[number, start]  # [B, T]
            tokens = int(mask.any(dim=0).sum())
            drawn = torch.randn(count, len(mask), tokens, width, generator=victims[number].generator)
            whole = torch.zeros(count, *mask.shape, width)
            whole[:, :, :tokens] = drawn / drawn.norm(dim=-1, keepdim=True)
            return whole

        samples = torch.stack([torch.stack([draw(v, s) for s in range(lengths)]) for v in range(len(victims))])
        samples = samples.to(target.device, target.dtype) * norm  # [V, lengths, samples, B, T, width]
        losses = [
            matcher(replace(many, embeddings=samples[:, :, part].flatten(1, 2)).candidates(target))
            for part, many in self._variants(first, count)
        ]
        chosen = _per_start(losses, first).argmin(dim=2)
        best = pick_starts(samples.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view_as(first.embeddings)
        return replace(first, embeddings=best)

    def _best_permutation(self, target: Target, matcher: Matcher, guess: Guess, victims: Sequence[Victim]) -> Guess:
        """Return the best of many permutations of a guess, itself among them."""
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
        """Return the distances `[V, starts, count]` of a guess in other orders `[V, starts, count, B, T]`."""
        losses = [
            matcher(many.rearranged(orders[:, :, part].flatten(1, 2)).candidates(target))
            for part, many in self._variants(guess, orders.shape[2])
        ]
        return _per_start(losses, guess)

    def _variants(self, guess: Guess, count: int) -> Iterator[tuple[slice, Guess]]:
        """Yield parts of `count` variants, and the guess repeated as often, so many at once as there is room for."""
        each = guess.embeddings.numel() + sum(mask.numel() for mask in guess.dropout.values())
        step = max(1, MOST_NUMBERS // each)
        for first in range(0, count, step):
            part = slice(first, min(first + step, count))
            yield part, guess.repeated(part.stop - part.start)

    def _nearest_words(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Return the words nearest to a guess, and how far their gradients are."""
        _, words = guess.words(target)
        return replace(words, losses=matcher(words.candidates(target)))

    def _polished(self, target: Target, matcher: Matcher, guess: Guess) -> list[Finding]:
        """Put each victim's words in order; victims with as many neighbours are looked at together."""
        found: dict[int, Finding] = {}
        every = [neighbour_orders(free) for free in guess.slots.free[:, 0]]
        for count in sorted(set(map(len, every))):
            members = [victim for victim, orders in enumerate(every) if len(orders) == count]
            orders = torch.stack([every[victim] for victim in members])[:, None]
            some = self._polish(target, matcher.of_victims(members), guess.victims(members), orders)
            found |= zip(members, some, strict=True)
        return [found[victim] for victim in range(len(every))]

    def _polish(self, target: Target, matcher: Matcher, guess: Guess, orders: Tensor) -> list[Finding]:
        """Go to the nearest neighbour of each victim's words as long as it is nearer than they are.

        The gradient alone decides here: it knows the order exactly, and a language model's taste would outvote it.

        Args:
            target: the model.
            matcher: compares with these victims' gradients.
            guess: their words, one start each.
            orders: those one move away `[V, 1, count, B, T]`, the present one first.
        """
        ids, words = guess.words(target)
        present = orders[:, :, 0]
        going = list(range(len(ids)))
        for _ in range(self.polish):
            tried = orders[going]
            losses = self._order_losses(target, matcher.of_victims(going), words.victims(going), tried)
            best = present.clone()
            best[going] = best_orders(tried, losses)
            ids, words = ids.gather(-1, best), words.rearranged(best)
            changed = (best != present).flatten(1).any(dim=1).tolist()
            going = [victim for victim in going if changed[victim]]
            if not going:
                break
        classes = labels_of(target, guess)
        return [
            Finding(
                token_ids=trimmed(ids[victim, 0], guess.slots.mask[victim, 0]),
                labels=None if classes is None else classes[victim, 0].tolist(),
                loss=loss,
            )
            for victim, loss in enumerate(matcher(words.candidates(target))[:, 0].tolist())
        ]


def are_solved(words: Guess, first: Tensor) -> list[bool]:
    """Tell whose words give the gradient but for rounding, seen beside the distances `[V, starts]` at first."""
    return (words.losses.amin(dim=1) < SOLVED * first.amin(dim=1)).tolist()


def best_orders(orders: Tensor, losses: Tensor) -> Tensor:
    """Return the orders `[V, starts, B, T]` with the smallest losses."""
    chosen = losses.argmin(dim=2)
    return pick_starts(orders.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view(*orders.shape[:2], *orders.shape[3:])


def _per_start(losses: Sequence[Tensor], guess: Guess) -> Tensor:
    """Return losses `[V, starts, count]` from parts `[V, starts × count of the part]`."""
    return torch.cat([part.view(*guess.losses.shape, -1) for part in losses], dim=2)
