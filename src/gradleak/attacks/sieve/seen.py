"""What there is to read a changed update from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradleak.attacks.sieve.inputs import Inputs
from gradleak.exchange import Deadline
from gradleak.targets import Target

Teller = Callable[[Sequence[Tensor], float], None]
"""Is told the sentences so far, and how close they come."""


@dataclass(frozen=True)
class Seen:
    """An update, and what its sentences may be made of.

    Attributes:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        words: the ids that may stand inside a text.
        longest: the most tokens of a sentence.
        tell: called before every step with the sentences so far and how close they come.
        deadline: when to end with the best so far.
    """

    target: Target
    inputs: Inputs
    gradient: Mapping[str, Tensor]
    words: Tensor
    longest: int
    tell: Teller | None = None
    deadline: Deadline = field(default_factory=Deadline)

    @cached_property
    def common(self) -> Tensor:
        """What nearly all rows share: the vocabulary's mean at a few positions, and the start of a sentence."""
        inputs, words = self.inputs, self.words
        some = words[:: max(1, len(words) // 2000)]
        places = torch.tensor([1, 6, 12], device=words.device).clamp(max=inputs.positions.shape[0] - 1)
        means = [inputs(some, place.expand(len(some))).mean(dim=0) for place in places]
        start = torch.tensor(self.target.special_tokens[0][:1], device=words.device, dtype=torch.long)
        return torch.cat([torch.stack(means), inputs(start, torch.zeros_like(start))])

    def told(self, sentences: Sequence[Tensor], distance: float) -> None:
        """Tell the sentences so far, if anyone listens."""
        if self.tell is not None:
            self.tell(sentences, distance)
