"""Search the rows of a batch under dropout, position by position.

Each row found is certain by itself (`mask_decoding.py`), and the number of rows is known: as many as the row space has
dimensions, one [CLS] per sentence, and at each position as many as at the one before, less the sentences that ended
there. The search goes from position to position and looks more closely where a row is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradleak.attacks.sieve.dropout.rows import InputRows
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.mask_decoding import decode_masks, mask_tolerance
from gradleak.leakage.row_space import Subspace

DECODED = ((48, 200), (200, 1000))
"""How many of a position's most probable tokens are decoded, in stages while rows are missing: in a first look, and in
a closer one."""

CLOSER_ROUNDS, CLOSER_DEPTH = 4, 3
"""Rounds of the decoder, and entries forced to be dropped at once, in a closer look; 1 each in a first look."""

REPEATS = 128
"""How many entries are tried one by one in the search for another occurrence of a row."""

FORCED = 12
"""How many forced entries are combined if single ones do not lead to a mask."""

NEAR_MISSES = 4
"""How many tokens that were nearly decoded are looked at more closely at a position with a missing row."""

UNEXPLAINED = 0.45
"""The fraction of x(t, p), beside the rows found, in the row space if the token has a further row; less if few are
missing."""

FORCED_TOGETHER = 32
"""How many forced entries are decoded at once before checking whether a row was found."""

MOST_EMPTY = 2
"""How many positions without rows are passed over where sentences are known to continue."""


class RowSearch:
    """Finds the rows behind a row space.

    Args:
        observed: the update; rows must also lie in the row space of its first maps.
        space: the row space to explain, which may be a smaller one.
        sentences: the number of sentences; None if unknown.
        rows: rows of the space that are already known.
        progress: called with the rows of the search at every position.
    """

    def __init__(
        self,
        observed: ObservedUpdate,
        space: Subspace,
        sentences: int | None,
        rows: InputRows | None = None,
        progress: Callable[[InputRows], None] | None = None,
    ) -> None:
        self.inputs, self.words, self.deadline = observed.inputs, observed.words, observed.deadline
        self.before, self.after = observed.target.special_tokens
        self.space, self.sentences = space, sentences
        self.longest = min(observed.longest, space.rank)
        self.rows = rows or InputRows()
        self._code, self._whole = (_code(self.inputs, each) for each in (space, observed.space))
        self._ranked: dict[int, Tensor] = {}
        self._progress = progress or (lambda _: None)

    @property
    def missing(self) -> int:
        """The number of rows not found yet; a rounded space may count one row twice."""
        return max(0, self.space.rank - len(self.rows))

    def run(self, *, closer: bool = False) -> None:
        """Decode probable tokens position by position; then search further occurrences where rows are missing."""
        counts, rounds, depth = DECODED[closer], CLOSER_ROUNDS if closer else 1, CLOSER_DEPTH if closer else 1
        near = {}
        for position, wanted in self._incomplete_positions():
            near[position] = self._decode(position, wanted, counts, rounds)
            if not self.rows.at(position):
                self._search_repeats(position, wanted, self._unexplained(position, near[position]), depth)
        for position, wanted in self._incomplete_positions():
            tokens = near.get(position, self.words[:0])
            self._search_repeats(position, wanted, self._unexplained(position, tokens), depth)

    def _incomplete_positions(self) -> Iterator[tuple[int, int]]:
        """Yield positions with missing rows and how many rows each has; rows found meanwhile count for the next."""
        wanted, empty = self.sentences or self.space.rank, 0
        for position in range(self.longest):
            if not self.missing or wanted <= 0 or empty > self._patience or self.deadline.passed:
                break
            if len(self.rows.at(position)) < wanted:
                self._progress(self.rows)
                yield position, wanted
            there = self.rows.at(position)
            ended = sum(self.rows.tokens[row] in self.after[-1:] for row in there)
            wanted = (wanted if self.after and self.sentences else len(there)) - ended
            empty = 0 if there else empty + 1

    @property
    def _patience(self) -> int:
        """How many empty positions to pass over: none if it is not known whether a sentence continues."""
        return MOST_EMPTY if self.after and self.sentences else 0

    def _decode(self, position: int, wanted: int, counts: Sequence[int], rounds: int) -> Tensor:
        """Decode the most probable tokens of a position while rows are missing; return those nearly decoded."""
        near: list[Tensor] = []
        for first, last in pairwise((0, *counts)):
            if len(self.rows.at(position)) < wanted and not (near and self.deadline.passed):
                tokens = self._candidates(position, first, last)
                outside = self._try(position, tokens, rounds)
                near.append(tokens[outside.argsort()[:NEAR_MISSES]])
        return torch.cat(near)

    def _unexplained(self, position: int, near: Tensor) -> list[int]:
        """Return tokens that may have a further row: found or nearly decoded ones that the rows leave much of."""
        found = [self.rows.tokens[row] for row in self.rows.at(position)]
        tokens = torch.tensor(list(dict.fromkeys([*found, *near.tolist()])), dtype=torch.long, device=self.words.device)
        chance = (self.missing / (self.space.width - len(self.rows))) ** 0.5
        much = self._remaining(tokens, torch.full_like(tokens, position)) > min(UNEXPLAINED, 2 * chance)
        return [*self.before[position : position + 1], *tokens[much].tolist()]

    def most_probable(self, position: int) -> int:
        """Return the most probable token at a position for which no row was found."""
        if position not in self._ranked:
            self._rank([position])
        tokens = self._ranked[position]
        return int(tokens[self._remaining(tokens, torch.full_like(tokens, position)).argmax()])

    def most_probable_end(self, after: int) -> int:
        """Return the most probable last position of a sentence whose last row found is at `after`."""
        places = torch.arange(after + 1, min(after + 4, self.inputs.positions.shape[0]), device=self.words.device)
        return int(places[self._remaining(torch.full_like(places, self.after[-1]), places).argmax()])

    def _remaining(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the fraction of x(t, p), orthogonal to the rows found, that lies in the row space."""
        vectors = self.inputs(tokens, positions)
        found = torch.linalg.qr(self.rows.vectors(self.inputs).T)[0]
        own = vectors - (vectors @ found) @ found.T
        return (own @ self.space.basis).norm(dim=1) / own.norm(dim=1).clamp(min=1e-300)

    def _candidates(self, position: int, first: int, last: int) -> Tensor:
        """Return the most probable tokens at a position, the end of a sentence first."""
        if position < len(self.before):
            return torch.tensor(self.before[position : position + 1], device=self.words.device)
        if position not in self._ranked:
            self._rank(range(position, min(position + 8, self.longest)))
        ranked = self._ranked[position][first:last]
        ends = torch.tensor(list(self.after[-1:]) if first == 0 else [], device=ranked.device, dtype=ranked.dtype)
        return torch.cat([ends, ranked])

    def _rank(self, positions: Iterable[int]) -> None:
        places = torch.tensor(list(positions), device=self.words.device)
        captured = self.inputs.captured_energy(self.space.basis, self.words, places)  # [words, positions]
        best = captured.topk(min(DECODED[-1][-1], len(self.words)), dim=0).indices
        self._ranked |= {int(p): self.words[best[:, n]] for n, p in enumerate(places)}

    def _vectors(self, tokens: Tensor, position: int) -> Tensor:
        """Return the vectors that dropout was applied to `[tokens, width]`."""
        places = torch.full_like(tokens, position)
        inputs = self.inputs
        return inputs.embedding_sums(tokens, places) if inputs.dropout_before_norm else inputs(tokens, places)

    def _try(self, position: int, tokens: Tensor, rounds: int, erased: Tensor | None = None) -> Tensor:
        """Decode tokens at a position, add those with a mask, and return the fraction outside of the others."""
        vectors = self._vectors(tokens, position)
        found = decode_masks(vectors, self._code, rounds=rounds, erased=erased)
        for number in found.accepted.nonzero().flatten().tolist():
            if self._whole.outside(vectors[number] * found.masks[number]) < mask_tolerance(self._whole):
                self.rows.add(int(tokens[number]), position, found.masks[number])
        return found.outside.masked_fill(found.accepted, 1.0)

    def _search_repeats(self, position: int, wanted: int, tokens: Sequence[int], depth: int) -> None:
        """Search further occurrences: masks that drop an entry which every mask found for a token keeps.

        Only the few occurrences that drop such an entry fit the row space then.
        """
        for token in dict.fromkeys(tokens):
            while len(self.rows.at(position)) < wanted and not self.deadline.passed:
                before = len(self.rows)
                self._search_repeat(position, token, depth)
                if len(self.rows) == before:
                    break

    def _search_repeat(self, position: int, token: int, depth: int) -> None:
        """Decode with one entry dropped; if masks drop too many for that, with the most promising two and more."""
        before = len(self.rows)
        forced = torch.nn.functional.one_hot(self._always_kept(position, token), self.space.width).bool()
        for _ in range(depth):
            outside = []
            for part in torch.split(forced, FORCED_TOGETHER):
                tokens = torch.full((len(part),), token, device=self.words.device)
                outside.append(self._try(position, tokens, 1, part))
                if len(self.rows) > before or self.deadline.passed:
                    return
            best = forced[torch.cat(outside).argsort()[:FORCED]]
            forced = (best[:, None] | best[None]).flatten(0, 1)
            forced = forced[forced.sum(dim=1) > best.sum(dim=1).max()]

    def _always_kept(self, position: int, token: int) -> Tensor:
        """Return the entries that no mask found for a token drops, the largest and most informative first."""
        size = self._vectors(torch.tensor([token], device=self.words.device), position)[0].abs()
        always = torch.ones_like(size, dtype=torch.bool)
        for row in self.rows.at(position):
            if self.rows.tokens[row] == token:
                always = always & self.rows.masks[row]
        return size.masked_fill(~always, -1.0).topk(min(REPEATS, int(always.sum()))).indices


def _code(inputs: LayerInputs, space: Subspace) -> Subspace:
    """Return the space of vectors right after dropout if the inputs of the first maps lie in `space`.

    It is the same space, unless dropout precedes the LayerNorm: x = γ ⊙ (u ⊙ m − μ) / σ + β, hence u ⊙ m =
    σ (x − β) / γ + μ is a sum of V / γ, β / γ and a constant.
    """
    if not inputs.dropout_before_norm:
        return space
    scale, shift = inputs.scale.double()[:, None], inputs.shift.double()[:, None]
    columns = torch.cat([space.basis / scale, torch.ones_like(scale), shift / scale], dim=1)
    columns = columns / columns.norm(dim=0).clamp(min=1e-300)
    vectors, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return Subspace(vectors[:, values > 1e-9 * values[0]], space.values, space.floor, space.error)
