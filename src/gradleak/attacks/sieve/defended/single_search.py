"""Read one sentence of a defended update: pursue its words, then edit it while its gradient comes closer to the update.

The row space determines tokens well, and their number and order less so. The gradient of a whole sentence determines
both: under noise, pruning and sign compression hardly any sentence near the true one has a smaller cosine distance. It
costs a hundred times more than a look at the row space, which therefore selects what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.edits import reordered, shortened, widened, word_positions
from gradleak.attacks.sieve.defended.sentence_scorer import SentenceScorer
from gradleak.attacks.sieve.hill_climb import hill_climb
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.exchange import Deadline
from gradleak.leakage.labels import nearest_labels
from gradleak.matching import Candidates, Cosine, Matcher

LIKELIEST = 200
"""How many tokens of each position are considered in the pursuit."""

LENGTHS = 3
"""How many lengths of the sentence are tried."""

POOL = 64
"""How many tokens of each position, of the whole vocabulary, are candidates for any position."""

FILLERS = 8
"""How many of them are tried at each position, beside the words that the sentence has already."""

COMPARED = 32
"""How many sentences of each length are compared with the update in a step."""

ROW_COST = 2.0
"""What a row must capture, in units of what it captures by chance: under dropout a repeated word captures a little
more."""

ROUNDS = 4
"""How often the candidates are chosen anew at most."""

STEPS = 30
"""The greatest number of edits in a round."""

LEAST_GAIN = 1e-9
"""Smaller gains of the loss are rounding."""


def read_sentence(observed: ObservedUpdate, length: int | None) -> tuple[Sentence, float] | None:
    """Return the sentence of a defended update and the cosine distance of its gradient; None if there is no signal.

    Args:
        observed: the update.
        length: the number of tokens, if known.
    """
    scorer = SentenceScorer(observed)
    if scorer.first is None:
        return None
    lengths = _lengths(scorer, observed.longest) if length is None else [length]
    narrow = scorer.with_words(_likely_words(scorer, max(lengths)))
    starts = [_pursue(narrow, tokens, observed.deadline) for tokens in lengths]
    sentence, distance = refine_sentence(observed, scorer, starts, resize=length is None)
    return tuple(sentence.tolist()), distance


def refine_sentence(
    observed: ObservedUpdate, scorer: SentenceScorer, starts: Sequence[Tensor], *, resize: bool
) -> tuple[Tensor, float]:
    """Return the sentence that a hill climb reaches from the best start, and the cosine distance of its gradient.

    Args:
        observed: the update.
        scorer: selects the edits that are worth comparing.
        starts: sentences of one or several lengths.
        resize: whether the number of tokens may change.
    """
    comparison = GradientComparison(observed, scorer, starts)
    sentence, loss = comparison.best(starts)
    for _ in range(ROUNDS):
        if observed.deadline.passed:
            break
        before = sentence
        narrow = scorer.with_words(_pool(scorer, sentence))

        def step(
            current: Tensor, best: tuple[Tensor, float], narrow: SentenceScorer = narrow
        ) -> tuple[Tensor, float] | None:
            if observed.deadline.passed:
                return None
            observed.report([current], -best[1])
            tried = _neighbours(narrow, current, observed.longest, resize=resize)
            if not tried:
                return None
            better, loss = comparison.best(tried)
            return better, -loss

        sentence, value = hill_climb((sentence, -loss), step, steps=STEPS, least_gain=LEAST_GAIN)
        loss = -value
        if torch.equal(sentence, before):
            break
    return sentence, float(comparison.distances([sentence]))


class GradientComparison:
    """Compares sentences with an update by their gradients and by what they capture of the first maps' signal.

    Under dropout the gradients of words with similar meaning are close; the signal distinguishes them.

    Args:
        observed: the update.
        scorer: measures what a sentence captures.
        starts: sentences by which the class is chosen: a wrong class reverses the gradient.
    """

    def __init__(self, observed: ObservedUpdate, scorer: SentenceScorer, starts: Sequence[Tensor]) -> None:
        self.scorer, self.target = scorer, scorer.target
        self._matcher = Matcher(self.target, [observed.gradient], Cosine()).until(observed.deadline)

        def distances(labels: list[list[int]]) -> Tensor:
            return torch.stack([self.distances(starts, label).min() for (label,) in labels])

        classes = self.target.num_labels if self.target.task == "classification" else 1
        (self.label,), _ = nearest_labels(distances, 1, classes)

    def best(self, sentences: Sequence[Tensor]) -> tuple[Tensor, float]:
        """Return the sentence with the smallest loss, and the loss."""
        losses = self.distances(sentences) + self._residual(sentences)
        return sentences[int(losses.argmin())], float(losses.min())

    def distances(self, sentences: Sequence[Tensor], label: int | None = None) -> Tensor:
        """Return the cosine distances of the gradients of sentences, all of one class `[sentences]`."""
        batch = self.target.pad([sentence.tolist() for sentence in sentences])
        ids, mask = batch.ids[None, :, None], batch.mask[None, :, None]  # [1, sentences, 1, tokens]
        label = self.label if label is None else label
        labels = ids if self.target.task == "causal-lm" else torch.full_like(ids[..., 0], label)
        return self._matcher(Candidates(ids, mask, labels))[0]

    def _residual(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return what sentences leave of the first maps' signal, plus what each row captures by chance."""
        width = self.scorer.inputs.width
        return torch.stack(
            [1 - self.scorer.by_first_maps(ids[None])[0] + ROW_COST * len(ids) / width for ids in sentences]
        )


