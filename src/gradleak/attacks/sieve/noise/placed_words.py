"""Which word stands where: the sums of word and position embeddings nearest to fitted vectors.

A model without causal masks knows the order of its tokens from the position embeddings alone. The input of a slot is
e + P_slot, so e = E_t + P_q − P_slot makes any slot hold token t at position q: exchanging slots changes nothing. A fit
of embeddings in arbitrary slots therefore finds words *and* positions, provided that both are read off the sum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.targets import Target


class PlacedToken(NamedTuple):
    """The token and position that a vector is nearest to.

    Attributes:
        cosine: of the angle between them.
        token: the token.
        position: its position in the text.
    """

    cosine: float
    token: int
    position: int


class PlacedWords:
    """The vectors of all tokens at all positions; cosines do not depend on their lengths, nor does the LayerNorm.

    Args:
        target: the model.
        inputs: the tables of words and positions.
        tokens: the ids that may occur.
        positions: the number of positions that are considered.
    """

    def __init__(self, target: Target, inputs: LayerInputs, tokens: Tensor, positions: int) -> None:
        self._tokens, self._inputs = tokens, inputs
        self._words, self._places = inputs.words[tokens], inputs.positions[:positions]
        squares = self._words.square().sum(dim=1)[:, None] + self._places.square().sum(dim=1)
        self._lengths = (squares + 2 * self._words @ self._places.T).clamp(min=0).sqrt()  # [tokens, positions]
        word = int(tokens[0])
        self._beside_word = inputs.words[word] - target.word_embeddings[word]  # what is added to every word
        causal = "causal-lm" in target.family.tasks
        self.any_order = not causal and target.family.relative_scores(target.model, 1) is None

    def embedding(self, token: int, position: int, slot: int) -> Tensor:
        """Return the word embedding that makes a slot hold a token at a position `[width]`, up to what a norm ignores.

        Args:
            token: the token.
            position: its position.
            slot: where the embedding stands.
        """
        moved = self._inputs.positions[position] - self._inputs.positions[slot]
        return self._inputs.words[token] - self._beside_word + moved

    def by_position(self, embedding: Tensor, slot: int) -> tuple[Tensor, Tensor]:
        """Return the cosine and the token nearest to an embedding `[width]` in a slot, for each position `[positions]`.

        Args:
            embedding: the word embedding.
            slot: where it stands.
        """
        vector = embedding + self._beside_word + self._inputs.positions[slot]
        vector = torch.nn.functional.normalize(vector - vector.mean(), dim=0)
        cosines, rows = (((self._words @ vector)[:, None] + self._places @ vector) / self._lengths).max(dim=0)
        if not self.any_order:
            cosines[torch.arange(len(cosines), device=cosines.device) != slot] = -1.0
        return cosines, self._tokens[rows]

    def nearest(self, embedding: Tensor, slot: int, taken: Collection[int] = ()) -> PlacedToken:
        """Return the token and position nearest to an embedding `[width]` in a slot, other than the first position.

        Args:
            embedding: the word embedding.
            slot: where it stands.
            taken: positions that are out of the question.
        """
        cosines, tokens = self.by_position(embedding, slot)
        cosines[[0, *(place for place in taken if place < len(cosines))]] = -1.0
        best = int(cosines.argmax())
        return PlacedToken(float(cosines[best]), int(tokens[best]), best)
