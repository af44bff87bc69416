"""TextCNN: convolutions over words, the strongest answer of each filter, a linear layer. No positions, no attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradleak.targets.families.words import WordClassifier, WordConfig, WordModel, make_loadable
from gradleak.targets.layout import register


class TextCnnConfig(WordConfig):  # type: ignore[no-untyped-call]
    """Sizes of a TextCNN; those of its paper by default.

    Attributes:
        windows: how many words in a row the filters of each kind see.
        filters: how many filters of each kind there are.
    """

    model_type = "textcnn"

    windows: Sequence[int] = (3, 4, 5)
    filters: int = 100


class TextCnnForSequenceClassification(WordModel):  # type: ignore[no-untyped-call]
    """TextCNN (Kim 2014).

    A convolution is written as what it is, a linear layer over windows of words: the engine knows linear layers.
    """

    config_class = TextCnnConfig
    base_model_prefix = "textcnn"

    def __init__(self, config: TextCnnConfig) -> None:
        super().__init__(config)
        self.convolutions = nn.ModuleList(
            nn.Linear(window * config.embedding_size, config.filters) for window in config.windows
        )
        self.add_classifier(len(config.windows) * config.filters)

    def features(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return all filters' largest answers; padding counts as zeros."""
        words = words * mask[..., None].to(words.dtype)
        pooled = [
            self._strongest(convolution, words, mask, window)
            for convolution, window in zip(self.convolutions, self.config.windows, strict=True)
        ]
        return torch.cat(pooled, dim=-1)

    @staticmethod
    def _strongest(convolution: nn.Module, words: Tensor, mask: Tensor, window: int) -> Tensor:
        """Return each filter's largest answer `[sequences, filters]` over all windows that hold a word.

        Windows reach over both ends, where they see zeros, so that the shortest text fills one.
        """
        padded = functional.pad(words, (0, 0, window - 1, window - 1))
        count = padded.shape[1] - window + 1
        seen = torch.cat(
            [padded[:, i : i + count] for i in range(window)], dim=2
        )  # [sequences, windows, window × width]
        holds_word = functional.pad(mask.to(words.dtype), (window - 1, window - 1)).unfold(1, window, 1).amax(dim=2)
        return (convolution(seen).relu() * holds_word[..., None]).amax(dim=1)


@register
class TextCnn(WordClassifier):
    """TextCNN, of which FET's paper attacks one."""

    name: ClassVar[str] = "textcnn"
    model_types: ClassVar[tuple[str, ...]] = ("textcnn",)


make_loadable(TextCnnConfig, TextCnnForSequenceClassification)
