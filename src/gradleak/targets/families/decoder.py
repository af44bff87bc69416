"""What decoders have in common: causal attention, a score of the last token, an output layer over the vocabulary."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.targets.layout import Family, Task, additive_mask


class Decoder(Family):
    """A causal decoder, as a classifier or as a causal language model.

    Attributes:
        body: path of the decoder without its head.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("classification", "causal-lm")
    body: ClassVar[str]

    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the score layer, or the output layer over the vocabulary."""
        return "score" if task == "classification" else "lm_head"

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return logits; as a classifier, those of the last token that is not padding.

        Hugging Face finds that token from token ids, and wrongly takes the last position if it is given embeddings;
        here the mask decides.
        """
        decoder: Any = model.get_submodule(self.body)
        masks = self.attention_masks(model.config, embeddings, mask)
        scale = self.embedding_scale(model.config)
        scaled = embeddings if scale == 1.0 else embeddings * scale
        hidden = decoder(inputs_embeds=scaled, attention_mask=masks, use_cache=False).last_hidden_state
        if task == "causal-lm":
            return model.get_submodule("lm_head")(hidden)
        last = mask.sum(dim=1) - 1
        rows = torch.arange(len(hidden), device=hidden.device)
        return model.get_submodule("score")(hidden[rows, last])

    def attention_masks(
        self,
        config: Any,  # noqa: ANN401 - configurations have no common type
        embeddings: Tensor,
        mask: Tensor,
    ) -> Tensor | dict[str, Tensor]:
        """Return the additive mask of all layers, or one for each type of layer."""
        return causal_mask(mask, embeddings)


def causal_mask(mask: Tensor, like: Tensor, window: int | None = None) -> Tensor:
    """Return a mask to add to attention scores `[sequences, 1, tokens, tokens]`: 0 up to the token itself.

    Args:
        mask: True where there is a token `[sequences, tokens]`.
        like: gives number format and device.
        window: how many tokens back attention reaches, the token itself included; None for all.
    """
    tokens = mask.shape[1]
    square = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device)
    hidden = square.triu(1) if window is None else square.triu(1) | square.tril(-window)
    return additive_mask(mask, like).expand(-1, -1, tokens, -1).masked_fill(hidden, torch.finfo(like.dtype).min)


def attention_dropout_modules(model: nn.Module) -> None:
    """Give every attention a dropout module with its configured rate, in place.

    Newer models of Hugging Face keep the rate as a number, which only their own attention functions apply.
    """
    for module in list(model.modules()):
        rate = getattr(module, "attention_dropout", None)
        if isinstance(rate, (int, float)) and type(module).__name__.endswith("Attention"):
            module.add_module("dropout", nn.Dropout(float(rate)))
