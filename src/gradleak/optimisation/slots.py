"""Slots: which places of a guess hold special tokens, which are free, and how embeddings become words again.

Used by every attack that fills places with words: the descent attacks, LTI, and the assignment of known tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.targets import Target

# Embeddings that are compared with the whole vocabulary at once.
PROJECTED_AT_ONCE = 4096


@dataclass(frozen=True)
class Slots:
    """The places of a guess `[victims V, starts, sequences B, tokens T]`.

    Attributes:
        ids: special tokens at their places, padding elsewhere `[V, starts, B, T]`.
        mask: True where there is a token.
        free: True where the token is unknown.
    """

    ids: Tensor
    mask: Tensor
    free: Tensor

    @classmethod
    def of(cls, target: Target, lengths: Sequence[Sequence[Sequence[int]]]) -> Slots:
        """Build slots from the lengths `[victims][starts][sequences]`, special tokens included."""
        before, after = (torch.tensor(part, dtype=torch.long) for part in target.special_tokens)
        longest = max(max(map(max, starts)) for starts in lengths)
        shape = (len(lengths), len(lengths[0]), len(lengths[0][0]), longest)
        ids = torch.full(shape, target.pad_id)
        mask = torch.zeros(shape, dtype=torch.bool)
        free = torch.zeros(shape, dtype=torch.bool)
        for v, starts in enumerate(lengths):
            for s, sequences in enumerate(starts):
                for b, length in enumerate(sequences):
                    mask[v, s, b, :length] = True
                    free[v, s, b, len(before) : length - len(after)] = True
                    ids[v, s, b, : len(before)] = before
                    ids[v, s, b, length - len(after) : length] = after
        return cls(ids.to(target.device), mask.to(target.device), free.to(target.device))

    def starts(self, chosen: Tensor) -> Slots:
        """Return the chosen starts `[victims, kept]` of each victim."""
        return Slots(*(pick_starts(tensor, chosen) for tensor in (self.ids, self.mask, self.free)))

    def rearranged(self, orders: Tensor) -> Slots:
        """Return the slots in another order `[V, starts, B, T]`; an order of −1 makes padding."""
        taken = orders.clamp(min=0)
        ids, mask, free = (tensor.gather(-1, taken) for tensor in (self.ids, self.mask, self.free))
        return Slots(ids, mask & (orders >= 0), free & (orders >= 0))

    def fill(self, target: Target, embeddings: Tensor) -> Tensor:
        """Return embeddings with those of special tokens and padding inserted at their places."""
        return torch.where(self.free[..., None], embeddings, target.embed(self.ids))

    def project(self, target: Target, embeddings: Tensor) -> Tensor:
        """Return token ids: at free places the word whose embedding has the largest cosine (LAMP, section 4.4)."""
        return self.nearest(target, embeddings, 1)[..., 0]

    def nearest(self, target: Target, embeddings: Tensor, count: int) -> Tensor:
        """Return the ids of the words nearest to each place `[V, starts, B, T, count]`, the nearest first."""
        ids = self.ids[..., None].repeat(*[1] * self.ids.ndim, count)
        ids[self.free] = nearest_words(target, embeddings[self.free], count)
        return ids


def nearest_words(target: Target, embeddings: Tensor, count: int) -> Tensor:
    """Return the ids of the words nearest by cosine to embeddings `[rows, width]` as `[rows, count]`.

    Special tokens and unused entries of the vocabulary are excluded, because no text is tokenised into them. (LAMP's
    published code allows them.)
    """
    table = target.word_directions
    impossible = impossible_words(target)

    def nearest(part: Tensor) -> Tensor:
        similarity = part @ table.T
        similarity[..., impossible] = -torch.inf
        return similarity.topk(count, dim=-1).indices

    return torch.cat([nearest(part) for part in torch.split(embeddings, PROJECTED_AT_ONCE)])


def impossible_words(target: Target) -> Tensor:
    """Return the ids that no text is tokenised into."""
    return torch.tensor(target.impossible_ids, dtype=torch.long, device=target.device)


def pick_starts(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen starts of each victim: `[V, starts, …]` and `[V, kept]` give `[V, kept, …]`."""
    victims = torch.arange(len(chosen), device=chosen.device)[:, None]
    return tensor[victims, chosen]


def trimmed(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return the token ids of a batch `[B, T]` without padding."""
    return [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
