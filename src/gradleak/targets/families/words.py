"""Base classes of the families without attention, TextCNN and LSTM: configuration, embedding, classifier, layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from gradleak.targets.layout import Family, Layer, Task


class WordConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes that TextCNN and LSTM have in common.

    Attributes:
        vocab_size: rows of the word embeddings.
        embedding_size: width of the word embeddings.
        dropout: rate before the classifier.
        initializer_range: standard deviation of fresh weights.
    """

    vocab_size: int = 30_522
    embedding_size: int = 300
    dropout: float = 0.5
    initializer_range: float = 0.1


class WordModel(PreTrainedModel, ABC):
    """Word embeddings and a linear classifier; a subclass implements the features in between."""

    def __init__(self, config: WordConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)

    def add_classifier(self, width: int) -> None:
        """Add the classifier of `width` features; call it after all other layers are built."""
        self.dropout = nn.Dropout(self.config.dropout)
        self.classifier = nn.Linear(width, self.config.num_labels or 2)
        self.post_init()  # type: ignore[no-untyped-call]

    @abstractmethod
    def features(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return the features `[sequences, features]`; they must not depend on padding, where the mask is zero."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return the logits of token ids or of word embeddings `[sequences, tokens, width]`."""
        words = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones(words.shape[:2], device=words.device) if attention_mask is None else attention_mask
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(self.features(words, mask))))


def make_loadable(config: type[WordConfig], model: type[WordModel]) -> None:
    """Register both classes with transformers under the configuration's `model_type`."""
    AutoConfig.register(config.model_type, config)
    AutoModelForSequenceClassification.register(config, model)


class WordClassifier(Family):
    """Layout of a model without attention and positions that ends in a linear layer."""

    word_embedding: ClassVar[str] = "words"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the linear layer at the end."""
        return "classifier"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return an empty list: there is no attention."""
        return []

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return the logits; the model takes the boolean mask itself."""
        return model(inputs_embeds=embeddings, attention_mask=mask).logits
