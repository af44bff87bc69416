"""Reading a changed update of several sentences, and reading one sentence better.

The words are found and sorted into sentences by the first layer (`sorting.py`), roughly. Then each sentence is changed
word by word as long as more of its contexts lies in what stands out of the first few layers (`layered.py`): at first
beside those found before it, so that none is found twice, then by itself. In the end the gradient of the whole batch
decides between the sentences that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.completion import Sent, completed
from gradleak.attacks.sieve.edits import inside, neighbours
from gradleak.attacks.sieve.labels import padded, read_labels
from gradleak.attacks.sieve.layered import LayeredTest, likeliest
from gradleak.attacks.sieve.seen import Seen
from gradleak.attacks.sieve.sorting import Found, affinities, grouped, pursue_words
from gradleak.attacks.sieve.spikes import spikes
from gradleak.exchange import Deadline
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.targets import Target

BREADTH = (300, 100, 8)
"""How many sentences of each length are left after one layer, how many of all after two, and in the end."""

COMPARED = (300, 100, 24)
"""The same where the gradient decides."""

MISSING = 48
"""How many words of the whole vocabulary are tried at each place: those that explain most of what is left."""

STEPS = 30
"""How often a sentence is changed at most."""

PATIENCE = 2
"""How many changes in a row may bring nothing where a sentence is nearly right: some words come and go together."""

ROUNDS = 4
"""How often all sentences are gone through at most."""

LEAST_GAIN = 1e-4


@dataclass
class Batch:
    """What was read of a batch, and how far its gradient is from the update; classes may be left to be read."""

    sentences: list[list[int]]
    labels: list[int]
    distance: float


def read_batch(seen: Seen, count: int) -> Batch | None:
    """Read so many sentences from a changed update; None if nothing stands out of it.

    Whoever listens is told how close they come: by what of a sentence's contexts does not stand out, and in the end by
    the distance of the gradients.
    """
    target, inputs, words = seen.target, seen.inputs, seen.words
    sent = Sent([part.weight_in(seen.gradient) for part in inputs.maps])
    basis = _signal(sent, seen.deadline)
    test = LayeredTest(target, inputs, seen.gradient)
    if basis is None or basis.shape[1] >= inputs.width or not test.depth:
        return None
    ends = torch.tensor(target.special_tokens[1][-1:], device=words.device, dtype=torch.long)
    found = pursue_words(inputs, basis, torch.cat([words, ends]), seen.common, seen.longest)
    if not found.sure:
        return None
    ways = affinities(target, inputs, sent, found)
    starts = [_sorted(target, found, alike, count, seen.longest) for alike in ways]
    start = max(starts, key=lambda sentences: float(_shares(test, sentences).mean()))
    search = _Search(seen, test, _Vocabulary(seen, basis, found.tokens))
    return _polished(
        Matcher(target, [seen.gradient], Cosine()).until(seen.deadline), search, search.settled(search.peeled(start))
    )


def refined(seen: Seen, sentence: Sequence[int], *, resize: bool = True) -> Batch | None:
    """Read an update of one sentence better than it was read; None if nothing stands out of it.

    Args:
        seen: the update.
        sentence: the sentence so far.
        resize: whether its length may change.
    """
    basis = _signal(Sent([part.weight_in(seen.gradient) for part in seen.inputs.maps]), seen.deadline)
    test = LayeredTest(seen.target, seen.inputs, seen.gradient)
    if basis is None or not test.depth:
        return None
    start = torch.tensor(sentence, device=seen.words.device)
    search = _Search(seen, test, _Vocabulary(seen, basis, start), resize=resize)
    return _polished(
        Matcher(seen.target, [seen.gradient], Cosine()).until(seen.deadline), search, search.settled([start])
    )


def _signal(sent: Sent, deadline: Deadline) -> Tensor | None:
    """Return the directions that the tokens span, orthonormal columns; None if nothing stands out.

    What stands out of a pruned gradient spans about as much as the tokens; of signs, about half as much.
    """
    found = spikes(sent.split(sent.values))
    if found is None:
        return None
    rank = min(len(found.factor) * (2 if sent.signs_only else 1), sent.values.shape[1])
    matrix = sent.values if sent.complete else completed(sent, rank, steps=100, deadline=deadline)
    scaled = torch.cat([part / part.norm().clamp(min=1e-12) for part in sent.split(matrix)])
    return torch.linalg.svd(scaled, full_matrices=False)[2][:rank].T


def _sorted(target: Target, found: Found, alike: Tensor, count: int, longest: int) -> list[Tensor]:
    """Return the sure words, sorted into sentences, in the order of their positions."""
    before, after = target.special_tokens
    room = longest - len(before) - len(after)
    sure = found.best()
    sentences = []
    for group in grouped(alike[: sure.sure, : sure.sure], count):
        inner = sorted((int(sure.positions[n]), int(sure.tokens[n])) for n in group)
        words = [token for _, token in inner if token not in after][:room]
        words = words or found.tokens[:1].tolist()  # no sentence is empty
        sentences.append(torch.tensor([*before, *words, *after], device=found.tokens.device))
    return sentences


def _shares(test: LayeredTest, sentences: Sequence[Tensor]) -> Tensor:
    return torch.cat([test(ids[None]) for ids in sentences])


class _Vocabulary:
    """The words that are tried at each place of a sentence: all that were found, and some that may have been missed."""

    def __init__(self, seen: Seen, basis: Tensor, found: Tensor) -> None:
        self._target, self._inputs, self._basis = seen.target, seen.inputs, basis
        self._words, self._common = seen.words, seen.common
        ends = torch.tensor(seen.target.special_tokens[1], device=found.device, dtype=torch.long)
        self._found = found[~torch.isin(found, ends)]
        self._places = torch.arange(seen.longest, device=found.device)

    def beside(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return words for all places `[places, words]`, given the sentences so far.

        A word may have been missed if its x explains much of what the rows of all sentences leave.
        """
        rows = [self._inputs(ids, self._places[: len(ids)]) for ids in sentences]
        shared = torch.linalg.qr(torch.cat([self._common, *rows]).T)[0]
        left = self._basis - shared @ (shared.T @ self._basis)
        places = self._places[: max(map(len, sentences)) + STEPS]
        own = (1.0 - self._inputs.captured(shared, self._words, places)).clamp(min=1e-3)
        gain = self._inputs.captured(left, self._words, places) / own
        missing = self._words[gain.topk(min(MISSING, len(gain)), dim=0).indices].T  # [places, words]
        there = [ids[list(inside(self._target, ids))] for ids in sentences]
        known = torch.unique(torch.cat([self._found, *there]))
        return torch.cat([known.expand(len(missing), -1), missing], dim=1)


