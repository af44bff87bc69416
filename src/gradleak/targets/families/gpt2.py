"""GPT-2: causal attention, fused query/key/value, weights stored transposed, output tied to the word embedding."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.targets.layout import Family, Layer, Projection, Task, additive_mask, register


@register
class Gpt2(Family):
    """GPT-2 (Radford et al. 2019), as a classifier or as a causal language model."""

    name: ClassVar[str] = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    tasks: ClassVar[tuple[Task, ...]] = ("classification", "causal-lm")
    word_embedding: ClassVar[str] = "transformer.wte"
    position_embedding: ClassVar[str | None] = "transformer.wpe"

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the score layer, or the output layer that is tied to the word embedding."""
        return "score" if task == "classification" else "lm_head"

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

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return logits; as a classifier, those of the last token that is not padding.

        Hugging Face finds that token from token ids, and wrongly takes the last position if it is given embeddings;
        here the mask decides.
        """
        tokens = mask.shape[1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).triu(1)
        causal = additive_mask(mask, embeddings).expand(-1, -1, tokens, -1)
        causal = causal.masked_fill(later, torch.finfo(embeddings.dtype).min)
        decoder: Any = model.get_submodule("transformer")
        hidden = decoder(inputs_embeds=embeddings, attention_mask=causal, use_cache=False).last_hidden_state
        if task == "causal-lm":
            return model.get_submodule("lm_head")(hidden)
        last = mask.sum(dim=1) - 1
        rows = torch.arange(len(hidden), device=hidden.device)
        return model.get_submodule("score")(hidden[rows, last])
