"""The last stage for changed updates: change a sentence as long as its own gradient comes closer to the update.

The row space tells tokens well, and their number and order less so. The gradient of a whole sentence tells both: under
noise, pruning and sign compression hardly any sentence near the true one has a smaller cosine distance. It costs a
hundred times more than a look at the row space, which therefore chooses what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.attacks.sieve.edits import inside, reordered, shortened
from gradleak.attacks.sieve.labels import padded
from gradleak.attacks.sieve.seen import Seen
from gradleak.matching import Candidates, Cosine, Matcher

if TYPE_CHECKING:
    from gradleak.attacks.sieve.robust import Judge

POOL = 64
"""How many tokens of each place, of the whole vocabulary, are candidates for any place."""

FILLERS = 8
"""How many of them are tried at each place, beside the words that the sentence has already."""

COMPARED = 32
"""How many sentences of each length are compared with the update in a step."""

OF_A_ROW = 2.0
"""What a row must explain, in units of what it does by chance: under dropout a repeated word explains a little more."""

ROUNDS = 4
"""How often the candidates are chosen anew at most."""

STEPS = 30
"""How many changes a round makes at most."""


def polish(seen: Seen, judge: Judge, starts: Sequence[Tensor], *, resize: bool) -> tuple[Tensor, float]:
    """Return the sentence that is found from the best start, and the cosine distance of its gradient to the update.

    Args:
        seen: the update.
        judge: tells which changes are worth comparing.
        starts: sentences of one or several lengths.
        resize: whether the number of tokens may change.
    """
    comparison = Comparison(seen, judge, starts)
    sentence, least = comparison.best(starts)
    for _ in range(ROUNDS):
        before = sentence
        narrow = judge.among(_pool(judge, sentence))
        for _ in range(STEPS):
            if seen.deadline.passed:
                return sentence, float(comparison.distances([sentence]))
            seen.told([sentence], least)
            tried = _neighbours(narrow, sentence, seen.longest, resize=resize)
            better, loss = comparison.best(tried) if tried else (sentence, least)
            if loss >= least - 1e-9:
                break
            sentence, least = better, loss
        if torch.equal(sentence, before):
            break
    return sentence, float(comparison.distances([sentence]))


class Comparison:
    """Compares sentences with an update: by their gradients, and by what they explain of the first maps' spikes.

    Under dropout the first is close between words that mean the same, which the second tells apart.

    Args:
        seen: the update.
        judge: tells what a sentence explains.
        starts: sentences whose distance tells the class: a wrong one turns the gradient round.
    """

    def __init__(self, seen: Seen, judge: Judge, starts: Sequence[Tensor]) -> None:
        self.judge, self.target = judge, judge.target
        self._matcher = Matcher(self.target, [seen.gradient], Cosine()).until(seen.deadline)
        classes = range(self.target.num_labels if self.target.task == "classification" else 1)
        self.label = min(classes, key=lambda label: float(self.distances(starts, label).min()))

    def best(self, sentences: Sequence[Tensor]) -> tuple[Tensor, float]:
        """Return the sentence that comes closest, and how close."""
        losses = self.distances(sentences) + self._unexplained(sentences)
        return sentences[int(losses.argmin())], float(losses.min())

    def distances(self, sentences: Sequence[Tensor], label: int | None = None) -> Tensor:
        """Return the cosine distances of the gradients of sentences, all of one class `[sentences]`."""
        ids, mask = padded(self.target, [sentence.tolist() for sentence in sentences])
        ids, mask = ids[None, :, None], mask[None, :, None]  # [1, sentences, 1, tokens]
        label = self.label if label is None else label
        labels = ids if self.target.task == "causal-lm" else torch.full_like(ids[..., 0], label)
        return self._matcher(Candidates(ids, mask, labels))[0]

    def _unexplained(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return what sentences leave of the first maps' spikes; a row too many explains some by chance."""
        width = self.judge.inputs.width
        return torch.stack([1 - self.judge.alone(ids[None])[0] + OF_A_ROW * len(ids) / width for ids in sentences])


def _pool(judge: Judge, sentence: Tensor) -> Tensor:
    """Return the tokens that explain most at each place of a sentence beside the others, none twice."""
    fillers = [judge.fillers(sentence, place, POOL) for place in inside(judge.target, sentence)]
    return torch.unique(torch.cat([sentence[:0], *fillers]))


def _neighbours(judge: Judge, sentence: Tensor, longest: int, *, resize: bool) -> list[Tensor]:
    """Return the sentences one change away that explain most, so many of each length."""
    places = inside(judge.target, sentence)
    kinds = [torch.cat([reordered(sentence, places), *(_filled(judge, sentence, place) for place in places)])]
    if resize and len(sentence) > judge.target.min_length:
        kinds.append(shortened(sentence, places))
    if resize and len(sentence) < longest:
        gaps = range(places.start, places.stop + 1)
        wider = [torch.cat([sentence[:gap], sentence[:1], sentence[gap:]]) for gap in gaps]
        kinds.append(torch.cat([_filled(judge, ids, gap) for ids, gap in zip(wider, gaps, strict=True)]))
    return [ids for tried in kinds for ids in _promising(judge, tried)]


def _promising(judge: Judge, tried: Tensor) -> Tensor:
    """Return the sentences that explain most, first by the first maps alone, which is quickest, then by all."""
    for explained, count in ((judge.alone, 4 * COMPARED), (judge, COMPARED)):
        if len(tried) > count:
            tried = tried[explained(tried).topk(count).indices]
    return tried


def _filled(judge: Judge, sentence: Tensor, place: int) -> Tensor:
    """Return the sentence with other tokens at one place `[sentences, tokens]`.

    A word that stands in the sentence twice explains little the second time: all its words are tried, too.
    """
    own = sentence[list(inside(judge.target, sentence))]
    tokens = torch.unique(torch.cat([judge.fillers(sentence, place, FILLERS), own]))
    filled = sentence.repeat(len(tokens), 1)
    filled[:, place] = tokens
    return filled
