"""ALBERT: one layer applied repeatedly, after a narrow embedding that is projected up."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from gradleak.targets.layout import Family, Layer, Projection, Task, register


@register
class Albert(Family):
    """ALBERT (Lan et al. 2020)."""

    name: ClassVar[str] = "albert"
    model_types: ClassVar[tuple[str, ...]] = ("albert",)
    word_embedding: ClassVar[str] = "albert.embeddings.word_embeddings"
    position_embedding: ClassVar[str | None] = "albert.embeddings.position_embeddings"
    type_embedding: ClassVar[str | None] = "albert.embeddings.token_type_embeddings"
    embedding_norm: ClassVar[str | None] = "albert.embeddings.LayerNorm"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the linear layer on the pooled first token."""
        return "classifier"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the stored layers; each is called several times in a forward pass."""
        groups: Any = model.get_submodule("albert.encoder.albert_layer_groups")
        return [
            self._layer(f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}")
            for group, module in enumerate(groups)
            for inner in range(len(module.albert_layers))
        ]

    @staticmethod
    def _layer(prefix: str) -> Layer:
        return Layer(
            query=Projection(f"{prefix}.attention.query"),
            key=Projection(f"{prefix}.attention.key"),
            value=Projection(f"{prefix}.attention.value"),
            attention_output=Projection(f"{prefix}.attention.dense"),
            feed_forward_in=Projection(f"{prefix}.ffn"),
            feed_forward_out=Projection(f"{prefix}.ffn_output"),
        )