def _likely_words(scorer: SentenceScorer, longest: int) -> Tensor:
    """Return the words that capture most at some position beside what all rows share, each once."""
    places = torch.arange(longest, device=scorer.words.device)
    gain = scorer.gains(scorer.words, places, scorer.common)
    return scorer.words[torch.unique(gain.topk(min(LIKELIEST, len(gain)), dim=0).indices)]


def _lengths(scorer: SentenceScorer, longest: int) -> list[int]:
    """Return the most probable numbers of tokens: where the end token captures most."""
    after, shortest = scorer.target.special_tokens[1], scorer.target.min_length
    if not after:
        return list(range(shortest, min(longest, shortest + 8 * LENGTHS)))
    places = torch.arange(shortest - 1, longest, device=scorer.words.device)
    end = torch.tensor(after[-1:], device=places.device)
    order = scorer.gains(end, places, scorer.common)[0].argsort(descending=True)[:LENGTHS]
    return [int(place) + 1 for place in places[order]]


def _pursue(scorer: SentenceScorer, length: int, deadline: Deadline) -> Tensor:
    """Orthogonal matching pursuit with one token per position: add the token that captures most of the residual.

    When the time is up, all open positions are filled at once.
    """
    before, after = scorer.target.special_tokens
    device = scorer.words.device
    sentence = torch.full((length,), -1, device=device, dtype=torch.long)
    sentence[: len(before)] = torch.tensor(before, device=device, dtype=torch.long)
    if after:
        sentence[length - len(after) :] = torch.tensor(after, device=device, dtype=torch.long)
    places = torch.arange(length, device=device)
    while (sentence < 0).any():
        done = sentence >= 0
        rows = scorer.inputs(sentence[done], places[done]) if done.any() else scorer.common
        gain = scorer.gains(scorer.words, places[~done], rows)  # [words, open positions]
        if deadline.passed:
            sentence[~done] = scorer.words[gain.argmax(dim=0)]
            break
        word, place = divmod(int(gain.argmax()), gain.shape[1])
        sentence[places[~done][place]] = scorer.words[word]
    return sentence


def _pool(scorer: SentenceScorer, sentence: Tensor) -> Tensor:
    """Return the tokens that capture most at each position of a sentence beside the others, each once."""
    fillers = [scorer.best_words(sentence, place, POOL) for place in word_positions(scorer.target, sentence)]
    return torch.unique(torch.cat([sentence[:0], *fillers]))


def _neighbours(scorer: SentenceScorer, sentence: Tensor, longest: int, *, resize: bool) -> list[Tensor]:
    """Return the sentences one edit away that capture most, a limited number of each length."""
    places = word_positions(scorer.target, sentence)
    groups = [torch.cat([reordered(sentence, places), *(_filled(scorer, sentence, place) for place in places)])]
    if resize and len(sentence) > scorer.target.min_length:
        groups.append(shortened(sentence, places))
    if resize and len(sentence) < longest:
        gaps = range(places.start, places.stop + 1)
        groups.append(torch.cat([_filled(scorer, widened(sentence, gap), gap) for gap in gaps]))
    return [ids for tried in groups for ids in _promising(scorer, tried)]


def _promising(scorer: SentenceScorer, tried: Tensor) -> Tensor:
    """Return the sentences that capture most, first by the first maps alone, which is fastest, then by all."""
    for score, count in ((scorer.by_first_maps, 4 * COMPARED), (scorer, COMPARED)):
        if len(tried) > count:
            tried = tried[score(tried).topk(count).indices]
    return tried


def _filled(scorer: SentenceScorer, sentence: Tensor, place: int) -> Tensor:
    """Return the sentence with other tokens at one position `[sentences, tokens]`.

    A word that occurs twice captures little the second time: all words of the sentence are tried as well.
    """
    own = sentence[list(word_positions(scorer.target, sentence))]
    tokens = torch.unique(torch.cat([scorer.best_words(sentence, place, FILLERS), own]))
    filled = sentence.repeat(len(tokens), 1)
    filled[:, place] = tokens
    return filled
