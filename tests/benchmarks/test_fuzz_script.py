"""The script that looks for results which claim more than is proven."""

from __future__ import annotations

import importlib
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.errors import GradleakError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TEXTS = ["the cat sat on the mat .", "a dog ran .", "the big red cat ran", "a b c d"]


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the module of cases, whose only model is a small one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("fuzz_cases")
    monkeypatch.setattr(module, "target_of", lambda model, *, sure=False, head=0: small_target(seed=head))
    return module


@pytest.fixture
def script(cases: ModuleType) -> ModuleType:
    return importlib.import_module("fuzz")


def test_every_kind_makes_the_same_finite_update_again(cases: ModuleType) -> None:
    for kind in cases.KINDS:
        case, again = (cases.Case("small", TEXTS, 5, [kind]) for _ in range(2))
        update = case.update()
        assert all(bool(torch.isfinite(tensor).all()) for tensor in update.tensors.values())
        repeated = again.update().tensors
        assert all(torch.equal(tensor, repeated[name]) for name, tensor in update.tensors.items())
        assert case.trained() == again.trained() != []


@pytest.mark.parametrize(
    ("kind", "drawn"),
    [
        ("autocast", {("precision", "bf16"), ("precision", "fp16")}),
        ("sent", {("send", "fp16"), ("send", "bf16"), ("send", "int8"), ("send", "int8-tensor")}),
        ("clients", {("clients", 2), ("clients", 3), ("clients", 4)}),
    ],
)
def test_clients_options_are_drawn_and_told(cases: ModuleType, kind: str, drawn: set[Any]) -> None:
    seen, dropouts = set(), set()
    for number in range(16):
        case = cases.Case("small", TEXTS, number, [kind])
        protocol = case.update().protocol
        (name,) = {name for name, _ in drawn}
        seen.add((name, getattr(protocol, name)))
        dropouts.add(case.dropout)
        assert case.how == f"{name} {getattr(protocol, name)}"
    assert seen == drawn
    assert dropouts == {False, True}


@pytest.mark.parametrize(("kind", "optimizer"), [("local sgd", "sgd"), ("adamw", "adamw")])
def test_local_steps_are_drawn_and_told(cases: ModuleType, kind: str, optimizer: str) -> None:
    steps = set()
    for number in range(12):
        case = cases.Case("small", TEXTS, number, [kind])
        training = case.update().protocol.training
        assert training.optimizer == optimizer
        steps.add(training.steps)
    assert len(steps - {None}) > 2
    assert steps - {None} <= set(range(1, 9))


