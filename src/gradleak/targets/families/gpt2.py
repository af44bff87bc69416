"""GPT-2: causal attention, fused query/key/value, weights stored transposed, output tied to the word embedding."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from gradleak.targets.families.decoder import Decoder
from gradleak.targets.layout import Layer, Projection, register


@register
class Gpt2(Decoder):
    """GPT-2 (Radford et al. 2019), as a classifier or as a causal language model."""

    name: ClassVar[str] = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    body: ClassVar[str] = "transformer"
    word_embedding: ClassVar[str] = "transformer.wte"
    position_embedding: ClassVar[str | None] = "transformer.wpe"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the decoder's blocks; `c_attn` holds query, key and value side by side."""
        blocks: Any = model.get_submodule("transformer.h")
        return [self._layer(f"transformer.h.{index}", block.attn.embed_dim) for index, block in enumerate(blocks)]

    @staticmethod
    def _layer(prefix: str, width: int) -> Layer:
        query, key, value = (
            Projection(f"{prefix}.attn.c_attn", slice(part * width, (part + 1) * width), True) for part in range(3)
        )
        return Layer(
            query=query,
            key=key,
            value=value,
            attention_output=Projection(f"{prefix}.attn.c_proj", transposed=True),
            feed_forward_in=Projection(f"{prefix}.mlp.c_fc", transposed=True),
            feed_forward_out=Projection(f"{prefix}.mlp.c_proj", transposed=True),
        )
