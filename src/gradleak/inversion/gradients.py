"""Private batches, and the gradients that clients would send for them: the examples that inverters are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.inversion.streams import Stream, training_stream
from gradleak.matching import Candidates, candidate_gradients
from gradleak.targets import Target


@dataclass(frozen=True)
class Chunk:
    """Some examples: private batches, and the gradient of each.

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


class GradientSource:
    """Computes the gradients of batches of sentences that a stream yields, on the fly.

    Args:
        target: the model.
        stream: yields the sentences.
        names: the parameters whose gradients are computed.
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
        """Return chunk `number`, of `count` examples, the same each time; a classifier's labels are uniform."""
        target = self.target
        tokens = self.stream.draw(number, count * self.sequences)
        ids, mask = (part.view(count, self.sequences, -1) for part in (tokens.ids, tokens.mask))
        labels = ids
        if target.task == "classification":
            stream = training_stream(target.device, self.seed, "labels", number)
            labels = torch.randint(target.num_labels, ids.shape[:2], generator=stream, device=target.device)
        with self._dropout(number):
            found = candidate_gradients(target, Candidates(ids[None], mask[None], labels[None]), self.names)
        return Chunk(ids, mask, {name: gradient[0] for name, gradient in found.items()})

    @contextmanager
    def _dropout(self, number: int) -> Iterator[None]:
        """Enable dropout if the clients use it, with masks seeded by the chunk; the global random state is restored."""
        if not self.dropout:
            yield
            return
        device = self.target.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(training_stream(torch.device("cpu"), self.seed, "dropout", number).initial_seed())
            self.target.model.train()
            try:
                yield
            finally:
                self.target.model.eval()