def test_texts_that_no_step_came_to_were_not_trained_on(cases: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.Case("small", TEXTS, 0, ["local sgd"])
    batch = [(text, 0) for text in TEXTS[:3]]
    case.batches = [batch]
    chosen = iter([1, 1e-3, 0.0, "constant", 0.0])  # texts in a mini-batch, rate, weight decay, schedule, clipping
    monkeypatch.setattr(case.draw, "choice", lambda values: next(chosen))
    monkeypatch.setattr(case.draw, "random", lambda: 1.0)
    monkeypatch.setattr(case.draw, "randint", lambda least, most: 2)
    assert case._local(batch, "sgd", [1e-3]).steps == 2
    assert case.batches == [batch[:2]]


def test_noise_is_added_to_every_tensor(cases: ModuleType) -> None:
    case = cases.Case("small", TEXTS, 3, ["noise"])
    noisy = case.update()
    honest = case._sent(case.batches[0])
    assert all(not torch.equal(noisy.tensors[name], tensor) for name, tensor in honest.tensors.items())


@pytest.mark.parametrize("kept", [1, 3])
def test_an_update_of_few_tensors_is_altered(cases: ModuleType, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    bare = cases.Case._bare

    def shortened(case: Any, *arguments: Any) -> Any:
        update = bare(case, *arguments)
        return update.with_tensors(dict(list(update.tensors.items())[-kept:]))

    monkeypatch.setattr(cases.Case, "_bare", shortened)
    drawn = set()
    for number in range(12):
        case = cases.Case("small", TEXTS, number, ["altered"])
        assert len(case.update().tensors) == kept
        drawn.add(case.how.split(", ")[1])
    assert f"{kept} of {kept} tensors" in drawn


@dataclass
class Found:
    token_ids: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...] = (0,)
    copies: tuple[int, ...] = (1,)
    verified: bool = False
    complete: bool = False
    labels_verified: bool = False


def test_claims_are_held_against_what_was_trained_on(cases: ModuleType, script: ModuleType) -> None:
    case = cases.Case("small", TEXTS, 0, ["adamw"])
    case.batches = [[(TEXTS[0], 1), (TEXTS[1], 0)]]
    trained = {tuple(ids): times for ids, times in case.trained()}
    first, second = trained

    def wrong(*ids: tuple[int, ...], **claims: Any) -> list[str]:
        usual = {"labels": (0,) * len(ids), "copies": (1,) * len(ids)}
        return list(script._wrong(Found(ids, **(usual | claims)), case, trained))

    assert wrong((7, 8)) == []
    assert wrong(first, verified=True) == []
    assert wrong(first, second, verified=True, complete=True) == []
    assert wrong(first, (7, 8), verified=True) == ["verified a text that was not trained on"]
    assert wrong(first, verified=True, complete=True) == ["complete, and it is not"]
    assert wrong(first, verified=True, copies=(2,)) == ["more copies than there were"]
    assert wrong(first, labels_verified=True) == ["labels verified, and they are wrong"]
    assert wrong(first, labels_verified=True, labels=(1,)) == []


def test_kinds_are_drawn_by_their_weights_from_those_chosen(
    script: ModuleType, cases: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    class Attack:
        def __call__(self, target: Any, update: Any, *, budget: float) -> Any:
            raise RuntimeError("enough")

    monkeypatch.setattr(script, "find_attack", lambda name: Attack)
    monkeypatch.setattr(cases.Case, "update", lambda case: drawn.append(case.kind))
    for number in range(30):
        item = {"case": number, "texts": TEXTS, "model": "small", "attack": "sieve", "budget": 1.0}
        row = script._run(item | {"kinds": "altered,noise"})
        assert row["wrong"] == ["crashed: RuntimeError: enough"]
    wanted = [random.Random(number).choice(["altered"] * 4 + ["noise"]) for number in range(30)]
    assert Counter(drawn) == Counter(wanted)


def test_what_is_refused_in_a_line_is_counted_apart(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Attack:
        def __call__(self, target: Any, update: Any, *, budget: float) -> Any:
            raise GradleakError("nothing to read")

    monkeypatch.setattr(script, "find_attack", lambda name: Attack)
    item = {"texts": TEXTS, "model": "small", "attack": "sieve", "budget": 1.0, "kinds": "honest"}
    rows = [script._run({**item, "case": number}) for number in range(2)]
    assert [(row["refused"], row["wrong"]) for row in rows] == [("nothing to read", [])] * 2
    script._report(rows)
    by_kind, by_target = (line for line in capsys.readouterr().out.splitlines() if line.startswith(("honest", "small")))
    assert by_kind.split() == ["honest", "2", "0", "0", "0", "0", "0", "2", "0", "0"]
    assert by_target.split()[1:] == by_kind.split()[1:]


def test_a_misspelt_kind_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--kinds", "noise,adam"])
    with pytest.raises(SystemExit):
        script.main()
    assert "no kind named adam; there are honest, scaled," in capsys.readouterr().err


def test_a_case_is_attacked_and_judged(script: ModuleType) -> None:
    item = {"case": 4, "texts": TEXTS, "model": "small", "attack": "sieve", "budget": 5.0, "kinds": "sent"}
    row = script._run(item)
    assert (row["kind"], row["wrong"]) == ("sent", [])
    assert row["how"].startswith("send ")
