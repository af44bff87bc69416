"""MPNet: BERT's layers with relative positions in attention, besides absolute ones; a two-layer head."""

from __future__ import annotations

from types import MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.targets.layout import Family, Layer, Projection, Task, register


@register
class MPNet(Family):
    """MPNet (Song et al. 2020)."""

    name: ClassVar[str] = "mpnet"
    model_types: ClassVar[tuple[str, ...]] = ("mpnet",)
    word_embedding: ClassVar[str] = "mpnet.embeddings.word_embeddings"
    position_embedding: ClassVar[str | None] = "mpnet.embeddings.position_embeddings"
    embedding_norm: ClassVar[str | None] = "mpnet.embeddings.LayerNorm"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the second layer of the classification head."""
        return "classifier.out_proj"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the encoder's layers."""
        count = len(model.get_submodule("mpnet.encoder.layer"))  # type: ignore[arg-type]
        return [self._layer(f"mpnet.encoder.layer.{index}") for index in range(count)]

    @staticmethod
    def _layer(prefix: str) -> Layer:
        return Layer(
            query=Projection(f"{prefix}.attention.attn.q"),
            key=Projection(f"{prefix}.attention.attn.k"),
            value=Projection(f"{prefix}.attention.attn.v"),
            attention_output=Projection(f"{prefix}.attention.attn.o"),
            feed_forward_in=Projection(f"{prefix}.intermediate.dense"),
            feed_forward_out=Projection(f"{prefix}.output.dense"),
        )

    def position_offset(self, config: Any) -> int:  # noqa: ANN401
        """Return the index after the padding index, which is 1 in every MPNet."""
        return 2

    def relative_scores(self, model: nn.Module, tokens: int) -> Tensor:
        """Return the biases of relative positions, which all layers share."""
        encoder: Any = model.get_submodule("mpnet.encoder")
        return _position_bias(encoder, encoder.relative_attention_bias.weight.new_zeros(1, tokens, 1))[0]

    def adapt(self, model: nn.Module) -> None:
        """Look up relative positions with a dimension for sequences, without which no gradient rule can hold."""
        encoder: Any = model.get_submodule("mpnet.encoder")
        encoder.compute_position_bias = MethodType(_position_bias, encoder)


def _position_bias(encoder: Any, hidden: Tensor) -> Tensor:  # noqa: ANN401
    """Return what relative positions add to attention scores `[sequences, heads, tokens, tokens]`."""
    places = torch.arange(hidden.shape[1], device=hidden.device)
    buckets = encoder.relative_position_bucket(places[None, :] - places[:, None])
    bias: Tensor = encoder.relative_attention_bias(buckets[None])  # [1, tokens, tokens, heads]
    return bias.permute(0, 3, 1, 2).expand(len(hidden), -1, -1, -1)
