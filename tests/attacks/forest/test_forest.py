"""Forest reads decoders' updates exactly, of adapters whose rank is below the number of tokens, and claims no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import WORDS, PassesAfter, small_target
from gradleak.attacks import find_attack
from gradleak.attacks.forest.reader import ForestReader
from gradleak.errors import GradleakError
from gradleak.exchange import FedAvg, Knowledge, Reconstruction, Update
from gradleak.federation import Client
from gradleak.targets import Target
from gradleak.targets.adapters import Lora
from gradleak.targets.adapters.fresh import with_lora

SENTENCE = "the big dog ran on a red mat b c d"
BATCH = ["the big dog ran on a red mat", "a cat sat .", "b c d e f g h"]
SHAPE = {"hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96}


def decoder(family: str = "llama", task: Any = "causal-lm", lora: str | None = None, **changes: Any) -> Target:
    target = small_target(family, task, **{**(SHAPE if family != "gpt2" else {}), **changes})
    return target if lora is None else with_lora(target, Lora.parse(lora))


def read(target: Target, texts: list[str], **client: Any) -> Reconstruction:
    return find_attack("forest")()(target, Client(target, **client).update(texts), Knowledge())


@pytest.mark.parametrize("rank", [2, 4, 16])
def test_adapters_of_any_rank_give_the_sentence_away(rank: int) -> None:
    pytest.importorskip("peft")
    found = read(decoder(lora=f"r={rank},targets=q_proj+v_proj,rounds=2"), [SENTENCE])
    assert found.texts == (SENTENCE,)
    assert found.verified
    assert found.complete


def test_a_batch_of_more_tokens_than_rows_is_read() -> None:
    pytest.importorskip("peft")
    found = read(decoder(lora="r=4,targets=q_proj+v_proj,rounds=2"), BATCH)
    assert sorted(found.texts) == sorted(BATCH)
    assert found.verified


@pytest.mark.parametrize("texts", [BATCH, [BATCH[0], "the big dog ran on the mat", "the big cat sat"]])
def test_rows_that_lack_a_direction_are_not_taken_for_a_whole_row_space(texts: list[str]) -> None:
    """A column of B that is zero leaves a row of A without a gradient: a rank below the rows, and no fewer tokens."""
    pytest.importorskip("peft")
    target = decoder(lora="r=4,targets=q_proj+v_proj,rounds=2")
    with torch.no_grad():
        for module in target.adapters:
            target.parameters[module.b][:, 0] = 0
    found = read(target, texts)
    assert sorted(found.texts) == sorted(texts)
    assert found.verified


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_full_updates_of_decoders_are_read(family: str, task: Any) -> None:
    changes = {"n_embd": 64} if family == "gpt2" else {"sliding_window": 40} if family == "mistral" else {}
    found = read(decoder(family, task, **changes), BATCH[:2])
    assert sorted(found.texts) == sorted(BATCH[:2])
    assert found.verified


def test_a_text_that_begins_with_a_repeated_word_is_read() -> None:
    text = "the the dog ran on"
    found = read(decoder(), [text])
    assert found.texts == (text,)


def test_rounded_updates_are_read_and_proven_by_a_replay() -> None:
    pytest.importorskip("peft")
    found = read(decoder(lora="r=8,targets=q_proj+v_proj,rounds=2"), ["the big dog ran on a mat"], send="bf16")
    assert found.texts == ("the big dog ran on a mat",)
    assert found.verified
    assert any("repeated on these texts" in note for note in found.notes)


def test_local_steps_are_read() -> None:
    pytest.importorskip("peft")
    target = decoder(lora="r=8,targets=q_proj+v_proj,rounds=2")
    found = read(target, BATCH[:2], fedavg=FedAvg(steps=2, lr=1e-2, batch=1))
    assert sorted(found.texts) == sorted(BATCH[:2])


def test_the_first_round_is_read_while_there_are_fewer_tokens_than_the_rank() -> None:
    pytest.importorskip("peft")
    target = decoder(lora="r=16,targets=q_proj+v_proj,rounds=0")
    found = read(target, ["the dog sat on a mat"])
    assert found.texts[0].startswith("the dog sat on a")
    assert any("first round" in note for note in found.notes)


def test_more_tokens_than_dimensions_are_reported_as_such() -> None:
    words = [word for word in WORDS if word.isalpha()][:29]
    texts = [" ".join(words[number:] + words[:number]) for number in range(0, 28, 4)]
    target = decoder(num_hidden_layers=3)
    found = find_attack("forest")()(target, Client(target).update(texts), Knowledge(), budget=3.0)
    assert not found.verified
    assert any(note.startswith("capacity") for note in found.notes)


def test_another_text_than_the_update_s_is_never_verified() -> None:
    """Rows that no batch gives: tensors of two different updates, mixed."""
    pytest.importorskip("peft")
    target = decoder(lora="r=4,targets=q_proj+v_proj,rounds=2")
    one, other = (Client(target).update([text]) for text in BATCH[:2])
    names = list(one.tensors)
    mixed = {n: (one if i % 3 else other).tensors[n] for i, n in enumerate(names)}
    assert not find_attack("forest")()(target, Update(mixed), Knowledge()).verified


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_never_verified(seed: int) -> None:
    pytest.importorskip("peft")
    target = decoder(lora="r=4,targets=q_proj+v_proj,rounds=2")
    update = Client(target).update(BATCH[:1])
    stream = torch.Generator().manual_seed(seed)
    noisy = {n: t + 0.01 * t.std() * torch.randn(t.shape, generator=stream) for n, t in update.tensors.items()}
    assert not find_attack("forest")()(target, Update(noisy), Knowledge()).verified


@pytest.mark.parametrize("asks", [1, 3, 8])
def test_the_deadline_is_respected(asks: int) -> None:
    pytest.importorskip("peft")
    target = decoder(lora="r=4,targets=q_proj+v_proj,rounds=2")
    update = Client(target).update(BATCH)
    deadline = PassesAfter(asks)
    ForestReader(target, update.gradient(), update.protocol, 3.0, deadline, lambda texts, left: None).read()
    assert deadline.asked < asks + 12


def test_encoders_are_refused_in_one_line() -> None:
    target = small_target("bert")
    with pytest.raises(GradleakError, match="forest reads decoders"):
        read(target, ["the cat"])


@pytest.mark.parametrize("rank", [2, 8])
def test_adapters_of_a_model_with_a_table_of_positions_are_read_below_the_rank(rank: int) -> None:
    pytest.importorskip("peft")
    target = decoder("gpt2", lora=f"r={rank}", n_embd=128, n_layer=4)
    found = read(target, BATCH[:2])
    assert sorted(found.texts) == sorted(BATCH[:2])
    assert found.verified


ROUNDED: dict[str, dict[str, Any]] = {
    "a difference of weights": {"fedavg": FedAvg(steps=1, lr=0.1)},
    "two steps": {"fedavg": FedAvg(steps=2, lr=1e-2, batch=1)},
    "bf16": {"send": "bf16"},
}


@pytest.mark.parametrize("client", ROUNDED.values(), ids=ROUNDED)
def test_rounded_adapters_of_a_model_with_a_table_of_positions_are_read(client: dict[str, Any]) -> None:
    pytest.importorskip("peft")
    found = read(decoder("gpt2", lora="r=16", n_embd=128, n_layer=4), BATCH[:2], **client)
    assert sorted(found.texts) == sorted(BATCH[:2])
    assert found.verified
