"""Local training against plain loops as a user of torch.optim and of Hugging Face's schedules would write them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import get_scheduler

from conftest import FAMILY_NAMES, small_target
from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.simulation.training import check_precision
from gradleak.targets import Target

TEXTS = ["the cat sat on a big red mat .", "dog ran", "a big cat", "red , red dog", "the mat"]
LABELS = [1, 0, 0, 1, 1]
EVERY_STEP = [[0, 1], [2, 3], [4, 0], [1, 2]]
Rows = Sequence[Sequence[int]]


def plain_loop(
    target: Target,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    steps: Sequence[Rows],
    *,
    schedule: tuple[str, int] = ("constant", 0),
    clip: float = 0.0,
    precision: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Train a copy of the model in place, and return the change of its weights; a step is a list of mini-batches."""
    twin = copy.deepcopy(target)
    trained = {name: p for name, p in twin.parameters.items() if name not in target.embedding_parameters}
    for parameter in trained.values():
        parameter.requires_grad_()
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = make(list(trained.values()))
    name, warmup = schedule
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=len(steps))
    tokens, labels = target.encode(TEXTS), torch.tensor(LABELS)
    for batches in steps:
        optimizer.zero_grad()
        for rows in batches:
            picked = torch.tensor(rows)
            with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
                embedded = twin.embed(tokens.ids[picked])
                losses = twin.sequence_losses(embedded, tokens.mask[picked], labels[picked])
                loss = losses.mean() / len(batches)
            loss.backward()
        if clip:
            clip_grad_norm_(trained.values(), clip)
        optimizer.step()
        scheduler.step()
    return {name: parameter.detach() - before[name] for name, parameter in trained.items()}


def assert_same_bits(update: Update, expected: dict[str, Tensor]) -> None:
    assert update.tensors.keys() == expected.keys()
    assert any(bool(tensor.any()) for tensor in expected.values())
    wrong = [name for name, tensor in expected.items() if not torch.equal(update.tensors[name], tensor)]
    assert wrong == []


def once(steps: Rows) -> list[Rows]:
    return [[rows] for rows in steps]


