"""The oracle of this folder: Hugging Face's own model with its own attention, carrying a target's weights."""

from __future__ import annotations

import copy
from typing import Any

import torch

from gradleak.targets import Target, Tokens
from gradleak.targets.loading import MODEL_CLASSES

PADDED_TEXTS = ["the cat sat on a big red mat .", "dog ran", "a cat"]


def eager_twin(target: Target) -> Any:
    """Build the architecture anew with `eager` attention and copy the weights into it."""
    with torch.random.fork_rng(devices=[]):
        twin = MODEL_CLASSES[target.task].from_config(copy.deepcopy(target.config), attn_implementation="eager")
    twin.load_state_dict(target.model.state_dict())
    assert twin.config._attn_implementation == "eager"
    return twin.to(dtype=target.dtype).eval()


def own_logits(target: Target, tokens: Tokens) -> torch.Tensor:
    """Return the logits that the target's family gives."""
    return target.family.logits(target.model, target.embed(tokens.ids), tokens.mask, target.task)
