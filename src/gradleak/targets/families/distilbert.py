"""DistilBERT: half of BERT's layers, no token types, no pooler."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from gradleak.targets.layout import Family, Layer, Projection, Task, register


@register
class DistilBert(Family):
    """DistilBERT (Sanh et al. 2019)."""

    name: ClassVar[str] = "distilbert"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)
    word_embedding: ClassVar[str] = "distilbert.embeddings.word_embeddings"
    position_embedding: ClassVar[str | None] = "distilbert.embeddings.position_embeddings"
    embedding_norm: ClassVar[str | None] = "distilbert.embeddings.LayerNorm"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the second layer of the classification head."""
        return "classifier"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the encoder's layers."""
        count = len(model.get_submodule("distilbert.transformer.layer"))  # type: ignore[arg-type]
        return [self._layer(f"distilbert.transformer.layer.{index}") for index in range(count)]

    @staticmethod
    def _layer(prefix: str) -> Layer:
        return Layer(
            query=Projection(f"{prefix}.attention.q_lin"),
            key=Projection(f"{prefix}.attention.k_lin"),
            value=Projection(f"{prefix}.attention.v_lin"),
            attention_output=Projection(f"{prefix}.attention.out_lin"),
            feed_forward_in=Projection(f"{prefix}.ffn.lin1"),
            feed_forward_out=Projection(f"{prefix}.ffn.lin2"),
        )
