"""Models just large enough for sieve: small ones have fewer dimensions than a batch has tokens."""

from __future__ import annotations

from typing import Any

import torch

from conftest import small_target
from gradleak.exchange import Update
from gradleak.federation import Client
from gradleak.targets import Target, Task

WIDER_LLAMA: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
WIDER_LLAMA |= {"sliding_window": 16}  # of a token further back than the windows reach nothing is sent
WIDER: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 96},
    "roberta": {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 96},
    "distilbert": {"dim": 96, "n_heads": 4, "hidden_dim": 96},
    "albert": {"embedding_size": 64, "hidden_size": 192, "num_attention_heads": 4, "intermediate_size": 96},
    "gpt2": {"n_embd": 96, "n_head": 4},
    "mpnet": {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 96},
    "gpt_neox": {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 96},
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"), WIDER_LLAMA),
}
TEXTS = ["the cat sat on a mat", "big dog ran", "a red dog sat on the big mat ."]
LABELS = [1, 0, 1]


def wider_target(family: str = "bert", task: Task = "classification", **changes: Any) -> Target:
    """Return a small target of 96 dimensions whose attention is as broad as a trained one's."""
    target = small_target(family, task, **WIDER[family] | changes)
    with torch.no_grad():
        for name, parameter in target.parameters.items():
            if parameter.ndim > 1:
                parameter *= 2.0 if name in target.embedding_parameters else 0.5
    return target


def sent(target: Target, texts: list[str] = TEXTS, labels: list[int] = LABELS, **client: Any) -> Update:
    """Return a client's update; without special tokens, texts that begin alike would be one tree."""
    return Client(target, **client).update(texts, labels if target.task == "classification" else None)


def ids_of(target: Target, texts: list[str] = TEXTS) -> list[tuple[int, ...]]:
    """Return the token ids of texts, without padding."""
    tokens = target.encode(texts)
    return [tuple(row[there].tolist()) for row, there in zip(tokens.ids, tokens.mask, strict=True)]
