"""TextCNN: convolutions over words, max-pooling, a linear layer. No positions, no attention."""

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
        windows: window widths of the convolutions, in words.
        filters: number of filters of each width.
    """

    model_type = "textcnn"

    windows: Sequence[int] = (3, 4, 5)
    filters: int = 100


class TextCnnForSequenceClassification(WordModel):  # type: ignore[no-untyped-call]
    """TextCNN (Kim 2014).

    A convolution is written as a linear layer over windows of words, for which the matching engine has a rule.
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
        """Return every filter's largest response; padding counts as zeros."""
        words = words * mask[..., None].to(words.dtype)
        pooled = [
            self._max_pooled(convolution, words, mask, window)
            for convolution, window in zip(self.convolutions, self.config.windows, strict=True)
        ]
        return torch.cat(pooled, dim=-1)

    @staticmethod
    def _max_pooled(convolution: nn.Module, words: Tensor, mask: Tensor, window: int) -> Tensor:
        """Return each filter's largest response `[sequences, filters]` over all windows that contain a word.

        Texts are padded with zeros at both ends; even the shortest one fills a window.
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
    """The TextCNN that FET's paper attacks."""

    name: ClassVar[str] = "textcnn"
    model_types: ClassVar[tuple[str, ...]] = ("textcnn",)


make_loadable(TextCnnConfig, TextCnnForSequenceClassification)