class _Search:
    """Changes sentences one by one, as long as more of their contexts stands out of the update."""

    def __init__(self, seen: Seen, test: LayeredTest, vocabulary: _Vocabulary, *, resize: bool = True) -> None:
        self.seen, self.test, self._vocabulary, self._resize = seen, test, vocabulary, resize

    def peeled(self, sentences: Sequence[Tensor]) -> list[Tensor]:
        """Climb from each sentence, the surest first, beside those that were found before."""
        sentences = list(sentences)
        order = _shares(self.test, sentences).argsort(descending=True).tolist()
        for rank, number in enumerate(order):
            if self.seen.deadline.passed:
                break
            held = self.test.with_fixed_sequences(sentences[other] for other in order[:rank])
            sentences[number] = self._climbed(held, sentences, number)
        return sentences

    def settled(self, sentences: Sequence[Tensor]) -> list[Tensor]:
        """Climb from each sentence by itself: where it is nearly right, the others need not be held."""
        sentences = list(sentences)
        for number in range(len(sentences)):
            if self.seen.deadline.passed:
                break
            better = self._climbed(self.test, sentences, number, patience=PATIENCE)
            if not any(torch.equal(better, other) for other in sentences):
                sentences[number] = better
        return sentences

    def _climbed(self, test: LayeredTest, sentences: Sequence[Tensor], number: int, *, patience: int = 0) -> Tensor:
        """Change a sentence by the best change, to none that it has been before, until that brings nothing any more."""
        tokens = self._vocabulary.beside(sentences)
        best = sentence = sentences[number]
        most, idle = float(test(sentence[None])), 0
        seen = {tuple(sentence.tolist())}
        for _ in range(STEPS):
            self.seen.told([*sentences[:number], best, *sentences[number + 1 :]], 1 - most)
            tried, shares = likeliest(test, self._neighbours(sentence, tokens), BREADTH, self.seen.deadline)
            fresh = [n for n, ids in enumerate(tried) if tuple(ids.tolist()) not in seen]
            if not fresh:
                break
            sentence, share = tried[fresh[0]], float(shares[fresh[0]])
            seen.add(tuple(sentence.tolist()))
            idle = 0 if share > most + LEAST_GAIN else idle + 1
            if idle > patience:
                break
            if not idle:
                best, most = sentence, share
        return best

    def near(self, sentences: Sequence[Tensor], number: int) -> tuple[list[Tensor], Tensor]:
        """Return the sentences one change away from one that pass the test best, and their shares."""
        tokens = self._vocabulary.beside(sentences)
        return likeliest(self.test, self._neighbours(sentences[number], tokens), COMPARED, self.seen.deadline)

    def _neighbours(self, sentence: Tensor, tokens: Tensor) -> list[Tensor]:
        return neighbours(self.test.target, sentence, tokens, self.seen.longest, resize=self._resize)


