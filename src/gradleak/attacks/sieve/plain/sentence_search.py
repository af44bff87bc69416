"""Complete skeletons to sentences that pass the attention test, by a beam search over replacements and exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.attention_test import ContextSketch, context_tolerance, outside_contexts
from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.attacks.sieve.plain.layout import Layout, lay_out
from gradleak.attacks.sieve.plain.prefixes import grow_prefixes
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.skeletons import find_skeletons
from gradleak.attacks.sieve.rotary_tokens import RotaryTokens
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

BEFORE_SUBTRACTION = 16
"""After so many skeletons, the sentences found are subtracted before more are tried."""

GREEDY = 40
"""How many skeletons are first completed with a beam of one."""

SAME = 0.6
"""A skeleton that shares this fraction of its tokens with a sentence found is one of that sentence."""

BEAM = 8
"""How many sentences a completion keeps, and how many replacements of each are tried."""

EFFORTS = ((2, True), (6, True), (4, False))
"""How many lengths of a sentence that was laid out are tried, and whether with the likely words alone: the next if the
last leads to no sentence."""

EXCHANGES = 4
"""How many exchanges of two words are kept in each step."""

SOLVED = 1e-9
"""A sketched loss that no wrong sentence reaches."""

GAIN, PATIENCE = 0.999, 1
"""A step gains if it lowers the loss by this factor; a completion ends after more steps without gain than this."""


def find_sentences(observed: ObservedUpdate, remainder: Remainder, longest: int, starts: int) -> list[Sentence]:
    """Return the sentences that a remainder reveals.

    Args:
        observed: the update.
        remainder: what is left of its gradient.
        longest: the greatest number of tokens of a sentence.
        starts: how many skeletons are completed at most.
    """
    target, inputs, words = observed.target, observed.inputs, observed.words
    space = remainder.row_space(inputs.maps)
    contexts = remainder.row_space((target.layers[0].attention_output,))
    before, after = target.special_tokens
    special = torch.tensor([*before, *after], device=words.device, dtype=words.dtype)
    places = longest if inputs.by_position else 1
    tokens, positions = possible_pairs(inputs, space, torch.cat([words, special]), places)
    if not inputs.by_position:
        return grow_prefixes(RotaryTokens(target, tokens), contexts, observed.deadline)
    pairs = TokenPairs.of(target, inputs, tokens, positions)
    if pairs.causal:
        return grow_prefixes(pairs, contexts, observed.deadline)
    if not len(pairs.tokens) or not len(pairs.at(0)):
        return []
    search = SkeletonCompletion(observed, pairs, contexts)
    tolerance = context_tolerance(contexts)
    layouts = lay_out(observed, pairs, remainder.gradients)
    found = search.of_layouts(layouts, lambda _, outside: outside < tolerance)
    return found or search.run(find_skeletons(observed, pairs, remainder.gradients), starts)


class SkeletonCompletion:
    """A beam search from skeletons to sentences whose contexts lie in the row space.

    Args:
        observed: the update.
        pairs: the candidates.
        contexts: the row space of the attention output map.
    """

    def __init__(self, observed: ObservedUpdate, pairs: TokenPairs, contexts: Subspace) -> None:
        self.pairs, self.contexts, self.deadline = pairs, contexts, observed.deadline
        self.before, self.after = observed.target.special_tokens
        self.sketch = ContextSketch(pairs, contexts)
        tokens, self._token_of = pairs.tokens.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        self._table = torch.full((len(tokens), int(pairs.positions.max()) + 1), -1, device=tokens.device)
        self._table[self._token_of, pairs.positions] = torch.arange(len(pairs.tokens), device=tokens.device)

    def of_layouts(self, layouts: Sequence[Layout], is_right: Callable[[Sentence, float], bool]) -> list[Sentence]:
        """Complete sentences that were laid out, and return those that are right.

        The next effort is made if the last leads to no sentence.

        Args:
            layouts: what is seen of each.
            is_right: whether a sentence that leaves a fraction of a context outside is right.
        """
        found: list[Sentence] = []
        for effort in EFFORTS:
            for layout in layouts:
                sentences = self._of_layout(layout, *effort)
                found += [one for one, outside in sentences if one not in found and is_right(one, outside)][:1]
            if found:
                break
        return found

    def _of_layout(self, layout: Layout, lengths: int, narrow: bool) -> Iterator[tuple[Sentence, float]]:
        """Yield a sentence in its most probable lengths, each completed."""
        for row in layout.rows[:lengths]:
            if self.deadline.passed:
                break
            yield self.completed(row, 1, layout.likely if narrow else None)

    def run(self, skeletons: Mapping[int, Tensor], most: int) -> list[Sentence]:
        """Complete at most so many skeletons, those with the smallest loss first."""
        ranked = self.ranked(skeletons)[:most]
        for width, limit in ((1, GREEDY), (BEAM, most)):
            found = self._completions(ranked[:limit], width)
            if found:
                return found
        return []

    def _completions(self, ranked: Sequence[Tensor], width: int) -> list[Sentence]:
        """Return the sentences that skeletons lead to, leaving out skeletons of those found before."""
        found: list[Sentence] = []
        for tried, row in enumerate(ranked):
            if (found and tried >= BEFORE_SUBTRACTION) or self.deadline.passed:
                break
            tokens = tuple(self.pairs.tokens[row].tolist())
            if any(common_tokens(tokens, sentence) > SAME for sentence in found):
                continue
            sentence, outside = self.completed(row, width)
            if outside < context_tolerance(self.contexts) and sentence not in found:
                found.append(sentence)
        return found

    def ranked(self, skeletons: Mapping[int, Tensor]) -> list[Tensor]:
        """Return skeletons of all lengths, those with the smallest loss first."""
        starts = [
            (float(loss), row)
            for rows in skeletons.values()
            for loss, row in zip(self.sketch.losses(rows), rows, strict=True)
        ]
        starts.sort(key=lambda start: start[0])
        return [row for _, row in starts]

    def completed(
        self, start: Tensor, width: int = BEAM, likely: Mapping[int, Tensor] | None = None
    ) -> tuple[Sentence, float]:
        """Complete a skeleton, and return the sentence with the largest fraction of a context outside.

        Args:
            start: the skeleton, as indices of pairs.
            width: how many sentences are kept at each step; 1 is many times as fast, and often enough.
            likely: the pairs to try at each position; all if left out.
        """
        inner = range(len(self.before), len(start) - len(self.after))
        tried = {place: self.pairs.at(place) if likely is None else likely[place] for place in inner}
        rows = self._completed(start, width, tried)
        outside = outside_contexts(self.pairs, rows[:1], self.contexts)
        return tuple(self.pairs.tokens[rows[0]].tolist()), float(outside)

    def _completed(self, start: Tensor, width: int, tried: Mapping[int, Tensor]) -> Tensor:
        """Replace or exchange one token after the other, and return the best sentences on the way, the best first."""
        beam = start[None]
        losses = self.sketch.losses(beam)
        visited = {tuple(start.tolist())}
        idle = 0
        for _ in range(2 * len(start)):
            fresh = self._fresh(beam, visited, tried)
            if not len(fresh):
                break
            rows = torch.cat([beam, fresh])
            scores = torch.cat([losses, self.sketch.losses(fresh)])
            order = scores.argsort()[:width]
            idle = 0 if scores[order[0]] < GAIN * losses[0] else idle + 1
            beam, losses = rows[order], scores[order]
            if idle > PATIENCE or losses[0] < SOLVED or self.deadline.passed:
                break
        return beam

    def _fresh(self, beam: Tensor, visited: set[tuple[int, ...]], tried: Mapping[int, Tensor]) -> Tensor:
        """Return the best few sentences one step away from each of the beam that were not visited before."""
        near = [*self._replaced(beam, tried), *(changed for row in beam for changed in self._exchanged(row))]
        fresh = [changed for changed in dict.fromkeys(near) if changed not in visited]
        visited.update(fresh)
        return torch.tensor(fresh, device=beam.device, dtype=beam.dtype).view(-1, beam.shape[1])

    def _replaced(self, beam: Tensor, tried: Mapping[int, Tensor]) -> Iterator[tuple[int, ...]]:
        """Yield the best few sentences with one other token."""
        columns = [(position, pair) for position, pairs in tried.items() for pair in pairs.tolist()]
        losses = torch.cat(self.sketch.replacements(beam, tried), dim=1)
        best = losses.topk(min(BEAM, len(columns)), dim=1, largest=False).indices.tolist()
        for row, picks in zip(beam.tolist(), best, strict=True):
            for position, pair in (columns[pick] for pick in picks):
                yield (*row[:position], pair, *row[position + 1 :])

    def _exchanged(self, row: Tensor) -> Iterator[tuple[int, ...]]:
        """Yield the best few sentences with two tokens exchanged: their words are right, their places not."""
        first, last = len(self.before), len(row) - len(self.after)
        one, other = torch.triu_indices(last - first, last - first, 1, device=row.device) + first
        places = torch.arange(len(row), device=row.device)
        swapped = self._table[self._token_of[row]][:, places]
        possible = (swapped[one, other] >= 0) & (swapped[other, one] >= 0) & (row[other] != swapped[one, other])
        one, other = one[possible], other[possible]
        if not len(one):
            return
        losses = self.sketch.exchanges(row, one, other, swapped)
        for best in losses.topk(min(EXCHANGES, len(one)), largest=False).indices.tolist():
            first, last = int(one[best]), int(other[best])
            changed = row.clone()
            changed[first], changed[last] = swapped[last, first], swapped[first, last]
            yield tuple(changed.tolist())


def common_tokens(one: Sentence, other: Sentence) -> float:
    """Return the fraction of the tokens of the longer sentence that the other has as well."""
    shared = (Counter(one) & Counter(other)).total()
    return shared / max(len(one), len(other))
