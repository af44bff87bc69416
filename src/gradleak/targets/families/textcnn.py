"""TextCNN: convolutions over words, the strongest answer of each filter, a linear layer. No positions, no attention."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from gradleak.targets.families.words import WordClassifier
from gradleak.targets.layout import register


class TextCnnConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes of a TextCNN; those of its paper by default.

    Args:
        vocab_size: rows of the word embeddings.
        embedding_size: their width.
        windows: how many words in a row the filters of each kind see.
        filters: how many filters of each kind there are.
        dropout: rate before the classifier.
        initializer_range: standard deviation of fresh weights.
        options: what every configuration takes, such as `num_labels`.
    """

    model_type = "textcnn"

    def __init__(
        self,
        vocab_size: int = 30_522,
        embedding_size: int = 300,
        windows: tuple[int, ...] = (3, 4, 5),
        filters: int = 100,
        dropout: float = 0.5,
        initializer_range: float = 0.1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.windows = list(windows)
        self.filters = filters
        self.dropout = dropout
        self.initializer_range = initializer_range
        super().__init__(**options)


class TextCnnForSequenceClassification(PreTrainedModel):
    """TextCNN (Kim 2014).

    A convolution is written as what it is, a linear layer over windows of words: the engine knows linear layers.
    """

    config_class = TextCnnConfig
    base_model_prefix = "textcnn"

    def __init__(self, config: TextCnnConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)
        self.convolutions = nn.ModuleList(
            nn.Linear(window * config.embedding_size, config.filters) for window in config.windows
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(len(config.windows) * config.filters, config.num_labels or 2)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return the logits of token ids or of word embeddings `[sequences, tokens, width]`."""
        words = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones(words.shape[:2], device=words.device) if attention_mask is None else attention_mask
        words = words * mask[..., None].to(words.dtype)
        pooled = [
            self._strongest(convolution, words, mask, window)
            for convolution, window in zip(self.convolutions, self.config.windows, strict=True)
        ]
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(torch.cat(pooled, dim=-1))))

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


AutoConfig.register(TextCnnConfig.model_type, TextCnnConfig)
AutoModelForSequenceClassification.register(TextCnnConfig, TextCnnForSequenceClassification)
