"""What an update reveals before it is attacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.defenses import defend, parse_defense
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.leakage.evidence import examine
from gradleak.targets import Target, load_target

TEXTS = ["my father lost all his money", "she never spoke about the war"]


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny", 2)


def capture(target: Target, *defenses: str, **client: Any) -> Update:
    update = Client(target, **client).update(TEXTS, [0, 1])
    return defend(update, [parse_defense(text) for text in defenses], torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("defenses", "client", "expected"),
    [
        ([], {}, ["embedding gradients: not sent", "no dropout"]),
        ([], {"dropout": True}, ["dropout likely"]),
        ([], {"embeddings": "trained"}, ["embedding gradients: sent, so that the words are known"]),
        ([], {"embeddings": "words-frozen"}, ["embedding gradients: of positions, not of words"]),
        (["prune:0.9"], {}, ["pruned to 10 %"]),
        (["noise:0.0005"], {}, ["noise about 0.0005"]),
        (["sign"], {}, ["only signs were sent"]),
    ],
)
def test_it_says_what_an_update_shows(
    tiny: Target, defenses: list[str], client: dict[str, Any], expected: list[str]
) -> None:
    lines = examine(tiny, capture(tiny, *defenses, **client).gradient()).lines
    assert set(expected) <= set(lines)
    unexpected = {"no dropout", "dropout likely", "only signs were sent"} - set(expected)
    assert not ({"only signs were sent"} & unexpected & set(lines))


def test_it_counts_the_tokens(tiny: Target) -> None:
    dropped = examine(tiny, capture(tiny, dropout=True).gradient())
    assert dropped.tokens == sum(tiny.encode(TEXTS).lengths)


def test_more_tokens_than_the_hidden_size_are_not_counted() -> None:
    target = small_target("bert")
    texts = ["the cat sat on a mat"] * 4 + ["a big red dog ran"] * 4
    evidence = examine(target, Client(target, dropout=True).update(texts, [0, 1] * 4).gradient())
    assert evidence.tokens is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [False, True])
def test_rounding_is_named_and_does_not_hide_the_number_of_tokens(
    tiny: Target, dtype: torch.dtype, dropout: bool
) -> None:
    update = capture(tiny, dropout=dropout)
    rounded = update.with_tensors({name: tensor.to(dtype).float() for name, tensor in update.tensors.items()})
    evidence = examine(tiny, rounded.gradient())
    assert evidence.tokens == examine(tiny, update.gradient()).tokens
    assert "rounded to few distinct values: half precision, or a difference of weights" in evidence.lines


def test_zeros_that_come_from_rounded_weights_are_not_called_pruning(tiny: Target) -> None:
    update = capture(tiny, fedavg=FedAvg(steps=4, lr=5e-5))
    evidence = examine(tiny, update.gradient())
    assert evidence.kept < 0.9
    assert not evidence.pruned
    assert not any(line.startswith("pruned") for line in evidence.lines)