# --- optimisers ----------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.01)),
    "sgd with momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    ),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8)),
    "adamw": (
        {"optimizer": "adamw"},
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
    ),
    "adamw with settings": (
        {"optimizer": "adamw", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize(
    ("family", "name"), [*(("bert", name) for name in OPTIMIZERS), *zip(FAMILY_NAMES[1:], cycle(OPTIMIZERS))]
)
def test_an_optimiser_gives_the_bits_of_a_plain_loop(family: str, name: str) -> None:
    settings, make = OPTIMIZERS[name]
    target = small_target(family)
    update = Client(target, fedavg=FedAvg(steps=4, lr=0.01, batch=2, **settings)).update(TEXTS, LABELS)
    assert_same_bits(update, plain_loop(target, make, once(EVERY_STEP)))


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_a_schedule_gives_the_bits_of_the_trainers(bert: Target, schedule: Any, warmup: int) -> None:
    fedavg = FedAvg(steps=4, lr=0.01, batch=2, optimizer="adamw", schedule=schedule, warmup=warmup)
    theirs = "constant_with_warmup" if schedule == "constant" else schedule
    expected = plain_loop(bert, OPTIMIZERS["adamw"][1], once(EVERY_STEP), schedule=(theirs, warmup))
    assert_same_bits(Client(bert, fedavg=fedavg).update(TEXTS, LABELS), expected)


def test_clipping_gives_the_bits_of_a_plain_loop_and_bites(bert: Target) -> None:
    fedavg = FedAvg(steps=4, lr=0.01, batch=2, clip=0.1)
    update = Client(bert, fedavg=fedavg).update(TEXTS, LABELS)
    assert_same_bits(update, plain_loop(bert, OPTIMIZERS["sgd"][1], once(EVERY_STEP), clip=0.1))
    norms = [
        torch.stack([t.norm() for t in one.tensors.values()]).norm()
        for one in (update, Client(bert, fedavg=FedAvg(steps=4, lr=0.01, batch=2)).update(TEXTS, LABELS))
    ]
    assert norms[0] < 0.01 * 0.1 * 4 * 1.001 < norms[1]


# --- mini-batches --------------------------------------------------------------------------------------------------


def test_a_step_takes_the_mean_over_its_accumulated_batches(bert: Target) -> None:
    fedavg = FedAvg(steps=2, lr=0.01, batch=2, accumulate=2, optimizer="adamw")
    expected = plain_loop(bert, OPTIMIZERS["adamw"][1], [EVERY_STEP[:2], EVERY_STEP[2:]])
    assert_same_bits(Client(bert, fedavg=fedavg).update(TEXTS, LABELS), expected)


def test_epochs_end_with_what_remains(bert: Target) -> None:
    fedavg = FedAvg(epochs=2, lr=0.01, batch=2, accumulate=2, optimizer="adamw", schedule="linear")
    epoch: list[Rows] = [[[0, 1], [2, 3]], [[4]]]
    expected = plain_loop(bert, OPTIMIZERS["adamw"][1], epoch * 2, schedule=("linear", 0))
    update = Client(bert, fedavg=fedavg).update(TEXTS, LABELS)
    assert_same_bits(update, expected)
    assert fedavg.num_steps(len(TEXTS)) == 4
    assert (update.steps, update.learning_rate, update.training) == (None, 0.01, fedavg)


def test_epochs_of_full_steps_are_that_many_steps(bert: Target) -> None:
    epochs = FedAvg(epochs=3, lr=0.01, batch=2, optimizer="adamw", schedule="linear")
    assert epochs.in_steps(len(TEXTS)) == epochs
    steps = epochs.in_steps(4)
    assert (steps.steps, steps.epochs) == (6, None)
    first, second = (Client(bert, fedavg=fedavg).update(TEXTS[:4], LABELS[:4]) for fedavg in (epochs, steps))
    assert_same_bits(first, second.tensors)


@pytest.mark.parametrize(
    ("settings", "texts", "distinct"),
    [
        ({"steps": 4}, None, 1),
        ({"steps": 4, "batch": 2}, None, 4),
        ({"steps": 4, "batch": 2}, 4, 2),
        ({"steps": 4, "batch": 2}, 5, 4),
        ({"epochs": 10, "batch": 4}, 16, 4),
        ({"epochs": 10, "batch": 4}, 10, 3),
        ({"epochs": 10, "batch": 4, "shuffle": True}, 16, 40),
        ({"epochs": 10, "batch": 2, "accumulate": 2}, 16, 4),
    ],
)
def test_steps_that_repeat_others_are_not_distinct(settings: dict[str, Any], texts: int | None, distinct: int) -> None:
    assert FedAvg(lr=0.1, **settings).distinct_steps(texts) == distinct


def orders(seed: int) -> Iterator[list[int]]:
    stream = torch.Generator().manual_seed(seed)
    torch.randint(2**62, (), generator=stream)  # the seed of the dropout masks is drawn first
    while True:
        yield torch.randperm(len(TEXTS), generator=stream).tolist()


@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 5}], ids=str)
def test_texts_are_shuffled_by_the_clients_seed(bert: Target, length: dict[str, int]) -> None:
    fedavg = FedAvg(lr=0.01, batch=2, shuffle=True, **length)
    first, second = (order for order, _ in zip(orders(3), range(2), strict=False))
    if "epochs" in length:
        steps = [order[start : start + 2] for order in (first, second) for start in (0, 2, 4)]
    else:
        joined = first + second
        steps = [joined[start : start + 2] for start in range(0, 10, 2)]
    update = Client(bert, fedavg=fedavg, seed=3).update(TEXTS, LABELS)
    assert_same_bits(update, plain_loop(bert, OPTIMIZERS["sgd"][1], once(steps)))
    other = Client(bert, fedavg=fedavg, seed=4).update(TEXTS, LABELS)
    assert any(not torch.equal(update.tensors[name], tensor) for name, tensor in other.tensors.items())


def test_a_batch_larger_than_the_data_is_refused(bert: Target) -> None:
    client = Client(bert, fedavg=FedAvg(steps=1, lr=0.1, batch=6))
    with pytest.raises(GradleakError, match="batch=6 of FedAvg is larger than the client's data: 5 texts"):
        client.update(TEXTS, LABELS)


# --- settings that make no sense -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 1, "epochs": 1}, "steps=1 and epochs=1 exclude each other: give one of them"),
        ({}, "FedAvg needs steps or epochs"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"steps": 1, "clip": -0.5}, "clip must be at least 0, not -0.5"),
        ({"steps": 1, "clip": float("nan")}, "clip takes a number, not nan"),
        ({"steps": 1, "optimizer": "adamw2"}, "unknown optimizer 'adamw2'; did you mean 'adamw'?"),
        ({"steps": 1, "schedule": "lineal"}, "unknown schedule 'lineal'; did you mean 'linear'?"),
        ({"steps": 1, "momentum": 1.0}, "momentum must be below 1"),
        ({"steps": 1, "beta1": 0.8}, "beta1 is a setting of adam and adamw, not of sgd"),
        ({"steps": 1, "optimizer": "adamw", "momentum": 0.9}, "momentum is a setting of sgd, not of adamw"),
        ({"steps": 4, "warmup": 4}, "warmup=4 leaves none of 4 steps at the full rate; give fewer"),
        ({"steps": 1, "accumulate": 0}, "accumulate must be at least 1, not 0"),
    ],
    ids=str,
)
def test_a_protocol_that_makes_no_sense_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GradleakError) as caught:
        FedAvg(lr=0.1, **settings)
    assert str(caught.value) == message


