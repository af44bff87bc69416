"""LSTM: classifies the state after the last word. No positions, no attention."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from gradleak.targets.families.words import WordClassifier, WordConfig, WordModel, make_loadable
from gradleak.targets.layout import register

FORGET_BIAS = 1.0  # an untrained network then keeps its state (Jozefowicz et al. 2015)


class LstmConfig(WordConfig):  # type: ignore[no-untyped-call]
    """Sizes of an LSTM classifier.

    Attributes:
        hidden_size: width of the state.
    """

    model_type = "lstm"

    hidden_size: int = 512


class LstmForSequenceClassification(WordModel):  # type: ignore[no-untyped-call]
    """One LSTM layer (Hochreiter and Schmidhuber 1997) and a classifier on its last state.

    It is unrolled by hand: second derivatives then exist on every device, `vmap` over examples works, and the matching
    engine sees the linear layers.
    """

    config_class = LstmConfig
    base_model_prefix = "lstm"

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.from_words = nn.Linear(config.embedding_size, 4 * config.hidden_size)
        self.from_state = nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False)
        self.add_classifier(config.hidden_size)

    def features(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return the state after the last word; padding is skipped."""
        hidden = cell = words.new_zeros(len(words), self.config.hidden_size)
        for word, is_word in zip(self.from_words(words).unbind(dim=1), mask.bool().unbind(dim=1), strict=True):
            let_in, keep, new, let_out = (word + self.from_state(hidden)).chunk(4, dim=-1)
            kept = torch.sigmoid(keep + FORGET_BIAS) * cell + torch.sigmoid(let_in) * torch.tanh(new)
            shown = torch.sigmoid(let_out) * torch.tanh(kept)
            cell, hidden = (torch.where(is_word[:, None], a, b) for a, b in ((kept, cell), (shown, hidden)))
        return hidden


@register
class Lstm(WordClassifier):
    """The LSTM classifier that FET's paper attacks."""

    name: ClassVar[str] = "lstm"
    model_types: ClassVar[tuple[str, ...]] = ("lstm",)


make_loadable(LstmConfig, LstmForSequenceClassification)
