"""Endless streams of sentences to train inverters on: auxiliary text (LTI), or pseudo-data (LTI-P).

Chunk n of a stream is always the same, which makes an interrupted training resumable.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from gradleak.errors import GradleakError
from gradleak.randomness import hashed_stream
from gradleak.targets import Target, Tokens


@dataclass(frozen=True)
class Shape:
    """The lengths of sentences, special tokens included.

    Attributes:
        tokens: the most tokens, which is also the number of positions of an inverter.
        shortest: the fewest; equal to `tokens` where text is cut into pieces of one length, as the paper does.
    """

    tokens: int
    shortest: int

    def check(self, target: Target) -> None:
        """Raise a GradleakError unless the target takes sentences of these lengths."""
        if not target.min_length <= self.shortest <= self.tokens <= target.max_length:
            raise GradleakError(
                f"{target.name} takes {target.min_length} to {target.max_length} tokens; an inverter for "
                f"{self.shortest} to {self.tokens} is not possible"
            )


class Stream(ABC):
    """An endless stream of tokenised sentences, padded to one width.

    Attributes:
        pseudo: whether the sentences are drawn from a distribution of tokens, not from text.
        description: where the sentences come from, for people.
        size: number of sentences in an epoch.
    """

    pseudo: bool
    description: str
    size: int

    @abstractmethod
    def draw(self, number: int, count: int) -> Tokens:
        """Return chunk `number` of the stream, of `count` sentences."""


class PseudoText(Stream):
    """Pseudo-data of LTI-P: every token is drawn independently from the marginal distribution (LTI, section 4.2).

    Args:
        target: the model.
        marginal: the share of each token `[vocabulary]`.
        shape: the lengths of sentences, drawn uniformly.
        seed: seed of the draws.
        size: number of sentences that count as an epoch.
    """

    pseudo = True

    def __init__(self, target: Target, marginal: Tensor, shape: Shape, *, seed: int = 0, size: int = 20_000) -> None:
        shape.check(target)
        self.size, self.description = size, "pseudo-data from the marginal token distribution"
        self._target, self._shape, self._seed = target, shape, seed
        self._marginal = marginal.to(target.device, torch.float32)

    def draw(self, number: int, count: int) -> Tokens:
        """Return chunk `number`, drawn on the target's device."""
        device, shape = self._target.device, self._shape
        stream = training_stream(device, self._seed, "pseudo", number)
        drawn = torch.multinomial(self._marginal, count * shape.tokens, replacement=True, generator=stream)
        lengths = torch.randint(shape.shortest, shape.tokens + 1, (count,), generator=stream, device=device)
        return framed(self._target, drawn.view(count, shape.tokens), lengths)


class AuxiliaryText(Stream):
    """Auxiliary text of LTI: sentences that the attacker has, shuffled anew in each epoch.

    Args:
        tokens: the sentences, as `cut_texts` returns them.
        seed: seed of the shuffles.
        description: where they come from.
    """

    pseudo = False

    def __init__(self, tokens: Tokens, *, seed: int = 0, description: str = "auxiliary text") -> None:
        self.size, self.description = len(tokens.ids), f"{description}, {len(tokens.ids):,} sentences"
        self._tokens, self._seed = tokens, seed
        self._order: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.long))

    def draw(self, number: int, count: int) -> Tokens:
        """Return chunk `number`, which may span the end of one epoch and the start of the next."""
        rows = torch.cat([self._rows(start, min(count, self.size)) for start in self._starts(number, count)])
        rows = rows[:count].to(self._tokens.ids.device)
        return Tokens(self._tokens.ids[rows], self._tokens.mask[rows])

    def _starts(self, number: int, count: int) -> range:
        """Return where the pieces of a chunk start, each at most one epoch long."""
        return range(number * count, (number + 1) * count, min(count, self.size))

    def _rows(self, position: int, count: int) -> Tensor:
        epoch, start = divmod(position, self.size)
        first = self._shuffled(epoch)[start : start + count]
        missing = count - len(first)
        return first if not missing else torch.cat([first, self._shuffled(epoch + 1)[:missing]])

    def _shuffled(self, epoch: int) -> Tensor:
        if self._order[0] != epoch:
            stream = training_stream(torch.device("cpu"), self._seed, "order", epoch)
            self._order = epoch, torch.randperm(self.size, generator=stream)
        return self._order[1]


