"""What a result means, in words that are true and commands that are not refused."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import Auto, Sieve, find_attack
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Update
from gradleak.exchange.verdict import verdict_on
from gradleak.federation import Client
from gradleak.targets import Target, load_target

TEXT = "my father lost all his money"
NOTHING, ALL = Knowledge(), Knowledge(labels=[1], lengths=[8])


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny", 2)


def finding(**changes: object) -> Finding:
    return Finding([[101, 2026, 102]], [1], 0.5, **changes)  # type: ignore[arg-type]


def test_a_guess_is_not_called_safe_and_its_next_steps_fit() -> None:
    verdict = verdict_on("lamp", finding(), NOTHING, out_of_time=True)
    assert "does not mean safe" in verdict.meaning
    assert [step.split(":")[0] for step in verdict.next_steps] == [
        "let gradleak choose the attacks that fit",
        "give it more time",
        "tell the attacker more",
    ]
    assert verdict_on("auto", finding(), ALL, out_of_time=False).next_steps == ()


def test_what_is_proven_says_what_is_not() -> None:
    proven = verdict_on("sieve", finding(verified=True), NOTHING, out_of_time=False)
    assert proven.meaning.startswith("Leak confirmed")
    assert any("other texts" in line for line in proven.not_tested)
    assert any("labels" in line for line in proven.not_tested)
    whole = verdict_on("sieve", finding(verified=True, complete=True, labels_verified=True), ALL, out_of_time=False)
    assert len(whole.not_tested) == 1


def test_nothing_read_speaks_of_no_texts() -> None:
    verdict = verdict_on("sieve", Finding([], None, 1.0), NOTHING, out_of_time=False)
    assert verdict.meaning.startswith("Nothing was read")
    assert "whether these texts were trained on" not in verdict.not_tested


def test_a_rounded_update_that_its_texts_explain_is_hardly_in_doubt(tiny: Target) -> None:
    update = Client(tiny).update([TEXT], [1])
    rounded = Update({name: tensor.bfloat16().float() for name, tensor in update.tensors.items()})
    result = Sieve()(tiny, rounded)
    assert result.texts == (TEXT,)
    assert not result.verified
    assert "hardly in doubt" in result.verdict


def test_an_update_of_zeros_is_refused_in_one_line(tiny: Target) -> None:
    update = Client(tiny).update([TEXT], [1])
    zeros = Update({name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()})
    for attack in (Auto(), Sieve(), find_attack("lamp")()):
        with pytest.raises(GradleakError, match="the update is zero throughout"):
            attack(tiny, zeros)


def test_what_the_tokenizer_cannot_represent_is_shown(tiny: Target) -> None:
    result = Sieve()(tiny, Client(tiny).update(["i love \U0001f600 you"], [1]))
    assert result.verified
    assert result.texts == ("i love [UNK] you",)
