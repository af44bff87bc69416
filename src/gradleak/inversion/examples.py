"""Private batches and the gradients that clients would send for them, made on the fly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.inversion.streams import Stream, random_stream
from gradleak.matching import Candidates, candidate_gradients
from gradleak.targets import Target


@dataclass(frozen=True)
class Chunk:
    """Some examples: what their batches hold, and the gradient of each.

    Attributes:
        ids: token ids `[examples, sequences, tokens]`.
        mask: True where there is a token.
        gradients: by name `[examples, *shape]`.
    """

    ids: Tensor
    mask: Tensor
    gradients: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.ids)


class Examples:
    """Turns a stream of sentences into batches with their gradients.

    Args:
        target: the model.
        stream: where sentences come from.
        names: the parameters whose gradients are wanted.
        sequences: sentences in a batch.
        dropout: whether clients train with dropout.
        seed: seed of labels and dropout.
    """

    def __init__(
        self,
        target: Target,
        stream: Stream,
        names: Sequence[str],
        *,
        sequences: int = 1,
        dropout: bool = False,
        seed: int = 0,
    ) -> None:
        self.target, self.stream, self.names = target, stream, tuple(names)
        self.sequences, self.dropout, self.seed = sequences, dropout, seed

    def make(self, number: int, count: int) -> Chunk:
        """Return chunk `number`, of `count` examples; a classifier's labels are drawn evenly."""
        target = self.target
        tokens = self.stream.draw(number, count * self.sequences)
        ids, mask = (part.view(count, self.sequences, -1) for part in (tokens.ids, tokens.mask))
        labels = ids
        if target.task == "classification":
            stream = random_stream(target.device, self.seed, "labels", number)
            labels = torch.randint(target.num_labels, ids.shape[:2], generator=stream, device=target.device)
        with self._training(number):
            found = candidate_gradients(target, Candidates(ids[None], mask[None], labels[None]), self.names)
        return Chunk(ids, mask, {name: gradient[0] for name, gradient in found.items()})

    @contextmanager
    def _training(self, number: int) -> Iterator[None]:
        """Switch dropout on if the clients use it, with masks of the chunk's own; the global stream stays."""
        if not self.dropout:
            yield
            return
        device = self.target.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(random_stream(torch.device("cpu"), self.seed, "dropout", number).initial_seed())
            self.target.model.train()
            try:
                yield
            finally:
                self.target.model.eval()
