"""Reading a changed update of several sentences.

The words are found and sorted into sentences by the first layer (`sorting.py`). The gradient of the whole batch then
decides: sentence by sentence, words are put in, taken out, exchanged and swapped as long as it comes closer to the
update. The other sentences are held fixed meanwhile, so that a change costs one sentence, not a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.completion import Sent, completed
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.labels import padded
from gradleak.attacks.sieve.polish import Teller
from gradleak.attacks.sieve.sorting import Found, affinities, grouped, pursue_words
from gradleak.attacks.sieve.spikes import spikes
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.targets import Target


@dataclass(frozen=True)
class Breadth:
    """How much is tried.

    Attributes:
        rounds: how often all sentences are gone through at most.
        related: the share of all words that are tried in a sentence: those that are most like its own.
        near: at how many places of a sentence a word is tried: those where its x explains most.
    """

    rounds: int
    related: float
    near: int


STAGES = (Breadth(rounds=6, related=0.5, near=2), Breadth(rounds=2, related=1.0, near=3))
"""What is tried first, and what when nothing of it helps any more."""

REACH = 3
"""Words so far apart are swapped."""

TOGETHER = 6
"""How many changes of a sentence are made at once, at most."""

AT_ONCE = 32
LEAST_GAIN = 1e-6
PER_REPEAT = 0.004
"""What a repeated word must bring a batch of one sentence: dropout makes some look useful that are not there."""

Ids = list[int]


@dataclass(frozen=True, order=True)
class Edit:
    """One change of a sentence: at a place put a word in (`gap`), take one out (no token), exchange or swap it."""

    place: int
    gap: bool = False
    token: int | None = None
    swapped_with: int | None = None

    def apply(self, sentence: Ids) -> Ids:
        """Return the sentence changed."""
        changed = list(sentence)
        if self.swapped_with is not None:
            changed[self.place], changed[self.swapped_with] = changed[self.swapped_with], changed[self.place]
        elif self.gap:
            changed[self.place : self.place] = [] if self.token is None else [self.token]
        else:
            changed[self.place : self.place + 1] = [] if self.token is None else [self.token]
        return changed


@dataclass
class Batch:
    """What was read of a batch, and how far its gradient is from the update; classes may be left to be read."""

    sentences: list[Ids]
    labels: list[int]
    distance: float


def read_batch(
    target: Target,
    inputs: Inputs,
    gradient: Mapping[str, Tensor],
    words: Tensor,
    common: Tensor,
    longest: int,
    count: int,
    tell: Teller | None = None,
) -> Batch | None:
    """Read so many sentences from a changed update; None if nothing stands out of it.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        words: the ids that may stand inside a text.
        common: rows that all texts share.
        longest: the most tokens of a sentence.
        count: how many sentences there are.
        tell: called with the sentences and how close they come, before every step.
    """
    sent = Sent([part.weight_in(gradient) for part in inputs.maps])
    basis = _signal(sent)
    if basis is None or basis.shape[1] >= inputs.width:
        return None
    ends = torch.tensor(target.special_tokens[1][-1:], device=words.device, dtype=torch.long)
    found = pursue_words(inputs, basis, torch.cat([words, ends]), common, longest)
    if not found.sure:
        return None
    ways = affinities(target, inputs, sent, found)
    matcher = Matcher(target, [gradient], Cosine())
    sorting = _Sorting(target, inputs, found, ways[0], basis, common, longest)
    starts = [_labelled(matcher, sorting.sentences(alike, count), [0] * count) for alike in ways]
    batch = min(starts, key=lambda start: start.distance)
    batch = _labelled(matcher, batch.sentences, batch.labels)
    return _polished(matcher, sorting, batch, tell)


def _signal(sent: Sent) -> Tensor | None:
    """Return the directions that the tokens span, orthonormal columns; None if nothing stands out.

    What stands out of a pruned gradient spans about as much as the tokens; of signs, about half as much.
    """
    found = spikes(sent.split(sent.values))
    if found is None:
        return None
    rank = min(len(found.factor) * (2 if sent.signs_only else 1), sent.values.shape[1])
    matrix = sent.values if sent.complete else completed(sent, rank, steps=100)
    scaled = torch.cat([part / part.norm().clamp(min=1e-12) for part in sent.split(matrix)])
    return torch.linalg.svd(scaled, full_matrices=False)[2][:rank].T


class _Sorting:
    """The words of a batch, which of them suit a sentence, and where in it."""

    def __init__(
        self, target: Target, inputs: Inputs, found: Found, alike: Tensor, basis: Tensor, common: Tensor, longest: int
    ) -> None:
        self.target, self.found, self.alike, self.longest = target, found, alike, longest
        inside = ~torch.isin(found.tokens, torch.tensor(target.special_tokens[1], device=found.tokens.device))
        self.words = torch.unique(found.tokens[inside])
        shared = torch.linalg.qr(common.T)[0]
        places = torch.arange(longest, device=basis.device)
        own = (1.0 - inputs.captured(shared, self.words, places)).clamp(min=1e-3)
        self.fit = inputs.captured(basis - shared @ (shared.T @ basis), self.words, places) / own  # [words, places]
        self._same = (self.words[:, None] == found.tokens).to(alike)  # [words, found]

    def sentences(self, alike: Tensor, count: int) -> list[Ids]:
        """Return the sure words, sorted into sentences, in the order of their positions."""
        before, after = self.target.special_tokens
        sure = self.found.best()
        sentences = []
        for group in grouped(alike[: sure.sure, : sure.sure], count):
            inner = sorted((int(sure.positions[n]), int(sure.tokens[n])) for n in group)
            inner = [(place, token) for place, token in inner if token not in after][: self._room]
            words = [token for _, token in inner] or self.words[:1].tolist()  # no sentence is empty
            sentences.append([*before, *words, *after])
        return sentences

    @property
    def _room(self) -> int:
        before, after = self.target.special_tokens
        return self.longest - len(before) - len(after)

    def edits(self, sentence: Ids, breadth: Breadth) -> list[Edit]:
        """Return the changes of a sentence that are worth trying."""
        before, after = self.target.special_tokens
        inside = range(len(before), len(sentence) - len(after))
        edits = [Edit(place) for place in inside] if len(sentence) > self.target.min_length else []
        if len(sentence) < self.longest:
            edits += self._tokens(sentence, range(inside.start, inside.stop + 1), breadth, gap=True)
        edits += self._tokens(sentence, inside, breadth, gap=False)
        edits += [Edit(a, swapped_with=b) for a in inside for b in inside if a < b <= a + REACH]
        return edits

    def _tokens(self, sentence: Ids, places: range, breadth: Breadth, *, gap: bool) -> list[Edit]:
        if not places:
            return []
        suited = self._suited(sentence, breadth.related)
        nearest = self.fit[suited][:, list(places)].topk(min(breadth.near, len(places)), dim=1).indices + places.start
        return [
            Edit(place, gap, token)
            for token, row in zip(self.words[suited].tolist(), nearest.tolist(), strict=True)
            for place in row
            if gap or sentence[place] != token
        ]

    def _suited(self, sentence: Ids, share: float) -> Tensor:
        """Return the words that are most like those of a sentence, by number; its own are."""
        there = torch.isin(self.found.tokens, torch.tensor(sentence, device=self.found.tokens.device)).to(self.alike)
        likeness = self.alike @ there - self.alike.diagonal() * there
        highest = (self._same * likeness).masked_fill(self._same == 0, -torch.inf).amax(dim=1)
        return highest.topk(max(1, round(share * len(self.words)))).indices


def _labelled(matcher: Matcher, sentences: list[Ids], labels: list[int]) -> Batch:
    """Return sentences with the classes that come closest to the update, changed one by one: a wrong one turns much."""
    least = float("inf")
    for number in range(len(sentences)):
        tried = [[*labels[:number], label, *labels[number + 1 :]] for label in range(matcher.target.num_labels)]
        distances = matcher(_candidates(matcher.target, [sentences] * len(tried), tried))[0]
        labels, least = tried[int(distances.argmin())], float(distances.min())
    return Batch(sentences, labels, least)


def _polished(matcher: Matcher, sorting: _Sorting, batch: Batch, tell: Teller | None) -> Batch:
    """Change sentence after sentence as long as the batch comes closer to the update."""
    for breadth in STAGES:
        open_ones = set(range(len(batch.sentences)))
        for _ in range(breadth.rounds):
            for number in sorted(open_ones):
                if tell is not None:
                    tell([torch.tensor(ids) for ids in batch.sentences], batch.distance)
                edits = sorting.edits(batch.sentences[number], breadth)
                better, distance = _step(matcher, edits, batch, number, sorting.longest)
                if better == batch.sentences[number]:
                    open_ones.remove(number)
                batch.sentences[number], batch.distance = better, distance
    return batch


def _step(matcher: Matcher, edits: Sequence[Edit], batch: Batch, number: int, longest: int) -> tuple[Ids, float]:
    """Return the best that changes of one sentence come to, one alone or several together."""
    sentence = batch.sentences[number]
    held = matcher.holding(_candidates(matcher.target, [batch.sentences], [batch.labels]), number)
    tried = [edit.apply(sentence) for edit in edits]
    losses = _losses(held, tried, batch, number)
    best_so_far = batch.distance + _price(sentence, len(batch.sentences))
    useful = [n for n in losses.argsort().tolist() if losses[n] < best_so_far - LEAST_GAIN]
    if not useful:
        return sentence, batch.distance
    together = _combined(sentence, [edits[n] for n in useful], longest)
    tried = [tried[useful[0]], *together]
    losses = torch.cat([losses[useful[:1]], _losses(held, together, batch, number)])
    best = int(losses.argmin())
    return tried[best], float(losses[best]) - _price(tried[best], len(batch.sentences))


def _price(sentence: Ids, count: int) -> float:
    """Return what the repeated words of a sentence cost, so that none is there for nothing."""
    return PER_REPEAT * (len(sentence) - len(set(sentence))) / count


def _combined(sentence: Ids, edits: Sequence[Edit], longest: int) -> list[Ids]:
    """Return what the best two, three, … changes make together that do not touch each other's places."""
    chosen: list[Edit] = []
    results = []
    for edit in edits:
        apart = all(abs(edit.place - other.place) > 1 and (edit.token != other.token) for other in chosen)
        if edit.swapped_with is not None or (chosen and not apart):
            continue
        chosen.append(edit)
        if len(chosen) > 1:
            changed = sentence
            for each in sorted(chosen, key=lambda one: -one.place):  # from the end, so that places stay as they are
                changed = each.apply(changed)
            results.append(changed)
        if len(chosen) > TOGETHER:
            break
    return [ids for ids in results if len(ids) <= longest]


def _losses(held: Matcher, sentences: Sequence[Ids], batch: Batch, number: int) -> Tensor:
    """Return the distance of a batch with one sentence replaced by others, those of one length together, with price."""
    losses = torch.tensor([_price(ids, len(batch.sentences)) for ids in sentences], dtype=torch.float64)
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    for first in range(0, len(order), AT_ONCE):
        part = order[first : first + AT_ONCE]
        candidates = _candidates(held.target, [[sentences[n]] for n in part], [[batch.labels[number]] for _ in part])
        losses[part] += held(candidates)[0].cpu()
    return losses


def _candidates(target: Target, batches: Sequence[Sequence[Ids]], labels: Sequence[Sequence[int]]) -> Candidates:
    """Return guesses at one victim's batch, all of as many sentences."""
    ids, mask = padded(target, [ids for batch in batches for ids in batch])
    classes = torch.tensor([list(row) for row in labels], device=target.device)[None]
    return Candidates(ids.view(*classes.shape, -1), mask.view(*classes.shape, -1), classes)
