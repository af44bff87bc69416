"""Gemma 2 and 3: scaled word embeddings, norms around each part of a block, soft caps, layers with a window."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError
from gradleak.targets.families.decoder import attention_dropout_modules
from gradleak.targets.families.llama import Llama, masks_by_layer_type
from gradleak.targets.layout import Task, register
from gradleak.targets.norms import use_rms_norms


@register
class Gemma2(Llama):
    """Gemma 2 (Gemma Team 2024): Llama's names, norms that store their scale less one, caps of scores and logits."""

    name: ClassVar[str] = "gemma2"
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)
    gguf: ClassVar[str | None] = "gemma2"

    def embedding_scale(self, config: Any) -> float:  # noqa: ANN401
        """Return √(hidden size)."""
        return float(config.hidden_size) ** 0.5

    def attention_masks(self, config: Any, embeddings: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ANN401
        """Return one mask for each type of layer."""
        return masks_by_layer_type(config, embeddings, mask)

    def adapt(self, model: nn.Module) -> None:
        """Use norms that keep float64, and dropout modules in attention."""
        if getattr(model.config, "use_bidirectional_attention", False):
            raise GradleakError(f"{self.name} models with attention in both directions are not supported")
        use_rms_norms(model, offset=1.0)
        attention_dropout_modules(model)

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return logits; a language model's pass through the configured soft cap."""
        logits = super().logits(model, embeddings, mask, task)
        if task == "classification" or not self.logits_capped(model.config):
            return logits
        cap = float(model.config.final_logit_softcapping)  # type: ignore[union-attr, arg-type]
        return cap * torch.tanh(logits / cap)


@register
class Gemma3(Gemma2):
    """Gemma 3 (Gemma Team 2025), its text models: norms of query and key in place of caps of the scores."""

    name: ClassVar[str] = "gemma3_text"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)
    gguf: ClassVar[str | None] = "gemma3"