def test_a_warm_up_longer_than_the_epochs_is_refused(bert: Target) -> None:
    with pytest.raises(GradleakError, match="warmup=3 leaves none of 3 steps at the full rate"):
        Client(bert, fedavg=FedAvg(epochs=1, lr=0.1, batch=2, warmup=3)).update(TEXTS, LABELS)


# --- precision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fedavg", "family", "precision"),
    [
        *((None, family, precision) for family in FAMILY_NAMES for precision in ("bf16", "fp16")),
        *((FedAvg(steps=20, lr=0.01), family, precision) for family, precision in (("bert", "fp16"), ("gpt2", "bf16"))),
    ],
)
def test_half_precision_trains_nearly_as_float32_does(fedavg: FedAvg | None, family: str, precision: Any) -> None:
    target = small_target(family)
    exact = Client(target, fedavg=fedavg).update(TEXTS, LABELS)
    half = Client(target, fedavg=fedavg, precision=precision).update(TEXTS, LABELS)
    assert (exact.precision, half.precision) == ("fp32", precision)
    assert {tensor.dtype for tensor in half.tensors.values()} == {torch.float32}
    one, other = (torch.cat([t.flatten() for t in update.tensors.values()]) for update in (exact, half))
    assert not torch.equal(one, other)
    assert torch.cosine_similarity(one, other, dim=0) > 0.98


def test_bf16_gives_the_bits_of_a_plain_loop_with_autocast(bert: Target) -> None:
    fedavg = FedAvg(steps=4, lr=0.01, batch=2, optimizer="adamw")
    expected = plain_loop(bert, OPTIMIZERS["adamw"][1], once(EVERY_STEP), precision=torch.bfloat16)
    assert_same_bits(Client(bert, fedavg=fedavg, precision="bf16").update(TEXTS, LABELS), expected)


def test_fp16_scales_the_loss_and_skips_steps_that_overflow(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain loop is the one of the documentation of torch.amp."""
    monkeypatch.setattr("gradleak.simulation.training.FIRST_SCALE", 2.0**24)
    fedavg = FedAvg(steps=12, lr=0.01, clip=1.0, schedule="linear")
    update = Client(bert, fedavg=fedavg, precision="fp16").update(TEXTS, LABELS)
    twin = copy.deepcopy(bert)
    trained = {name: p for name, p in twin.parameters.items() if name in update.tensors}
    for parameter in trained.values():
        parameter.requires_grad_()
    optimizer = torch.optim.SGD(trained.values(), lr=0.01)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    tokens, taken = bert.encode(TEXTS), 0
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = twin.sequence_losses(twin.embed(tokens.ids), tokens.mask, torch.tensor(LABELS)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(trained.values(), 1.0)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            taken += 1
            scheduler.step()
    assert 0 < taken < 12
    before = {name: bert.parameters[name].detach() for name in trained}
    assert_same_bits(update, {name: p.detach() - before[name] for name, p in trained.items()})


def test_training_that_only_overflows_is_refused(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.simulation.training.FIRST_SCALE", 2.0**60)
    with pytest.raises(GradleakError, match="all 2 steps overflowed in fp16 and were skipped; give more steps"):
        Client(bert, fedavg=FedAvg(steps=2, lr=0.01), precision="fp16").update(TEXTS, LABELS)


def test_a_precision_that_the_device_cannot_do_is_one_line(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(torch, "autocast", refuse)
    check_precision("fp32", bert.device)
    with pytest.raises(GradleakError) as caught:
        Client(bert, precision="fp16")
    assert str(caught.value) == "the CPU here cannot train in fp16; give precision fp32 or another device"


def test_an_unknown_precision_says_what_is_near(bert: Target) -> None:
    with pytest.raises(GradleakError, match="unknown precision 'bf61'; did you mean 'bf16'"):
        Client(bert, precision="bf61")  # type: ignore[arg-type]
