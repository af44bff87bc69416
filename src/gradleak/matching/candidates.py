"""`Candidates`: guesses at private batches, many for each of several victims; what a `Matcher` scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from gradleak.targets import Target


@dataclass(frozen=True)
class Candidates:
    """N guesses at the private batch of each of V victims; a guess is B sequences of at most T tokens.

    Attributes:
        inputs: token ids `[V, N, B, T]`, or word embeddings `[V, N, B, T, width]`.
        mask: True where there is a token `[V, N, B, T]`.
        labels: classes `[V, N, B]` or distributions over them `[V, N, B, classes]`; for a language model token ids
            `[V, N, B, T]` or distributions `[V, N, B, T, vocabulary]`.
        dropout: masks in [0, 1] by dropout site `[V, N, B, *shape of the site]`; empty for no dropout.
    """

    inputs: Tensor
    mask: Tensor
    labels: Tensor
    dropout: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of victims, of candidates of each victim, and of sequences of a candidate."""
        victims, candidates, sequences = self.mask.shape[:3]
        return victims, candidates, sequences

    @property
    def are_tokens(self) -> bool:
        """Whether the candidates are token ids."""
        return not self.inputs.is_floating_point()

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that require a gradient, by name."""
        named = {"inputs": self.inputs, "labels": self.labels} | {f"dropout.{k}": v for k, v in self.dropout.items()}
        return {name: tensor for name, tensor in named.items() if tensor.requires_grad}

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [self.inputs, self.mask, self.labels, *(self.dropout[site] for site in sorted(self.dropout))]

    def copy(self) -> Candidates:
        """Return a deep copy; its tensors require a gradient where these do."""
        return self._each(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))

    def detached(self) -> Candidates:
        """Return the same tensors detached from their graph; they require a gradient where these do."""
        return self._each(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))

    def select(self, victims: slice, candidates: slice) -> Candidates:
        """Return some candidates of some victims, as views."""
        return self._each(lambda tensor: tensor[victims, candidates])

    def select_sequences(self, index: Tensor) -> Candidates:
        """Return candidates made of the sequences of these indices."""
        return self._each(lambda tensor: tensor.index_select(2, index))

    def flat(self) -> Candidates:
        """Return all sequences as one batch `[V × N × B, …]`, as a model takes them."""
        return self._each(lambda tensor: tensor.flatten(0, 2))

    def embeddings(self, target: Target) -> Tensor:
        """Return the word embeddings of the inputs."""
        return target.embed(self.inputs) if self.are_tokens else self.inputs

    def _each(self, change: Callable[[Tensor], Tensor]) -> Candidates:
        return replace(
            self,
            inputs=change(self.inputs),
            mask=change(self.mask),
            labels=change(self.labels),
            dropout={site: change(mask) for site, mask in self.dropout.items()},
        )
