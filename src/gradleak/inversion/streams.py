"""Endless streams of sentences to learn from: auxiliary text (LTI), or pseudo-data (LTI-P).

A stream asked for its chunk number n always answers the same: training that was interrupted goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from gradleak.errors import GradleakError
from gradleak.targets import Target, Tokens


@dataclass(frozen=True)
class Shape:
    """How long sentences are, special tokens included.

    Attributes:
        tokens: the most tokens, and the places that an inverter has.
        shortest: the fewest; equal to `tokens` where text is cut into pieces of one length, as the paper does.
    """

    tokens: int
    shortest: int

    def check(self, target: Target) -> None:
        """Raise a GradleakError unless the target takes such sentences."""
        if not target.min_length <= self.shortest <= self.tokens <= target.max_length:
            raise GradleakError(
                f"{target.name} takes {target.min_length} to {target.max_length} tokens; an inverter for "
                f"{self.shortest} to {self.tokens} is not possible"
            )


class Stream(ABC):
    """Sentences of a target, padded to one width.

    Attributes:
        pseudo: whether no text is behind it but a distribution of tokens.
        words: what it is, in words.
        size: how many sentences make an epoch.
    """

    pseudo: bool
    words: str
    size: int

    @abstractmethod
    def draw(self, number: int, count: int) -> Tokens:
        """Return chunk `number` of the stream, of `count` sentences."""


class PseudoText(Stream):
    """LTI-P: every token is drawn by itself from the marginal distribution (LTI, section 4.2).

    Args:
        target: the model.
        marginal: the share of each token `[vocabulary]`.
        shape: how long sentences are; lengths are drawn evenly.
        seed: seed of the draws.
        size: how many sentences count as an epoch.
    """

    pseudo = True

    def __init__(self, target: Target, marginal: Tensor, shape: Shape, *, seed: int = 0, size: int = 20_000) -> None:
        shape.check(target)
        self.size, self.words = size, "pseudo-data from the marginal token distribution"
        self._target, self._shape, self._seed = target, shape, seed
        self._marginal = marginal.to(target.device, torch.float32)

    def draw(self, number: int, count: int) -> Tokens:
        """Draw on the target's device."""
        device, shape = self._target.device, self._shape
        stream = random_stream(device, self._seed, "pseudo", number)
        drawn = torch.multinomial(self._marginal, count * shape.tokens, replacement=True, generator=stream)
        lengths = torch.randint(shape.shortest, shape.tokens + 1, (count,), generator=stream, device=device)
        return framed(self._target, drawn.view(count, shape.tokens), lengths)


class AuxiliaryText(Stream):
    """LTI: text that the attacker has, in a new order in each epoch.

    Args:
        tokens: the sentences, as `cut_texts` gives them.
        seed: seed of the orders.
        words: where they come from.
    """

    pseudo = False

    def __init__(self, tokens: Tokens, *, seed: int = 0, words: str = "auxiliary text") -> None:
        self.size, self.words = len(tokens.ids), f"{words}, {len(tokens.ids):,} sentences"
        self._tokens, self._seed = tokens, seed
        self._order: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.long))

    def draw(self, number: int, count: int) -> Tokens:
        """Read on; a chunk may end one epoch and begin the next."""
        rows = torch.cat([self._rows(place, min(count, self.size)) for place in self._places(number, count)])
        rows = rows[:count].to(self._tokens.ids.device)
        return Tokens(self._tokens.ids[rows], self._tokens.mask[rows])

    def _places(self, number: int, count: int) -> range:
        return range(number * count, (number + 1) * count, min(count, self.size))

    def _rows(self, place: int, count: int) -> Tensor:
        epoch, start = divmod(place, self.size)
        first = self._shuffled(epoch)[start : start + count]
        missing = count - len(first)
        return first if not missing else torch.cat([first, self._shuffled(epoch + 1)[:missing]])

    def _shuffled(self, epoch: int) -> Tensor:
        if self._order[0] != epoch:
            stream = random_stream(torch.device("cpu"), self._seed, "order", epoch)
            self._order = epoch, torch.randperm(self.size, generator=stream)
        return self._order[1]


def cut_texts(target: Target, texts: Sequence[str], shape: Shape) -> Tokens:
    """Return texts as sentences of a shape.

    Where all sentences have one length, the texts are joined and cut into pieces of it, as the paper does; otherwise
    each text is a sentence, cut off where it is too long, and left out where it is too short.
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
    """Return an auxiliary set of which a share β is in-distribution, and the rest out of it (LTI, section 4.1.2).

    Args:
        inside: sentences like the private ones.
        outside: others.
        share: β.
        size: of the set.
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
        stream = random_stream(torch.device("cpu"), seed, "mixture", kind)
        rows = torch.randperm(len(tokens.ids), generator=stream)[:count].to(tokens.ids.device)
        parts.append(Tokens(tokens.ids[rows], tokens.mask[rows]))
    return Tokens(torch.cat([part.ids for part in parts]), torch.cat([part.mask for part in parts]))


def framed(target: Target, inner: Tensor, lengths: Tensor) -> Tokens:
    """Put special tokens around sentences and padding behind them.

    Args:
        target: the model.
        inner: tokens, the first ones of each row used `[sentences, tokens]`.
        lengths: tokens of each sentence, special ones included `[sentences]`.
    """
    before, after = (torch.tensor(part, dtype=torch.long, device=inner.device) for part in target.special_tokens)
    places = torch.arange(inner.shape[1], device=inner.device)
    ids = inner.roll(len(before), dims=1)
    ids[:, : len(before)] = before
    for number, special in enumerate(after):
        ids = torch.where(places == (lengths - len(after) + number)[:, None], special, ids)
    mask = places < lengths[:, None]
    return Tokens(ids.masked_fill(~mask, target.tokenizer.pad_token_id), mask)


def random_stream(device: torch.device, seed: int, *names: object) -> torch.Generator:
    """Return a random stream of its own for each seed and name."""
    digest = hashlib.sha256(f"inversion {seed} {names}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
