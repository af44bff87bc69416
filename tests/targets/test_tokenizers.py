"""Byte-level tokenizers of decoders: a beginning of text, an end, or neither; padding on either side or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, PreTrainedTokenizerFast

from conftest import LLAMA
from gradleak.attacks import Sieve
from gradleak.federation import Client
from gradleak.targets import Target, Task, family_of
from gradleak.targets.initialise import initialise
from gradleak.targets.loading import _build

TEXTS = ["Zoë paid 12 €!", "the cat\nsat", "A  dog ran"]
FRAMES = {"none": ((), ()), "begin": ((0,), ()), "end": ((), (1,)), "both": ((0,), (1,))}


def byte_level(frame: str, pad: str | None, side: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and a few merges, as GPT-2's, Llama 3's and Qwen's are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "d"), ("a", "t")]
    tokens = ["<begin>", "<end>", "<pad>", *alphabet, *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    before, after = FRAMES[frame]
    template = ["<begin>"] * len(before) + ["$A"] + ["<end>"] * len(after)
    core.post_processor = processors.TemplateProcessing(
        single=" ".join(template), special_tokens=[("<begin>", 0), ("<end>", 1)]
    )
    named: dict[str, Any] = {"bos_token": "<begin>", "eos_token": "<end>", "pad_token": pad, "padding_side": side}
    return PreTrainedTokenizerFast(tokenizer_object=core, **named)


def decoder(tokenizer: PreTrainedTokenizerFast, task: Task = "causal-lm") -> Target:
    """Return a small Llama over the tokenizer's vocabulary."""
    sizes = LLAMA | {"hidden_size": 96, "num_key_value_heads": 2, "intermediate_size": 96}
    settings = {"max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    config = AutoConfig.for_model("llama", **sizes | settings, num_labels=2)
    with torch.random.fork_rng(devices=[]):
        model = _build(config, task)
    initialise(model, [name for name, _ in model.named_parameters()], seed=0, scale=0.1)
    return Target(model, tokenizer, family_of("llama"), task=task)


every_tokenizer = pytest.mark.parametrize(
    ("frame", "pad", "side"),
    [("none", None, "left"), ("begin", "<end>", "left"), ("end", "<end>", "right"), ("both", "<pad>", "right")],
)


@every_tokenizer
def test_texts_are_framed_padded_on_the_right_and_come_back(frame: str, pad: str | None, side: str) -> None:
    tokenizer = byte_level(frame, pad, side)
    target = decoder(tokenizer)
    before, after = FRAMES[frame]
    assert target.special_tokens == (before, after)
    tokens = target.encode(TEXTS)
    for text, row, there in zip(TEXTS, tokens.ids.tolist(), tokens.mask.tolist(), strict=True):
        own = tokenizer(text)["input_ids"]
        assert row[: len(own)] == own
        assert there == [True] * len(own) + [False] * (len(row) - len(own))
        assert set(row[len(own) :]) <= {target.pad_id}
        assert target.decode(own) == text
    assert target.pad_id in target.impossible_ids
    assert target.pad_id not in {*before, *after}
    assert (tokenizer.pad_token, tokenizer.padding_side) == (pad, side)


@every_tokenizer
@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_padding_changes_no_gradient(frame: str, pad: str | None, side: str, task: Task) -> None:
    target = decoder(byte_level(frame, pad, side), task).to(dtype=torch.float64)
    client = Client(target, embeddings="trained")
    together = client.update(TEXTS, [0, 1, 1]).tensors
    alone = [client.update([text], [label]).tensors for text, label in zip(TEXTS, [0, 1, 1], strict=True)]
    for name, found in together.items():
        expected = torch.stack([one[name] for one in alone]).mean(dim=0)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


@every_tokenizer
@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_sieve_reads_their_texts(frame: str, pad: str | None, side: str, task: Task) -> None:
    target = decoder(byte_level(frame, pad, side), task)
    result = Sieve()(target, Client(target).update(TEXTS, [0, 1, 1]))
    assert sorted(result.texts) == sorted(TEXTS)
    assert result.verified
