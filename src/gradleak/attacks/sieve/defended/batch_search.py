"""Read a defended update of several sentences, or improve the reading of one.

The words are found and grouped into sentences by the first layer (`token_pursuit.py`), roughly. Then each sentence is
edited while its context score grows (`context_score.py`): at first beside those found before it, to find none
twice, then by itself. In the end the gradient of the whole batch decides between the sentences that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.batch_distance import BatchDistance, batch_distance
from gradleak.attacks.sieve.defended.candidate_words import CandidateWords
from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.defended.context_search import LEAST_GAIN, ContextSearch
from gradleak.attacks.sieve.defended.feasible_set import FeasibleSet, complete_by_rank
from gradleak.attacks.sieve.defended.signal_subspace import signal_subspace
from gradleak.attacks.sieve.defended.token_pursuit import FoundWords, affinities, group_words, pursue_words
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.exchange import Deadline
from gradleak.leakage.proof import REPLAYED_WHOLE
from gradleak.leakage.replay import can_replay, replay_difference
from gradleak.targets import Target

ROUNDS = 4
"""How often the gradient of the batch decides on every sentence at most."""

COMPLETION_STEPS = 100
"""Alternating projections that complete a compressed gradient."""

FEW_MISSING = 8
"""Words of the whole vocabulary that are tried at each position where a row space has shown nearly all words."""

NEARLY = 0.2
"""The distance below which a batch may be the very one: steps of Adam at weights that drifted leave 0.1."""


Decide = Callable[[ContextSearch, Sequence[Tensor]], DefendedReading]
"""Decides on sentences by the update of the whole batch."""


def read_batch(observed: ObservedUpdate, count: int, decide: Decide | None = None) -> DefendedReading | None:
    """Read so many sentences from a defended update; None if there is no signal.

    Args:
        observed: the update.
        count: the number of sentences.
        decide: decides on what the contexts show of them; `decide_by_scores` if left out.

    The progress callback is given the fraction of the contexts outside the signal, and in the end the distance of the
    gradients.
    """
    target, words, signal = observed.target, observed.words, observed.restored
    sent = FeasibleSet(signal.map_gradients)
    basis = _signal_basis(sent, observed.deadline)
    score = ContextScore(target, observed.inputs, signal.gradient, observed.context_weights)
    if basis is None or basis.shape[1] >= observed.inputs.width or not score.depth:
        return None
    ends = torch.tensor(target.special_tokens[1][-1:], device=words.device, dtype=torch.long)
    found = pursue_words(observed, basis, torch.cat([words, ends]))
    if not found.certain:
        return None
    starts = [
        _ordered_sentences(
            target, found, group_words(affinity[: found.certain, : found.certain], count), observed.longest
        )
        for affinity in affinities(observed, sent, found)
    ]
    start = max(starts, key=lambda sentences: float(score.each(sentences).mean()))
    search = ContextSearch(observed, score, CandidateWords(observed, basis, found.tokens))
    return (decide or decide_by_scores)(search, search.one_beside_others(start))


def refine_with_contexts(
    observed: ObservedUpdate, sentence: Sequence[int], decide: Decide | None = None, *, resize: bool = True
) -> DefendedReading | None:
    """Improve the reading of one sentence of an update; None if there is no signal.

    Args:
        observed: the update.
        sentence: the sentence so far.
        decide: decides on what the contexts show of it; `decide_by_distance`, of an update of it alone, if left out.
        resize: whether its length may change.
    """
    signal = observed.restored
    basis = _signal_basis(FeasibleSet(signal.map_gradients), observed.deadline)
    score = ContextScore(observed.target, observed.inputs, signal.gradient, observed.context_weights)
    if basis is None or not score.depth:
        return None
    start = torch.tensor(sentence, device=observed.words.device)
    search = ContextSearch(observed, score, CandidateWords(observed, basis, start), resize=resize)
    return (decide or decide_by_distance)(search, search.each_alone([start]))


def refine_batch(observed: ObservedUpdate, sentences: Sequence[Sequence[int]]) -> DefendedReading:
    """Decide on the last words of sentences that were read from a row space, by the distance of the whole batch."""
    weights = observed.context_weights
    score = ContextScore(observed.target, observed.inputs, observed.gradient, weights, observed.spectrum)
    found = torch.tensor(sorted({token for ids in sentences for token in ids}), device=observed.words.device)
    search = ContextSearch(observed, score, CandidateWords(observed, observed.space.basis, found, missing=FEW_MISSING))
    return decide_by_distance(search, [torch.tensor(ids, device=found.device) for ids in sentences])


def _signal_basis(sent: FeasibleSet, deadline: Deadline) -> Tensor | None:
    """Return the span of the tokens as orthonormal columns `[width, rank]`; None if there is no signal.

    The signal of a pruned gradient has about the rank of the tokens; that of signs, about half.
    """
    signal = signal_subspace(sent.split(sent.values))
    if signal is None:
        return None
    rank = min(len(signal.factor) * (2 if sent.signs_only else 1), sent.values.shape[1])
    matrix = sent.values if sent.complete else complete_by_rank(sent, rank, COMPLETION_STEPS, deadline)
    scaled = torch.cat([part / part.norm().clamp(min=1e-12) for part in sent.split(matrix)])
    return torch.linalg.svd(scaled, full_matrices=False)[2][:rank].T


def _ordered_sentences(
    target: Target, found: FoundWords, groups: Sequence[Sequence[int]], longest: int
) -> list[Tensor]:
    """Return groups of certain words as sentences, in the order of their positions."""
    before, after = target.special_tokens
    room = longest - len(before) - len(after)
    certain = found.best()
    sentences = []
    for group in groups:
        inner = sorted((int(certain.positions[n]), int(certain.tokens[n])) for n in group)
        words = [token for _, token in inner if token not in after][:room]
        words = words or found.tokens[:1].tolist()  # no sentence is empty
        sentences.append(torch.tensor([*before, *words, *after], device=found.tokens.device))
    return sentences


def decide_by_contexts(search: ContextSearch, sentences: Sequence[Tensor]) -> DefendedReading:
    """Edit each sentence by itself, and leave the rest to another judge: classes and distance are not determined."""
    return DefendedReading([ids.tolist() for ids in search.each_alone(sentences)], [], 2.0)


def decide_by_scores(search: ContextSearch, sentences: Sequence[Tensor]) -> DefendedReading:
    """Edit each sentence by itself, then beside the others by the update of the whole batch."""
    return decide_by_distance(search, search.each_alone(sentences))


def decide_by_distance(search: ContextSearch, sentences: Sequence[Tensor]) -> DefendedReading:
    """Edit sentence after sentence while the update of the whole batch comes closer to the observed one.

    Under dropout a superfluous word may bring it closer, too: the context score counts as much as a sentence's own part
    of the distance.
    """
    observed = search.observed
    distance = batch_distance(observed)
    batch = distance.labelled([ids.tolist() for ids in sentences])
    sentences = [torch.tensor(ids, device=observed.words.device) for ids in batch.sentences]
    decision = _Decision(batch, distance, sentences, search.score.each(sentences).tolist())
    unsettled = set(range(len(sentences)))
    for _ in range(ROUNDS):
        for number in sorted(unsettled, key=decision.scores.__getitem__):
            observed.report(sentences, batch.distance)
            near = search.near(sentences, number)
            if observed.deadline.passed:
                return batch
            if not decision.take_better(number, *near) and not decision.take_better(
                number, *search.likely(sentences[number])
            ):
                unsettled.remove(number)
            elif _is_solved(observed, batch):
                return batch
    return batch


@dataclass
class _Decision:
    """The sentences of a batch while they are decided on one by one.

    Attributes:
        batch: the batch, whose sentences and distance change.
        distance: compares batches with the update.
        sentences: the same sentences as tensors.
        scores: the context score of each.
    """

    batch: DefendedReading
    distance: BatchDistance
    sentences: list[Tensor]
    scores: list[float]

    def take_better(self, number: int, tried: Sequence[Tensor], scores: Tensor) -> bool:
        """Take the best of other sentences in place of one if it is better, and return whether it is."""
        if not len(tried):
            return False
        count, batch = len(self.sentences), self.batch
        distances = self.distance.replaced(batch, number, tried)
        losses = count * distances - scores.to(distances)
        best = int(losses.argmin())
        if float(losses[best]) > count * batch.distance - self.scores[number] - LEAST_GAIN:
            return False
        self.sentences[number], self.scores[number] = tried[best], float(scores[best])
        batch.sentences[number], batch.distance = tried[best].tolist(), float(distances[best])
        return True


def _is_solved(observed: ObservedUpdate, batch: DefendedReading) -> bool:
    """Return whether the client, replayed on a batch, sends this very update, so that no edit is left to try."""
    if batch.distance > NEARLY or not can_replay(observed.protocol):
        return False
    texts = list(zip(batch.sentences, batch.labels, strict=True))
    return replay_difference(observed.untrained, observed.as_sent, texts, observed.protocol) < REPLAYED_WHOLE
