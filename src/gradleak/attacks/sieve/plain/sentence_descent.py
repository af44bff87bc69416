"""Descend from a guess to a sentence whose vectors lie in the row space, changing several words at a time.

What changes of single words do to the sketch of a sentence adds up, nearly: so the best of many combinations are found
by inner products, without evaluating them (a beam search for a sparse sum), and only these are compared. Words at each
other's places are found by what each leaves outside at its own position. Where nothing helps a few neighbouring words
are drawn anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.attacks.sieve.plain.sentence_sketch import SentenceSketch, SentenceView
from gradleak.exchange import Deadline


@dataclass(frozen=True)
class Effort:
    """How many changes are tried in one step.

    Attributes:
        words: tokens at each position, those that leave least outside there.
        beam: combinations of changes that are kept.
        depth: changes in a combination at most.
        exchanges: pairs of words that are exchanged.
    """

    words: int
    beam: int
    depth: int
    exchanges: int


EFFORTS = (Effort(4, 6, 4, 16), Effort(16, 24, 6, 64))
"""The next where the last does not help."""

STEPS = 80
"""The greatest number of steps of one descent."""

RACE = ((8, 1), (4, 2))
"""Of several guesses at one sentence, how many go on, the best first, and for how many steps."""

BEHIND = 3.0
"""A guess whose loss is larger by this factor is given up."""

GAIN = 0.999
"""A step gains if it lowers the loss by this factor."""

SURE = 4.0
"""A sentence is certain if every change that was tried raises its loss by this factor."""

SOLVED = 1e-9
"""A loss that no wrong sentence reaches."""

SHAKES = 4
"""How often a sentence that is not certain is shaken."""

NEAR = 24
"""So many words that leave least outside at each position are tried in the steps after the first."""

RESIZED = 3
"""How many ways to make a sentence a word longer, or shorter, are followed."""

SHAKEN, DRAWN = 5, 8
"""So many neighbouring words are drawn anew, each from so many that leave least outside at its position."""

IMPOSSIBLE = 1e9
"""What a token at an impossible position costs."""


@dataclass(frozen=True)
class Descended:
    """A sentence that no change improves.

    Attributes:
        row: indices of pairs.
        loss: the fraction of its vectors' energy outside the row space.
        margin: the smallest loss of any change, as a multiple of its own.
    """

    row: Tensor
    loss: float
    margin: float

    @property
    def certain(self) -> bool:
        """Whether every change makes it clearly worse."""
        return self.loss < SOLVED or SURE < self.margin < inf


class SentenceDescent:
    """Improves guesses at sentences.

    Args:
        sketch: compares sentences.
        frame: how many tokens begin, and how many end, every text; they stay.
        special: token ids that occur there alone.
        deadline: when to return the best so far.
    """

    def __init__(self, sketch: SentenceSketch, frame: tuple[int, int], special: Tensor, deadline: Deadline) -> None:
        self._sketch, self._frame, self._deadline = sketch, frame, deadline
        pairs = sketch.pairs
        self._tokens, self._token_of = pairs.tokens.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        places = int(pairs.positions.max()) + 1
        self._table = torch.full((len(self._tokens), places), -1, device=pairs.tokens.device)
        self._table[self._token_of, pairs.positions] = torch.arange(len(pairs.tokens), device=pairs.tokens.device)
        words = (~torch.isin(pairs.tokens, special)).nonzero().flatten()
        self._words = words[pairs.positions[words].argsort()]

    def run(self, starts: Sequence[Tensor], held: Collection[int] = (), *, thorough: bool = False) -> list[Descended]:
        """Return the best sentences on the way from some guesses, the best first.

        Args:
            starts: indices of pairs, each `[tokens]`. Those that fall behind are given up.
            held: positions whose words are certain.
            thorough: whether several guesses are followed to the end and no word is taken for certain in the end, if
                there is no certain sentence otherwise.
        """
        racing = [Descended(row, self._sketch.view(row).loss, inf) for row in starts]
        for kept, steps in RACE:
            racing.sort(key=lambda each: each.loss)
            ahead = [each for each in racing[:kept] if each.loss < BEHIND * racing[0].loss or each is racing[0]]
            racing = [self._descended(each.row, held, steps) for each in ahead]
        racing.sort(key=lambda each: each.loss)
        best = self._freed(self._descended(racing[0].row, held), held)
        if best.certain or not thorough:
            return [best]
        ended = [best]
        for other in racing[1:]:
            ended.append(self._freed(self._descended(other.row, held), held))
            if ended[-1].certain:
                break
        ended.sort(key=lambda each: each.loss)
        return ended if ended[0].certain else [self._resized(ended[0]), *ended]

    def _freed(self, ended: Descended, held: Collection[int]) -> Descended:
        """Go on from a sentence with no word taken for certain."""
        return self._descended(ended.row) if held and not ended.certain else ended

    def _resized(self, best: Descended) -> Descended:
        """Go on from a sentence with a word more or fewer while that is better, then shake it."""
        while not best.certain and not self._deadline.passed:
            others = [self._descended(row) for row in self._other_lengths(best.row)]
            better = min(others, key=lambda each: each.loss, default=best)
            if better.loss > GAIN * best.loss:
                break
            best = better
        return self._shaken_often(best)

    def _other_lengths(self, row: Tensor) -> Iterator[Tensor]:
        """Yield a sentence with a word removed, and with one twice: where that leaves least outside."""
        first, last = self._inner(row)
        for copies in (0, 2):
            longer = [
                self._placed(torch.cat([row[:place], *copies * [row[place : place + 1]], row[place + 1 :]]))
                for place in range(first, last)
            ]
            rows = [each for each in longer if each is not None]
            if rows and last - first > 1:
                losses = self._sketch.losses(torch.stack(rows))
                yield from (rows[number] for number in losses.argsort()[:RESIZED].tolist())

    def _placed(self, row: Tensor) -> Tensor | None:
        """Return the tokens of some pairs one after the other; None if one of them cannot stand there."""
        if len(row) > self._table.shape[1]:
            return None
        placed = self._table[self._token_of[row], torch.arange(len(row), device=row.device)]
        return placed if bool((placed >= 0).all()) else None

    def around(self, row: Tensor, most: int) -> Tensor:
        """Return the changes of a sentence with the smallest loss `[sentences, tokens]`."""
        rows, _ = self._changes(row, self._free(row, ()), EFFORTS[0])
        return rows[self._sketch.losses(rows).argsort()[:most]]

    def row(self, sentence: Sequence[int]) -> Tensor | None:
        """Return the indices of a sentence's pairs; None if one of them is no candidate."""
        if len(sentence) > self._table.shape[1]:
            return None
        tokens = torch.tensor(sentence, device=self._table.device)
        numbers = torch.searchsorted(self._tokens, tokens).clamp(max=len(self._tokens) - 1)
        row = self._table[numbers, torch.arange(len(tokens), device=tokens.device)]
        return row if bool((self._tokens[numbers] == tokens).all()) and bool((row >= 0).all()) else None

    def _shaken_often(self, best: Descended) -> Descended:
        """Draw a few words anew while the sentence is not certain, and keep what becomes better."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(SHAKES):
            if best.certain or self._deadline.passed:
                break
            other = self._descended(self._shaken(best.row, generator))
            best = other if other.loss < best.loss else best
        return best

    def _descended(self, row: Tensor, held: Collection[int] = (), steps: int = STEPS) -> Descended:
        """Take the best of all changes until none helps."""
        loss, effort, margin = self._sketch.view(row).loss, 0, inf
        every = words = self._free(row, held)
        for step in range(steps):
            if loss < SOLVED or not len(words) or (step and self._deadline.passed):
                break
            rows, near = self._changes(row, words, EFFORTS[effort])
            if not len(rows):
                break
            losses = self._sketch.losses(rows)
            best = int(losses.argmin())
            margin = float(losses[best]) / max(loss, 1e-300)
            if margin < GAIN:
                row, loss, effort, words = rows[best], float(losses[best]), 0, near
            elif margin > SURE or effort + 1 == len(EFFORTS):
                break
            else:
                effort, words = effort + 1, every
        return Descended(row, loss, margin)

    def _free(self, row: Tensor, held: Collection[int]) -> Tensor:
        """Return the words that can stand between the special tokens of a sentence, except at certain positions."""
        free = torch.zeros(self._table.shape[1], dtype=torch.bool, device=row.device)
        first, last = self._inner(row)
        free[first:last] = True
        free[[place for place in held if place < last]] = False
        return self._words[free[self._sketch.pairs.positions[self._words]]]

    def _changes(self, row: Tensor, words: Tensor, effort: Effort) -> tuple[Tensor, Tensor]:
        """Return changed sentences, each once `[sentences, tokens]`, and those words that leave little outside."""
        view, places = self._sketch.view(row), self._sketch.pairs.positions[words]
        alone = view.alone(words, places)
        energies = alone.square().sum(dim=1)
        changed = [
            *self._combinations(view, words, alone, energies, effort),
            *self._exchanges(view, words, energies, effort),
        ]
        fresh = dict.fromkeys(map(tuple, torch.stack(changed).tolist())) if changed else {}
        fresh.pop(tuple(row.tolist()), None)
        rows = torch.tensor(list(fresh), device=row.device, dtype=row.dtype).view(-1, len(row))
        return rows, words[_best_of_each(energies, places, NEAR).sort().values]

    def _inner(self, row: Tensor) -> tuple[int, int]:
        """Return the position of the first word, and the one after the last."""
        return self._frame[0], len(row) - self._frame[1]

    def _combinations(
        self, view: SentenceView, words: Tensor, alone: Tensor, energies: Tensor, effort: Effort
    ) -> Iterator[Tensor]:
        """Yield the sentence with one or several words replaced, by a beam search over linearised changes."""
        places = self._sketch.pairs.positions[words]
        chosen = _best_of_each(energies, places, effort.words)
        chosen = chosen[words[chosen] != view.sentence[places[chosen]]]
        if not len(chosen):
            return
        pairs, places = words[chosen], places[chosen]
        changes = (view.changed(pairs, places, alone[chosen]) - view.outside).flatten(1)
        gram = changes @ changes.T
        slopes = 2 * changes @ view.outside.flatten() + gram.diagonal()
        taken = places[:, None] == places
        sums, slopes, used = slopes.new_zeros(1), slopes[None], torch.zeros_like(taken[:1])
        members: list[tuple[int, ...]] = [()]
        for _ in range(effort.depth):
            values = (sums[:, None] + slopes).masked_fill(used, inf)
            order = values.flatten().topk(min(4 * effort.beam, values.numel()), largest=False)
            kept: dict[tuple[int, ...], tuple[int, int, float]] = {}
            for value, number in zip(order.values.tolist(), order.indices.tolist(), strict=True):
                parent, added = divmod(number, len(pairs))
                if value < inf and len(kept) < effort.beam:
                    kept.setdefault(tuple(sorted((*members[parent], added))), (parent, added, value))
            if not kept:
                return
            members = list(kept)
            parents, added = (
                torch.tensor(each, device=pairs.device) for each in list(zip(*kept.values(), strict=True))[:2]
            )
            sums = torch.tensor([value for _, _, value in kept.values()]).to(sums)
            slopes, used = slopes[parents] + 2 * gram[added], used[parents] | taken[added]
            for group in members:
                row = view.sentence.clone()
                row[places[list(group)]] = pairs[list(group)]
                yield row

    def _exchanges(self, view: SentenceView, words: Tensor, energies: Tensor, effort: Effort) -> Iterator[Tensor]:
        """Yield the sentence with two words exchanged, several such exchanges at once, and all words assigned anew."""
        row = view.sentence
        places = torch.unique(self._sketch.pairs.positions[words])
        each = torch.full((len(self._token_of),), IMPOSSIBLE, device=row.device)
        each[words] = energies
        each[row[places]] = view.outside[places].square().sum(dim=1)
        tokens = self._token_of[row[places]]
        table = self._table[tokens][:, places]  # of each word at each place
        costs = torch.where(table >= 0, each[table], IMPOSSIBLE)
        now = costs.diagonal()
        gains = (now[:, None] + now - costs - costs.T).triu(1)
        gains[tokens[:, None] == tokens] = -IMPOSSIBLE
        gains[torch.tril_indices(len(gains), len(gains)).unbind()] = -IMPOSSIBLE
        best = gains.flatten().topk(min(effort.exchanges, gains.numel()))
        together, used = row.clone(), set[int]()
        for gain, number in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if gain < -IMPOSSIBLE / 2:
                break
            one, other = divmod(number, len(gains))
            changed = row.clone()
            changed[places[one]], changed[places[other]] = table[other, one], table[one, other]
            yield changed
            if gain > 0 and not {one, other} & used:
                used |= {one, other}
                together[places[one]], together[places[other]] = table[other, one], table[one, other]
        yield together
        which, where = linear_sum_assignment(costs.cpu().numpy())
        if bool((table[which, where] >= 0).all()):
            assigned = row.clone()
            assigned[places[where]] = table[which, where]
            yield assigned

    def _shaken(self, row: Tensor, generator: torch.Generator) -> Tensor:
        """Return the sentence with a few neighbouring words drawn anew, where much lies outside."""
        view = self._sketch.view(row)
        first, last = self._inner(row)
        energies = view.outside[first:last].square().sum(dim=1).cpu()
        centre = first + int(torch.multinomial(energies + 1e-30, 1, generator=generator))
        size = int(torch.randint(2, SHAKEN + 1, (1,), generator=generator))
        changed = row.clone()
        for place in range(max(first, centre - size // 2), min(last, centre + size - size // 2)):
            there = self._words[self._sketch.pairs.positions[self._words] == place]
            left = view.alone(there, torch.full_like(there, place)).square().sum(dim=1)
            likely = there[left.topk(min(DRAWN, len(there)), largest=False).indices]
            changed[place] = likely[int(torch.randint(len(likely), (1,), generator=generator))]
        return changed


def _best_of_each(energies: Tensor, places: Tensor, most: int) -> Tensor:
    """Return the numbers of the candidates with the smallest energies at each place, so many of each at most."""
    order = energies.argsort()
    order = order[places[order].argsort(stable=True)]
    ordered = places[order]
    begins = torch.searchsorted(ordered, ordered)  # of each, where its place begins
    return order[torch.arange(len(order), device=order.device) - begins < most]