def _polished(matcher: Matcher, search: _Search, sentences: Sequence[Tensor]) -> Batch:
    """Change sentence after sentence as long as the gradient of the whole batch comes closer to the update.

    Under dropout a word too many may bring it closer, too: the share of contexts that stands out counts as much as the
    part of the distance that is a sentence's own.
    """
    sentences, count = list(sentences), len(sentences)
    if search.seen.deadline.passed:
        return _in_haste(matcher, search.seen, [ids.tolist() for ids in sentences])
    batch = _labelled(matcher, [ids.tolist() for ids in sentences])
    shares = _shares(search.test, sentences).tolist()
    open_ones = set(range(count))
    for _ in range(ROUNDS):
        for number in sorted(open_ones):
            search.seen.told(sentences, batch.distance)
            tried, passed = search.near(sentences, number)
            if not tried:  # out of time
                return batch
            held = matcher.with_fixed_sequences(_candidates(matcher.target, [batch.sentences], [batch.labels]), number)
            labels = [[batch.labels[number]] for _ in tried]
            distances = held(_candidates(matcher.target, [[ids.tolist()] for ids in tried], labels))[0]
            losses = count * distances - passed
            best = int(losses.argmin())
            if float(losses[best]) > count * batch.distance - shares[number] - LEAST_GAIN:
                open_ones.remove(number)
                continue
            sentences[number], shares[number], batch.distance = tried[best], float(passed[best]), float(distances[best])
            batch.sentences[number] = tried[best].tolist()
    return batch


def _in_haste(matcher: Matcher, seen: Seen, sentences: list[list[int]]) -> Batch:
    """Return sentences with the classes that the classifier's gradient gives, where no time is left to compare more."""
    labels = read_labels(seen.target, seen.gradient, sentences) or [0] * len(sentences)
    return Batch(sentences, labels, float(matcher(_candidates(seen.target, [sentences], [labels]))))


def _labelled(matcher: Matcher, sentences: list[list[int]]) -> Batch:
    """Return sentences with the classes that come closest to the update, changed one by one: a wrong one turns much."""
    labels, least = [0] * len(sentences), float("inf")
    for number in [*range(len(sentences))] * 2:
        tried = [[*labels[:number], label, *labels[number + 1 :]] for label in range(matcher.target.num_labels)]
        distances = matcher(_candidates(matcher.target, [sentences] * len(tried), tried))[0]
        labels, least = tried[int(distances.argmin())], float(distances.min())
    return Batch(sentences, labels, least)


def _candidates(
    target: Target, batches: Sequence[Sequence[Sequence[int]]], labels: Sequence[Sequence[int]]
) -> Candidates:
    """Return guesses at one victim's batch, all of as many sentences."""
    ids, mask = padded(target, [ids for batch in batches for ids in batch])
    classes = torch.tensor([list(row) for row in labels], device=target.device)[None]
    return Candidates(ids.view(*classes.shape, -1), mask.view(*classes.shape, -1), classes)
