"""GPT-NeoX and Pythia: rotary positions, LayerNorm, attention and feed-forward side by side, fused query/key/value."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from gradleak.targets.families.decoder import Decoder, attention_dropout_modules
from gradleak.targets.layout import Layer, Projection, register


@register
class GptNeoX(Decoder):
    """GPT-NeoX (Black et al. 2022), and models of its architecture such as Pythia."""

    name: ClassVar[str] = "gpt_neox"
    model_types: ClassVar[tuple[str, ...]] = ("gpt_neox",)
    body: ClassVar[str] = "gpt_neox"
    word_embedding: ClassVar[str] = "gpt_neox.embed_in"
    rotary: ClassVar[bool] = True

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the decoder's blocks; `query_key_value` holds query, key and value of each head side by side."""
        blocks: Any = model.get_submodule("gpt_neox.layers")
        heads = int(model.config.num_attention_heads)  # type: ignore[union-attr, arg-type]
        return [
            self._layer(f"gpt_neox.layers.{index}", heads, block.attention.head_size)
            for index, block in enumerate(blocks)
        ]

    @staticmethod
    def _layer(prefix: str, heads: int, width: int) -> Layer:
        query, key, value = (
            Projection(
                f"{prefix}.attention.query_key_value",
                [3 * width * head + width * part + row for head in range(heads) for row in range(width)],
            )
            for part in range(3)
        )
        return Layer(
            query=query,
            key=key,
            value=value,
            attention_output=Projection(f"{prefix}.attention.dense"),
            feed_forward_in=Projection(f"{prefix}.mlp.dense_h_to_4h"),
            feed_forward_out=Projection(f"{prefix}.mlp.dense_4h_to_h"),
        )

    def adapt(self, model: nn.Module) -> None:
        """Use dropout modules in attention."""
        attention_dropout_modules(model)
