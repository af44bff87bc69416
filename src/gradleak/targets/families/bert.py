"""BERT and everything that shares its architecture: MiniLM, TinyBERT, the embedded `tiny`."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from gradleak.targets.layout import Family, Layer, Projection, Task, register


def bert_layer(prefix: str) -> Layer:
    """Return the maps of one BERT layer; RoBERTa uses the same names."""
    return Layer(
        query=Projection(f"{prefix}.attention.self.query"),
        key=Projection(f"{prefix}.attention.self.key"),
        value=Projection(f"{prefix}.attention.self.value"),
        attention_output=Projection(f"{prefix}.attention.output.dense"),
        feed_forward_in=Projection(f"{prefix}.intermediate.dense"),
        feed_forward_out=Projection(f"{prefix}.output.dense"),
    )


@register
class Bert(Family):
    """BERT (Devlin et al. 2019)."""

    name: ClassVar[str] = "bert"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    word_embedding: ClassVar[str] = "bert.embeddings.word_embeddings"
    position_embedding: ClassVar[str | None] = "bert.embeddings.position_embeddings"
    type_embedding: ClassVar[str | None] = "bert.embeddings.token_type_embeddings"
    embedding_norm: ClassVar[str | None] = "bert.embeddings.LayerNorm"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the linear layer on the pooled first token."""
        return "classifier"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the encoder's layers."""
        count = len(model.get_submodule("bert.encoder.layer"))  # type: ignore[arg-type]
        return [bert_layer(f"bert.encoder.layer.{index}") for index in range(count)]
