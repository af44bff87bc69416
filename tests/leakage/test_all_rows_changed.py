"""Updates whose word embeddings changed in all rows: AdamW's weight decay, or noise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gradleak.attacks import find_attack
from gradleak.attacks.auto import plan
from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update, Victim
from gradleak.federation import Client
from gradleak.leakage.evidence import examine
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.tokens import all_rows_changed, observed_tokens
from gradleak.targets import Target, load_target

TEXTS = ("the patient was given ten milligrams", "my card was stolen on monday")
LABELS = (1, 0)


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny")


def trained_with_adamw(
    target: Target, texts: Sequence[str], *, steps: int = 2, lr: float = 5e-5, weight_decay: float = 0.01
) -> dict[str, Tensor]:
    """Return weights after minus weights before, as any training loop makes them."""
    before = {name: parameter.detach().clone() for name, parameter in target.parameters.items()}
    weights = {name: value.clone().requires_grad_() for name, value in before.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=lr, weight_decay=weight_decay)
    tokens, labels = target.encode(texts), torch.tensor(LABELS[: len(texts)])
    for _ in range(steps):
        optimizer.zero_grad()
        target.loss_with(weights, tokens.ids, tokens.mask, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: weights[name].detach() - before[name] for name in weights}


def words_of(target: Target, texts: Sequence[str]) -> list[int]:
    rows = target.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return sorted({token for row in rows for token in row})


@pytest.mark.parametrize("settings", [{}, {"steps": 1, "lr": 1e-3}, {"weight_decay": 0.1}, {"weight_decay": 0.0}])
def test_words_stand_out_from_weight_decay(tiny: Target, settings: dict[str, float]) -> None:
    gradient = trained_with_adamw(tiny, TEXTS, **settings)  # type: ignore[arg-type]
    assert all_rows_changed(tiny, gradient) == (settings.get("weight_decay") != 0.0)
    assert observed_tokens(tiny, gradient).tolist() == words_of(tiny, TEXTS)


def test_positions_that_weight_decay_moved_are_not_taken_for_a_long_text(tiny: Target) -> None:
    """The key biases are set to zero, which otherwise look like noise."""
    gradient = trained_with_adamw(tiny, TEXTS)
    quiet = {name: value * (not name.endswith("key.bias")) for name, value in gradient.items()}
    assert longest_length(tiny, quiet) is None


def test_words_stand_out_from_small_noise(tiny: Target) -> None:
    update = Client(tiny, embeddings="trained").update(TEXTS, LABELS)
    noisy = defend(update, [parse_defense("noise:1e-6")], torch.Generator().manual_seed(0))
    assert observed_tokens(tiny, noisy.gradient()).tolist() == words_of(tiny, TEXTS)


@pytest.fixture(scope="module")
def unclear(tiny: Target) -> Update:
    """Return an update all of whose word rows changed alike: weight decay alone, as on a frozen table."""
    update = Client(tiny, embeddings="trained").update(TEXTS[:1], LABELS[:1])
    (table,) = tiny.word_parameters
    return update.with_tensors({**update.tensors, table: -1e-3 * tiny.word_embeddings.detach()})


@pytest.mark.parametrize("name", ["edr", "fet"])
def test_attacks_that_need_the_words_refuse_before_they_start(tiny: Target, unclear: Update, name: str) -> None:
    with pytest.raises(GradleakError, match="does not tell them apart: all rows changed, as AdamW or noise do"):
        find_attack(name)().check(tiny, unclear, Knowledge())
    noisy = defend(unclear, [parse_defense("noise:0.01")], torch.Generator().manual_seed(0))
    with pytest.raises(GradleakError, match="all rows changed"):
        find_attack(name)().check(tiny, noisy, Knowledge())


def test_auto_leaves_out_attacks_that_refuse(tiny: Target, unclear: Update) -> None:
    victim = Victim(unclear.gradient(), Knowledge(), torch.Generator())
    planned = [attack.name for attack in plan(tiny, victim, examine(tiny, victim.gradient))]
    assert planned
    assert not {"edr", "fet"} & set(planned)
