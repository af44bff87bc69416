"""The rows of a batch under dropout: every token with its position and its mask.

Each row found is certain by itself (see `decoding.py`), and it is known how many there are: as many as the row space
has dimensions, one [CLS] for each sentence, and at each position as many as at the one before less the sentences that
ended there. The search goes from position to position and looks closer where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from gradleak.attacks.sieve.decoding import accepted, decode
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.exchange import Deadline

LOOKED_AT = ((48, 200), (200, 1000))
"""How many of a position's likeliest tokens are decoded, one number after the other while rows are missing; and the
same of a closer look."""

REPEATS = 128
"""In how many ways another occurrence of a row is looked for."""

FORCED = 12
"""How many ways of dropping are combined where single entries do not lead to a mask."""

HIDDEN = 4
"""How many tokens that came near are looked at closer at a position that lacks a row."""

UNEXPLAINED = 0.45
"""Share of x(t, p) beside the rows found that lies in the row space if it has a further row; less where few lack."""

TOGETHER = 32
"""In so many ways at once another occurrence is looked for, before it is seen whether one was found."""

SAME_MASK = 0.04
"""Masks that differ in a smaller share of their entries are one: two occurrences of a row differ in a fifth of them."""


@dataclass
class Rows:
    """Rows found so far: token, position and mask of each."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, position: int) -> list[int]:
        """Return the numbers of the rows at a position."""
        return [row for row, p in enumerate(self.positions) if p == position]

    def add(self, token: int, position: int, mask: Tensor) -> None:
        """Add a row unless it is there: masks of one occurrence differ in entries that hardly count, if at all."""
        same = (row for row in self.at(position) if self.tokens[row] == token)
        if all(int((self.masks[row] ^ mask).sum()) > SAME_MASK * len(mask) for row in same):
            self.tokens.append(token)
            self.positions.append(position)
            self.masks.append(mask)

    def only(self, numbers: Iterable[int]) -> Rows:
        """Return some of the rows, in the order of their numbers."""
        chosen = sorted(numbers)
        return Rows(*([part[row] for row in chosen] for part in (self.tokens, self.positions, self.masks)))  # type: ignore[arg-type]

    def with_rows(self, other: Rows) -> Rows:
        """Return these rows and others."""
        return Rows(self.tokens + other.tokens, self.positions + other.positions, self.masks + other.masks)

    def vectors(self, inputs: Inputs) -> Tensor:
        """Return what the first map was fed `[rows, width]`, but for a factor that all rows share."""
        device = inputs.words.device
        tokens, positions = (torch.tensor(p, dtype=torch.long, device=device) for p in (self.tokens, self.positions))
        masks = torch.stack(self.masks) if self.masks else torch.ones(0, inputs.width, device=device)
        if inputs.dropout_first:
            return inputs.normalised(inputs.sums(tokens, positions) * masks / (1 - inputs.rate))
        return inputs(tokens, positions) * masks


