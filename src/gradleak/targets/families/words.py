"""What families share that classify words without attention: TextCNN and LSTM."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from gradleak.targets.layout import Family, Layer, Task


class WordClassifier(Family):
    """A model of our own that takes word embeddings and a mask, and ends in a linear layer; it knows no positions."""

    word_embedding: ClassVar[str] = "words"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """The linear layer at the end."""
        return "classifier"

    def layers(self, model: nn.Module) -> list[Layer]:
        """There is no attention."""
        return []

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return the logits; the mask is taken as it is."""
        return model(inputs_embeds=embeddings, attention_mask=mask).logits
