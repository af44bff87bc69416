"""A client with adapters against a plain PEFT training loop, as users write it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from conftest import TARGET_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.targets import Lora, Target, Task
from gradleak.targets.adapters.fresh import with_lora

TEXTS = ["the cat sat on a big red mat .", "dog ran"]
LABELS = [1, 0]
every_kind = pytest.mark.parametrize(("family", "task"), TARGET_KINDS)


def adapted(family: str = "bert", task: Task = "classification", **settings: Any) -> Target:
    return with_lora(small_target(family, task), Lora(**{"r": 2, "alpha": 3.0, "rounds": 1, **settings}))


def peft_model(target: Target) -> Any:
    """Return PEFT's own wrapper around the same base, with the same adapter in it."""
    assert target.adapter is not None
    assert target.adapter.lora is not None
    lora, task = target.adapter.lora, {"classification": "SEQ_CLS", "causal-lm": "CAUSAL_LM"}[target.task]
    config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_list, task_type=task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(small_target(target.family.name, target.task).model, config).eval()
    set_peft_model_state_dict(model, {name: target.parameters[name] for name in target.trained_parameters})
    return model


def plain_training(target: Target, optimizer: type[torch.optim.Optimizer], lr: float, steps: int) -> dict[str, Tensor]:
    model = peft_model(target)
    before = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    optimise = optimizer([p for p in model.parameters() if p.requires_grad], lr=lr)  # type: ignore[call-arg]
    tokens = target.encode(TEXTS)
    for _ in range(steps):
        optimise.zero_grad()
        logits = model(tokens.ids, attention_mask=tokens.mask.long()).logits
        mean_loss(target, logits, tokens.ids, tokens.mask).backward()
        optimise.step()
    return {name: tensor - before[name] for name, tensor in get_peft_model_state_dict(model).items()}


def mean_loss(target: Target, logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    if target.task == "classification":
        return torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS))
    each = []
    for row, wanted, there in zip(logits, ids, mask, strict=True):
        length = int(there.sum())
        each.append(torch.nn.functional.cross_entropy(row[: length - 1], wanted[1:length]))
    return torch.stack(each).mean()


@every_kind
def test_fedavg_sends_what_a_peft_loop_changes(family: str, task: Task) -> None:
    target = adapted(family, task)
    update = Client(target, fedavg=FedAvg(steps=3, lr=0.05)).update(TEXTS, LABELS)
    expected = plain_training(target, torch.optim.SGD, 0.05, 3)
    assert update.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(update.tensors[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_adamw_moves_adapters_as_a_peft_loop_does() -> None:
    target = adapted()
    fedavg = FedAvg(steps=2, lr=0.01, optimizer="adamw", weight_decay=0.01)
    update = Client(target, fedavg=fedavg).update(TEXTS, LABELS)
    expected = plain_training(target, torch.optim.AdamW, 0.01, 2)
    for name, tensor in expected.items():
        torch.testing.assert_close(update.tensors[name], tensor, rtol=1e-3, atol=1e-6, msg=name)


@every_kind
def test_fedsgd_sends_the_gradient_of_adapters_and_classifier_alone(family: str, task: Task) -> None:
    target = adapted(family, task)
    before = target.fingerprint
    update = Client(target).update(TEXTS, LABELS)
    change = plain_training(target, torch.optim.SGD, 1.0, 1)
    assert update.tensors.keys() == change.keys()
    assert any("lora_A" in name for name in change)
    assert any("lora_" not in name for name in change) == (task == "classification")
    for name, tensor in change.items():
        torch.testing.assert_close(update.tensors[name], -tensor, rtol=1e-4, atol=1e-6, msg=name)
    assert target.fingerprint == before


def test_in_the_first_round_the_gradient_of_a_is_zero() -> None:
    update = Client(adapted(rounds=0)).update(TEXTS, LABELS)
    assert {bool(tensor.any()) for name, tensor in update.tensors.items() if "lora_A" in name} == {False}
    assert {bool(tensor.any()) for name, tensor in update.tensors.items() if "lora_B" in name} == {True}


def test_dropout_of_adapters_follows_the_clients_switch() -> None:
    bare = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def sent(rate: float, dropout: bool, seed: int = 0) -> Update:
        target = with_lora(small_target("bert", **bare), Lora(r=2, rounds=1, dropout=rate))
        return Client(target, dropout=dropout, seed=seed).update(TEXTS, LABELS)

    plain = sent(0.0, dropout=True)
    assert same(plain, sent(0.5, dropout=False))
    assert not same(plain, sent(0.5, dropout=True))
    assert not same(sent(0.5, dropout=True, seed=1), sent(0.5, dropout=True))


def same(one: Update, other: Update) -> bool:
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


@pytest.mark.parametrize("embeddings", ["trained", "words-frozen"])
def test_embeddings_are_not_trained_beside_adapters(embeddings: Any) -> None:
    with pytest.raises(GradleakError, match=f"embeddings {embeddings}: a client with adapters trains those alone"):
        Client(adapted(), embeddings=embeddings)


def test_an_update_says_how_its_fresh_adapter_is_built(tmp_path: Path) -> None:
    target = adapted(dropout=0.1)
    assert target.adapter is not None
    update = Client(target).update(TEXTS, LABELS)
    update.save(tmp_path / "update.safetensors")
    origin = Update.load(tmp_path / "update.safetensors").origin
    assert origin is not None
    assert origin == update.origin
    assert (origin.lora, origin.adapter) == (target.adapter.lora, None)
    again = with_lora(small_target("bert"), origin.lora)  # type: ignore[arg-type]
    update.check(again)


def test_the_names_of_an_update_without_its_adapter_are_explained() -> None:
    update = Client(adapted()).update(TEXTS, LABELS)
    with pytest.raises(GradleakError, match="it is one of an adapter; give --adapter with the adapter before training"):
        update.check(small_target("bert"))