class RowSearch:
    """Finds the rows behind a row space.

    Args:
        inputs: the tables of x(t, p).
        space: the row space of the first map's gradient.
        specials: ids that stand before and after every text.
        words: ids that may stand in between.
        sentences: how many there are; None if nothing tells.
        longest: no sentence has more tokens.
        rows: rows of the space that are known.
        whole: a larger space that rows must lie in, too.
        tell: called with the rows of the search at every position.
        deadline: when to end with the rows found so far.
    """

    def __init__(
        self,
        inputs: Inputs,
        space: Subspace,
        specials: tuple[Sequence[int], Sequence[int]],
        words: Tensor,
        sentences: int | None,
        longest: int,
        rows: Rows | None = None,
        whole: Subspace | None = None,
        tell: Callable[[Rows], None] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.inputs, self.space, self.words = inputs, space, words
        self.deadline = deadline or Deadline()
        self.before, self.after = specials
        self.sentences = sentences
        self.longest = min(longest, space.rank)
        self.rows = rows or Rows()
        self._code, self._whole = (_code(inputs, each) for each in (space, whole or space))
        self._ranked: dict[int, Tensor] = {}
        self._tell = tell or (lambda _: None)

    @property
    def lacking(self) -> int:
        """How many rows were not found; a rounded space may take one row for two."""
        return max(0, self.space.rank - len(self.rows))

    def run(self, *, closer: bool = False) -> None:
        """Decode likely tokens position by position; then look for further occurrences where rows are missing."""
        counts, rounds, depth = LOOKED_AT[closer], 4 if closer else 1, 3 if closer else 1
        near = {}
        for position, wanted in self._lacking_positions():
            near[position] = self._decode(position, wanted, counts, rounds)
            if not self.rows.at(position):
                self._repeat(position, wanted, self._unexplained(position, near[position]), depth)
        for position, wanted in self._lacking_positions():
            tokens = near.get(position, self.words[:0])
            self._repeat(position, wanted, self._unexplained(position, tokens), depth)

    def _lacking_positions(self) -> Iterator[tuple[int, int]]:
        """Yield positions that lack rows, and how many rows each has; what is found meanwhile counts for the next."""
        wanted, empty = self.sentences or self.space.rank, 0
        for position in range(self.longest):
            if not self.lacking or wanted <= 0 or empty > self._patience or self.deadline.passed:
                break
            if len(self.rows.at(position)) < wanted:
                self._tell(self.rows)
                yield position, wanted
            there = self.rows.at(position)
            ended = sum(self.rows.tokens[row] in self.after[-1:] for row in there)
            wanted = (wanted if self.after and self.sentences else len(there)) - ended
            empty = 0 if there else empty + 1

    @property
    def _patience(self) -> int:
        """How many empty positions to pass: none where it is not known that a sentence goes on."""
        return 2 if self.after and self.sentences else 0

    def _decode(self, position: int, wanted: int, counts: Sequence[int], rounds: int) -> Tensor:
        """Decode the likeliest tokens of a position while rows are missing; return those that came near."""
        near: list[Tensor] = []
        for first, last in pairwise((0, *counts)):
            if len(self.rows.at(position)) < wanted and not (near and self.deadline.passed):
                tokens = self._candidates(position, first, last)
                outside = self._try(position, tokens, rounds)
                near.append(tokens[outside.argsort()[:HIDDEN]])
        return torch.cat(near)

    def _unexplained(self, position: int, near: Tensor) -> list[int]:
        """Return tokens that may have a further row: those found, and those that came near, that rows leave much of."""
        found = [self.rows.tokens[row] for row in self.rows.at(position)]
        tokens = torch.tensor(list(dict.fromkeys([*found, *near.tolist()])), dtype=torch.long, device=self.words.device)
        chance = (self.lacking / (self.space.width - len(self.rows))) ** 0.5
        much = self._missing(tokens, torch.full_like(tokens, position)) > min(UNEXPLAINED, 2 * chance)
        return [*self.before[position : position + 1], *tokens[much].tolist()]

    def likely(self, position: int) -> int:
        """Return the token that is likeliest at a position for which no row was found."""
        if position not in self._ranked:
            self._rank([position])
        tokens = self._ranked[position]
        return int(tokens[self._missing(tokens, torch.full_like(tokens, position)).argmax()])

    def likely_end(self, after: int) -> int:
        """Return the likeliest position of the end of a sentence whose last row found is at `after`."""
        places = torch.arange(after + 1, min(after + 4, self.inputs.positions.shape[0]), device=self.words.device)
        return int(places[self._missing(torch.full_like(places, self.after[-1]), places).argmax()])

    def _missing(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return how much of x(t, p) beside the rows found lies in what they leave of the row space."""
        vectors = self.inputs(tokens, positions)
        found = torch.linalg.qr(self.rows.vectors(self.inputs).T)[0]
        own = vectors - (vectors @ found) @ found.T
        return (own @ self.space.basis).norm(dim=1) / own.norm(dim=1).clamp(min=1e-300)

    def _candidates(self, position: int, first: int, last: int) -> Tensor:
        """Return the likeliest tokens at a position, the end of a sentence first."""
        if position < len(self.before):
            return torch.tensor(self.before[position : position + 1], device=self.words.device)
        if position not in self._ranked:
            self._rank(range(position, min(position + 8, self.longest)))
        ranked = self._ranked[position][first:last]
        ends = torch.tensor(list(self.after[-1:]) if first == 0 else [], device=ranked.device, dtype=ranked.dtype)
        return torch.cat([ends, ranked])

    def _rank(self, positions: Iterable[int]) -> None:
        places = torch.tensor(list(positions), device=self.words.device)
        captured = self.inputs.captured(self.space.basis, self.words, places)  # [words, positions]
        best = captured.topk(min(LOOKED_AT[-1][-1], len(self.words)), dim=0).indices
        self._ranked |= {int(p): self.words[best[:, n]] for n, p in enumerate(places)}

    def _vectors(self, tokens: Tensor, position: int) -> Tensor:
        places = torch.full_like(tokens, position)
        return self.inputs.sums(tokens, places) if self.inputs.dropout_first else self.inputs(tokens, places)

    def _try(self, position: int, tokens: Tensor, rounds: int, erased: Tensor | None = None) -> Tensor:
        """Decode tokens at a position, add those that a mask was found for, return what the others leave outside."""
        vectors = self._vectors(tokens, position)
        found = decode(vectors, self._code, rounds=rounds, erased=erased)
        for number in found.accepted.nonzero().flatten().tolist():
            if self._whole.outside(vectors[number] * found.masks[number]) < accepted(self._whole):
                self.rows.add(int(tokens[number]), position, found.masks[number])
        return found.outside.masked_fill(found.accepted, 1.0)

    def _repeat(self, position: int, wanted: int, tokens: Sequence[int], depth: int) -> None:
        """Look for further occurrences: masks that drop an entry which every mask found for a token keeps.

        An entry that few occurrences drop leaves those few alone in the row space.
        """
        for token in dict.fromkeys(tokens):
            while len(self.rows.at(position)) < wanted and not self.deadline.passed:
                before = len(self.rows)
                self._insist(position, token, depth)
                if len(self.rows) == before:
                    break

    def _insist(self, position: int, token: int, depth: int) -> None:
        """Decode with one entry dropped, then, where masks drop too many for that, with the likeliest two and more."""
        before = len(self.rows)
        forced = torch.nn.functional.one_hot(self._spread(position, token), self.space.width).bool()
        for _ in range(depth):
            outside = []
            for part in torch.split(forced, TOGETHER):
                tokens = torch.full((len(part),), token, device=self.words.device)
                outside.append(self._try(position, tokens, 1, part))
                if len(self.rows) > before or self.deadline.passed:
                    return
            best = forced[torch.cat(outside).argsort()[:FORCED]]
            forced = (best[:, None] | best[None]).flatten(0, 1)
            forced = forced[forced.sum(dim=1) > best.sum(dim=1).max()]

    def _spread(self, position: int, token: int) -> Tensor:
        """Return entries that no mask found for a token drops, those first that say most: the largest."""
        size = self._vectors(torch.tensor([token], device=self.words.device), position)[0].abs()
        always = torch.ones_like(size, dtype=torch.bool)
        for row in self.rows.at(position):
            if self.rows.tokens[row] == token:
                always = always & self.rows.masks[row]
        return size.masked_fill(~always, -1.0).topk(min(REPEATS, int(always.sum()))).indices


def _code(inputs: Inputs, space: Subspace) -> Subspace:
    """Return the space that a vector lies in after dropout if what the first map is fed lies in `space`.

    The same, unless dropout comes before the LayerNorm: x = γ ⊙ (u ⊙ m − μ) / σ + β, so that u ⊙ m =
    σ (x − β) / γ + μ is a sum of V / γ, β / γ and a constant.
    """
    if not inputs.dropout_first:
        return space
    scale, shift = inputs.scale.double()[:, None], inputs.shift.double()[:, None]
    columns = torch.cat([space.basis / scale, torch.ones_like(scale), shift / scale], dim=1)
    columns = columns / columns.norm(dim=0).clamp(min=1e-300)
    vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return Subspace(vectors[:, values > 1e-9 * values[0]], space.values, space.floor, space.error)
