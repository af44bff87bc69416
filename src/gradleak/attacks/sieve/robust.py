"""Reading an update that noise, pruning or sign compression has changed.

The row space of such a gradient is no longer exact: every singular value is there, and those of the text stand out
above the edge that noise alone would reach (Marchenko & Pastur 1967). Instead of asking whether x(t, p) lies in the row
space, this asks how much of what stands out the tokens of a sentence explain, in the inputs of several maps at once.
What is read so is then changed word by word as long as its own gradient comes closer to the update (`polish.py`). Where
there is noise, and what was read leaves more than noise, words are proposed in other ways (`matched.py`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.attacks.sieve.batches import Batch, read_batch, refined
from gradleak.attacks.sieve.completion import count_sentences
from gradleak.attacks.sieve.forward import captured_inputs
from gradleak.attacks.sieve.likelihood import noise_share
from gradleak.attacks.sieve.matched import read_matched
from gradleak.attacks.sieve.polish import polish
from gradleak.attacks.sieve.seen import Seen
from gradleak.attacks.sieve.spikes import Spikes, spikes
from gradleak.exchange import Knowledge
from gradleak.priors import Prior
from gradleak.targets import Projection, Target

LONGEST = 64
"""Sentences of more tokens are not looked for."""

LIKELIEST = 200
"""How many tokens of each position are looked at first."""

LENGTHS = 3
"""How many places of the end of a sentence are tried."""

NOISY, DROWNED = 0.003, 0.5
"""Shares of an update's squared norm that are noise: from the first on noise is what has changed it, from the second on
no word stands out of the first layer."""


class Judge:
    """How much of the spikes of several maps a sentence explains.

    Args:
        seen: the update.
    """

    def __init__(self, seen: Seen) -> None:
        self.target, self.inputs, self.words, self.common = seen.target, seen.inputs, seen.words, seen.common
        gradient = seen.gradient
        self.first = spikes([part.weight_in(gradient) for part in self.inputs.maps])
        self.later: dict[str, Spikes] = {}
        for parts in _later_maps(self.target):
            if all(part.weight in gradient for part in parts):
                found = spikes([part.weight_in(gradient) for part in parts])
                if found is not None:
                    self.later[parts[0].module] = found

    def alone(self, ids: Tensor) -> Tensor:
        """Return the share of the first maps' spikes `[sentences]` that sentences `[sentences, tokens]` explain."""
        assert self.first is not None
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.first.explained(self.inputs(ids, positions))

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the mean share that sentences explain, the first maps counting twice."""
        total = 2 * self.alone(ids)
        if self.later:
            fed = captured_inputs(self.target, ids, list(self.later))
            total = total + sum(found.explained(fed[path].double()) for path, found in self.later.items())
        return total / (2 + len(self.later))  # [sentences]

    def gains(self, tokens: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """Return how much of the first spikes tokens explain at positions beside given rows `[tokens, positions]`.

        All rows share a large part: what counts is what a token adds to it.
        """
        assert self.first is not None
        basis = torch.linalg.qr(rows.T)[0]
        factor = self.first.factor - (self.first.factor @ basis) @ basis.T
        own = 1.0 - self.inputs.captured(basis, tokens, places)
        return self.inputs.captured(factor.T, tokens, places) / own.clamp(min=1e-3)

    def fillers(self, sentence: Tensor, place: int, count: int) -> Tensor:
        """Return the tokens that explain most at one place beside all others of a sentence `[count]`."""
        places = torch.arange(len(sentence), device=sentence.device)
        others = places != place
        rows = self.inputs(sentence[others], places[others])
        gain = self.gains(self.words, places[place : place + 1], rows)[:, 0]
        return self.words[gain.topk(min(count, len(gain))).indices]

    def among(self, words: Tensor) -> Judge:
        """Return a judge of fewer words, which is quicker."""
        narrow = copy(self)
        narrow.words = words
        return narrow


def read_changed(seen: Seen, known: Knowledge, prior: Prior | None = None) -> Batch | None:
    """Read a changed update of one or several sentences; None if nothing stands out of it.

    How many there are is counted (`completion.py`) where it is not known.
    """
    target, inputs = seen.target, seen.inputs
    longest = min(known.longest or LONGEST, LONGEST, inputs.positions.shape[0])
    # Words are looked for by their embeddings, too, which have no gradient by word.
    gradient = {name: own for name, own in seen.gradient.items() if name not in target.word_parameters}
    seen = replace(seen, gradient=gradient, longest=longest)
    count = known.sequences or count_sentences(target, gradient, seen.deadline) or 1
    if count > 1 and _layered(seen):
        batch = read_batch(seen, count)
        if batch is not None:
            return batch
    length = known.lengths[0] if known.lengths is not None and len(known.lengths) == 1 else None
    noise = noise_share(seen) if count == 1 and target.task == "classification" else 0.0
    if noise > DROWNED:
        return read_matched(seen, None, prior, length)
    found = read_single(seen, length)
    if noise > NOISY and not seen.deadline.passed:
        return read_matched(seen, found, prior, length)
    return found


def read_single(seen: Seen, length: int | None) -> Batch | None:
    """Read one sentence by what stands out of the layers; None if nothing does."""
    found = read_noisy(seen, length)
    if found is None:
        return None
    sentence, distance = found
    better = None
    if _layered(seen) and not seen.deadline.passed:
        better = refined(seen, sentence, resize=length is None)
    return better or Batch([list(sentence)], [], distance)


def _layered(seen: Seen) -> bool:
    return len(seen.inputs.maps) > 1 and seen.target.task == "classification"


def read_noisy(seen: Seen, length: int | None) -> tuple[tuple[int, ...], float] | None:
    """Read one sentence from a changed update; return it and how far its gradient is from the update."""
    judge = Judge(seen)
    if judge.first is None:
        return None
    lengths = _lengths(judge, seen.longest) if length is None else [length]
    narrow = judge.among(_likeliest(judge, max(lengths)))
    starts = [_pursue(narrow, tokens) for tokens in lengths]
    sentence, distance = polish(seen, judge, starts, resize=length is None)
    return tuple(sentence.tolist()), distance


def _later_maps(target: Target) -> list[tuple[Projection, ...]]:
    """Return the maps that take what becomes of a sentence next, those together that take the same."""
    first, *others = target.layers
    maps: list[tuple[Projection, ...]] = [(first.attention_output,), (first.feed_forward_in,)]
    return maps + [(layer.query, layer.key, layer.value) for layer in others[:1]]


def _likeliest(judge: Judge, longest: int) -> Tensor:
    """Return the words that explain most at some position beside what all rows share, none twice."""
    places = torch.arange(longest, device=judge.words.device)
    gain = judge.gains(judge.words, places, judge.common)
    return judge.words[torch.unique(gain.topk(min(LIKELIEST, len(gain)), dim=0).indices)]


def _lengths(judge: Judge, longest: int) -> list[int]:
    """Return the likeliest numbers of tokens: where the end of a sentence explains most."""
    after, shortest = judge.target.special_tokens[1], judge.target.min_length
    if not after:
        return list(range(shortest, min(longest, shortest + 8 * LENGTHS)))
    places = torch.arange(shortest - 1, longest, device=judge.words.device)
    end = torch.tensor(after[-1:], device=places.device)
    order = judge.gains(end, places, judge.common)[0].argsort(descending=True)[:LENGTHS]
    return [int(place) + 1 for place in places[order]]


def _pursue(judge: Judge, length: int) -> Tensor:
    """Orthogonal matching pursuit, one token a position: take the token that explains most of what is left."""
    before, after = judge.target.special_tokens
    device = judge.words.device
    sentence = torch.full((length,), -1, device=device, dtype=torch.long)
    sentence[: len(before)] = torch.tensor(before, device=device, dtype=torch.long)
    if after:
        sentence[length - len(after) :] = torch.tensor(after, device=device, dtype=torch.long)
    places = torch.arange(length, device=device)
    while (sentence < 0).any():
        done = sentence >= 0
        rows = judge.inputs(sentence[done], places[done]) if done.any() else judge.common
        gain = judge.gains(judge.words, places[~done], rows)  # [words, open places]
        word, place = divmod(int(gain.argmax()), gain.shape[1])
        sentence[places[~done][place]] = judge.words[word]
    return sentence
