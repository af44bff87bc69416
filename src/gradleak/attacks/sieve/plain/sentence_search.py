"""Complete skeletons to sentences that pass the attention test, by a beam search over single replacements."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.attention_test import ContextSketch, context_tolerance, outside_contexts
from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.attacks.sieve.plain.prefixes import grow_prefixes
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.skeletons import find_skeletons
from gradleak.attacks.sieve.rotary_tokens import RotaryTokens
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

BEFORE_SUBTRACTION = 16
"""After so many skeletons, the sentences found are subtracted before more are tried."""

BEAM = 8
"""How many sentences a completion keeps, and how many replacements of each are tried."""

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
    return search.run(find_skeletons(observed, pairs, remainder.gradients), starts)


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

    def run(self, skeletons: Mapping[int, Tensor], most: int) -> list[Sentence]:
        """Complete at most so many skeletons, those with the smallest loss first."""
        found: list[Sentence] = []
        for tried, row in enumerate(self.ranked(skeletons)[:most]):
            if (found and tried >= BEFORE_SUBTRACTION) or self.deadline.passed:
                break
            sentence, outside = self.completed(row)
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

    def completed(self, start: Tensor) -> tuple[Sentence, float]:
        """Complete a skeleton, and return the sentence with the largest fraction of a context outside."""
        rows = self._completed(start)
        outside = outside_contexts(self.pairs, rows[:1], self.contexts)
        return tuple(self.pairs.tokens[rows[0]].tolist()), float(outside)

    def _completed(self, start: Tensor) -> Tensor:
        """Replace one token after the other, and return the best sentences found on the way, the best first."""
        beam = start[None]
        losses = self.sketch.losses(beam)
        visited = {tuple(start.tolist())}
        idle = 0
        for _ in range(2 * len(start)):
            fresh = self._neighbours(beam, visited)
            if not len(fresh):
                break
            rows = torch.cat([beam, fresh])
            scores = torch.cat([losses, self.sketch.losses(fresh)])
            order = scores.argsort()[:BEAM]
            idle = 0 if scores[order[0]] < GAIN * losses[0] else idle + 1
            beam, losses = rows[order], scores[order]
            if idle > PATIENCE or losses[0] < SOLVED or self.deadline.passed:
                break
        return beam

    def _neighbours(self, beam: Tensor, visited: set[tuple[int, ...]]) -> Tensor:
        """Return the best few sentences one replacement away from each of the beam that were not visited before."""
        tables, columns = [], []
        for position in range(len(self.before), beam.shape[1] - len(self.after)):
            there = self.pairs.at(position)
            tables.append(self.sketch.replacements(beam, position, there))
            columns += [(position, int(pair)) for pair in there]
        best = torch.cat(tables, dim=1).topk(min(BEAM, len(columns)), dim=1, largest=False).indices.tolist()
        fresh = []
        for row, picks in zip(beam.tolist(), best, strict=True):
            for position, pair in (columns[pick] for pick in picks):
                changed = (*row[:position], pair, *row[position + 1 :])
                if changed not in visited:
                    visited.add(changed)
                    fresh.append(changed)
        return torch.tensor(fresh, device=beam.device, dtype=beam.dtype).view(-1, beam.shape[1])