def cut_texts(target: Target, texts: Sequence[str], shape: Shape) -> Tokens:
    """Tokenise texts into sentences of the given lengths.

    If all sentences have one length, the texts are joined and cut into pieces of it, as the paper does; otherwise each
    text is a sentence, truncated if it is too long, and dropped if it is too short.
    """
    shape.check(target)
    specials = sum(map(len, target.special_tokens))
    rows = target.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    inner = shape.tokens - specials
    if shape.shortest == shape.tokens:
        joined = torch.tensor(list(itertools.chain.from_iterable(rows)), dtype=torch.long)
        pieces = joined[: len(joined) // inner * inner].view(-1, inner)
        lengths = torch.full((len(pieces),), shape.tokens)
    else:
        kept = [torch.tensor(row[:inner]) for row in rows if len(row) + specials >= shape.shortest]
        pieces = pad_sequence(kept, batch_first=True) if kept else torch.empty(0, inner)
        lengths = torch.tensor([len(row) + specials for row in kept])
    if not len(pieces):
        raise GradleakError(f"the text is too short: there is no sentence of {shape.shortest} tokens in it")
    padded = functional.pad(pieces, (0, shape.tokens - pieces.shape[1]))
    return framed(target, padded.to(target.device), lengths.to(target.device))


def mixed(inside: Tokens, outside: Tokens, share: float, size: int, seed: int = 0) -> Tokens:
    """Return an auxiliary set of which a share β is in-distribution, the rest out of distribution (LTI, section 4.1.2).

    Args:
        inside: in-distribution sentences.
        outside: the others.
        share: β.
        size: number of sentences in the set.
        seed: seed of the choice.
    """
    wanted = round(share * size)
    if not 0 <= share <= 1 or size < 1:
        raise GradleakError(
            f"an auxiliary set needs a share between 0 and 1 and a size above 0, not {share} and {size}"
        )
    parts = []
    for tokens, count, kind in ((inside, wanted, "in"), (outside, size - wanted, "out of")):
        if count > len(tokens.ids):
            raise GradleakError(f"there are {len(tokens.ids)} sentences {kind} the distribution, not {count}")
        stream = training_stream(torch.device("cpu"), seed, "mixture", kind)
        rows = torch.randperm(len(tokens.ids), generator=stream)[:count].to(tokens.ids.device)
        parts.append(Tokens(tokens.ids[rows], tokens.mask[rows]))
    return Tokens(torch.cat([part.ids for part in parts]), torch.cat([part.mask for part in parts]))


def framed(target: Target, inner: Tensor, lengths: Tensor) -> Tokens:
    """Add special tokens around sentences, and padding after them.

    Args:
        target: the model.
        inner: tokens `[sentences, tokens]`, of which the first ones of each row are used.
        lengths: number of tokens of each sentence, special ones included `[sentences]`.
    """
    before, after = (torch.tensor(part, dtype=torch.long, device=inner.device) for part in target.special_tokens)
    positions = torch.arange(inner.shape[1], device=inner.device)
    ids = inner.roll(len(before), dims=1)
    ids[:, : len(before)] = before
    for number, special in enumerate(after):
        ids = torch.where(positions == (lengths - len(after) + number)[:, None], special, ids)
    mask = positions < lengths[:, None]
    return Tokens(ids.masked_fill(~mask, target.pad_id), mask)


def training_stream(device: torch.device, seed: int, *names: object) -> torch.Generator:
    """Return a generator for one purpose of a training: each seed and names give an independent one."""
    return hashed_stream(f"inversion {seed} {names}", device)
