"""RoBERTa: BERT's layers, positions counted from the padding index, a two-layer head."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from gradleak.targets.families.bert import bert_layer
from gradleak.targets.layout import Family, Layer, Task, register


@register
class Roberta(Family):
    """RoBERTa (Liu et al. 2019)."""

    name: ClassVar[str] = "roberta"
    model_types: ClassVar[tuple[str, ...]] = ("roberta",)
    word_embedding: ClassVar[str] = "roberta.embeddings.word_embeddings"
    position_embedding: ClassVar[str | None] = "roberta.embeddings.position_embeddings"
    type_embedding: ClassVar[str | None] = "roberta.embeddings.token_type_embeddings"
    embedding_norm: ClassVar[str | None] = "roberta.embeddings.LayerNorm"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the second layer of the classification head."""
        return "classifier.out_proj"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the encoder's layers."""
        count = len(model.get_submodule("roberta.encoder.layer"))  # type: ignore[arg-type]
        return [bert_layer(f"roberta.encoder.layer.{index}") for index in range(count)]

    def position_offset(self, config: Any) -> int:  # noqa: ANN401
        """Return the index after the padding index, where positions begin."""
        return int(config.pad_token_id) + 1
