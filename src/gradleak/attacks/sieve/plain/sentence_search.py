"""Complete layouts and skeletons to sentences whose contexts lie in the row space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.attention_test import context_tolerance, outside_contexts
from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.attacks.sieve.plain.layout import Layout, lay_out
from gradleak.attacks.sieve.plain.prefixes import grow_prefixes
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.sentence_descent import SentenceDescent
from gradleak.attacks.sieve.plain.sentence_sketch import SentenceSketch
from gradleak.attacks.sieve.plain.skeletons import find_skeletons
from gradleak.attacks.sieve.rotary_tokens import RotaryTokens
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

BEFORE_SUBTRACTION = 16
"""After so many skeletons, the sentences found are subtracted before more are tried."""

QUICK = 40
"""How many skeletons are completed before any is thoroughly."""

SAME = 0.6
"""A skeleton that shares this fraction of its tokens with a sentence found is one of that sentence."""


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
    spaces = SentenceSpaces.of(observed, remainder)
    before, after = target.special_tokens
    special = torch.tensor([*before, *after], device=words.device, dtype=words.dtype)
    places = longest if inputs.by_position else 1
    tokens, positions = possible_pairs(inputs, space, torch.cat([words, special]), places)
    if not inputs.by_position:
        return grow_prefixes(RotaryTokens(target, tokens), spaces.contexts, observed.deadline)
    pairs = TokenPairs.of(target, inputs, tokens, positions)
    if pairs.causal:
        return grow_prefixes(pairs, spaces.contexts, observed.deadline)
    if not len(pairs.tokens) or not len(pairs.at(0)):
        return []
    search = SkeletonCompletion(observed, pairs, spaces)
    tolerance = context_tolerance(spaces.contexts)
    layouts = lay_out(observed, pairs, remainder.gradients)
    found = search.of_layouts(layouts, lambda ended: ended.outside < tolerance)
    return found or search.run(find_skeletons(observed, pairs, remainder.gradients), starts)


@dataclass(frozen=True)
class SentenceSpaces:
    """The row spaces in which the vectors of right sentences lie.

    Attributes:
        contexts: of the attention output map.
        hidden: of the feed-forward map; None if it tells nothing.
    """

    contexts: Subspace
    hidden: Subspace | None

    @classmethod
    def of(cls, observed: ObservedUpdate, remainder: Remainder) -> SentenceSpaces:
        """Take them from what is left of an update."""
        layer = observed.target.layers[0]
        contexts, hidden = remainder.row_space((layer.attention_output,)), None
        if observed.hidden_states is not None:
            hidden = remainder.row_space((layer.feed_forward_in,))
        return cls(contexts, hidden if hidden is not None and hidden.rank < hidden.width else None)


@dataclass(frozen=True)
class Completed:
    """What a skeleton was completed to.

    Attributes:
        sentence: token ids.
        outside: the largest fraction of a context outside the row space.
        certain: whether every change that was tried makes it clearly worse.
    """

    sentence: Sentence
    outside: float
    certain: bool


class SkeletonCompletion:
    """Descends from skeletons to sentences whose vectors lie in the row space.

    Args:
        observed: the update.
        pairs: the candidates.
        spaces: the row spaces of the contexts and of the hidden states.
    """

    def __init__(self, observed: ObservedUpdate, pairs: TokenPairs, spaces: SentenceSpaces) -> None:
        self.pairs, self.contexts, self.deadline = pairs, spaces.contexts, observed.deadline
        before, after = observed.target.special_tokens
        states = None if spaces.hidden is None else observed.hidden_states
        self.sketch = SentenceSketch(pairs, spaces.hidden or spaces.contexts, states)
        special = torch.tensor([*before, *after], device=pairs.tokens.device)
        self._descent = SentenceDescent(self.sketch, (len(before), len(after)), special, self.deadline)

    def of_layouts(
        self,
        layouts: Sequence[Layout],
        is_right: Callable[[Completed], bool],
        efforts: Sequence[bool] = (False, True),
    ) -> list[Sentence]:
        """Complete sentences that were laid out, and return those that are right.

        Args:
            layouts: what is seen of each.
            is_right: tells which sentences are right.
            efforts: whether to complete thoroughly: the next is made if the last leads to no sentence.
        """
        found: list[Sentence] = []
        for thorough in efforts:
            for number, layout in enumerate(layouts):
                if number and self.deadline.passed:
                    return found
                ended = self.completed(layout.rows, layout.held, thorough=thorough)
                found += [one.sentence for one in ended if one.sentence not in found and is_right(one)][:1]
            if found:
                break
        return found

    def run(self, skeletons: Mapping[int, Tensor], most: int) -> list[Sentence]:
        """Complete at most so many skeletons, those with the smallest loss first."""
        ranked = self.ranked(skeletons)[:most]
        for thorough, limit in ((False, QUICK), (True, most)):
            found = self._completions(ranked[:limit], thorough)
            if found:
                return found
        return []

    def _completions(self, ranked: Sequence[Tensor], thorough: bool) -> list[Sentence]:
        """Return the sentences that skeletons lead to, leaving out skeletons of those found before."""
        found: list[Sentence] = []
        for tried, row in enumerate(ranked):
            if (found and tried >= BEFORE_SUBTRACTION) or self.deadline.passed:
                break
            tokens = tuple(self.pairs.tokens[row].tolist())
            if any(common_tokens(tokens, sentence) > SAME for sentence in found):
                continue
            ended = self.completed([row], thorough=thorough)[0]
            if ended.outside < context_tolerance(self.contexts) and ended.sentence not in found:
                found.append(ended.sentence)
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
        self, starts: Sequence[Tensor], held: Collection[int] = (), *, thorough: bool = False
    ) -> list[Completed]:
        """Complete guesses at one sentence, and return what they lead to, the best first.

        Args:
            starts: skeletons, as indices of pairs.
            held: positions whose words are certain.
            thorough: whether several of them are followed to the end, if the best leads to no certain sentence.
        """
        return [
            Completed(
                self._sentence(ended.row),
                float(outside_contexts(self.pairs, ended.row[None], self.contexts)),
                ended.certain,
            )
            for ended in self._descent.run(starts, held, thorough=thorough)
        ]

    def around(self, sentence: Sentence, most: int) -> list[Sentence]:
        """Return the changes of a sentence that lie in the row space best."""
        row = self._descent.row(sentence)
        return [] if row is None else [self._sentence(changed) for changed in self._descent.around(row, most)]

    def _sentence(self, row: Tensor) -> Sentence:
        return tuple(self.pairs.tokens[row].tolist())


def common_tokens(one: Sentence, other: Sentence) -> float:
    """Return the fraction of the tokens of the longer sentence that the other has as well."""
    shared = (Counter(one) & Counter(other)).total()
    return shared / max(len(one), len(other))
