"""Llama and its relatives Mistral, Qwen2 and Qwen3: rotary positions, RMSNorm, grouped queries, gated feed-forward."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from gradleak.targets.families.decoder import Decoder, attention_dropout_modules, causal_mask
from gradleak.targets.layout import Layer, Projection, register
from gradleak.targets.norms import use_rms_norms


@register
class Llama(Decoder):
    """Llama (Touvron et al. 2023), and models of its architecture such as SmolLM2 and TinyLlama."""

    name: ClassVar[str] = "llama"
    model_types: ClassVar[tuple[str, ...]] = ("llama",)
    body: ClassVar[str] = "model"
    word_embedding: ClassVar[str] = "model.embed_tokens"
    rotary: ClassVar[bool] = True
    gguf: ClassVar[str | None] = "llama"

    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the decoder's blocks; key and value may have fewer outputs than query."""
        count = len(model.get_submodule("model.layers"))  # type: ignore[arg-type]
        return [self._layer(f"model.layers.{index}") for index in range(count)]

    @staticmethod
    def _layer(prefix: str) -> Layer:
        return Layer(
            query=Projection(f"{prefix}.self_attn.q_proj"),
            key=Projection(f"{prefix}.self_attn.k_proj"),
            value=Projection(f"{prefix}.self_attn.v_proj"),
            attention_output=Projection(f"{prefix}.self_attn.o_proj"),
            feed_forward_in=Projection(f"{prefix}.mlp.up_proj"),
            feed_forward_out=Projection(f"{prefix}.mlp.down_proj"),
            feed_forward_gate=Projection(f"{prefix}.mlp.gate_proj"),
        )

    def adapt(self, model: nn.Module) -> None:
        """Use norms that keep float64, and dropout modules in attention."""
        use_rms_norms(model)
        attention_dropout_modules(model)


@register
class Mistral(Llama):
    """Mistral (Jiang et al. 2023): Llama, with attention that may reach only so many tokens back."""

    name: ClassVar[str] = "mistral"
    model_types: ClassVar[tuple[str, ...]] = ("mistral",)
    gguf: ClassVar[str | None] = "llama"  # Mistral's files call themselves Llama's

    def attention_masks(self, config: Any, embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ANN401
        """Return one mask, with the window of the configuration."""
        return causal_mask(mask, embeddings, config.sliding_window)


@register
class Qwen2(Llama):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): Llama, with biases of query, key and value; some layers have a window."""

    name: ClassVar[str] = "qwen2"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2",)
    gguf: ClassVar[str | None] = "qwen2"

    def attention_masks(self, config: Any, embeddings: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ANN401
        """Return one mask for each type of layer."""
        return masks_by_layer_type(config, embeddings, mask)


@register
class Qwen3(Qwen2):
    """Qwen3 (Yang et al. 2025): norms of query and key in place of Qwen2's biases."""

    name: ClassVar[str] = "qwen3"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)
    gguf: ClassVar[str | None] = "qwen3"


def masks_by_layer_type(config: Any, embeddings: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the masks of layers with full attention and of those with a sliding window."""
    windows = {"full_attention": None, "sliding_attention": config.sliding_window}
    return {kind: causal_mask(mask, embeddings, windows[kind]) for kind in sorted(set(config.layer_types))}
