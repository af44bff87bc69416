"""DP-SGD bounds every example and adds the noise it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import small_target
from gradleak.defenses import (
    DPSGD,
    Clip,
    Defense,
    Noise,
    Sign,
    TopK,
    defend,
    defend_examples,
    examples_needed,
)
from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def examples(count: int, seed: int, scale: float = 1.0) -> list[Update]:
    draws = stream(seed)
    return [
        Update({name: scale * torch.randn(shape, generator=draws) for name, shape in (("a", (4, 5)), ("b", (3,)))})
        for _ in range(count)
    ]


def flat(update: Update) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in update.tensors.values()]).double()


@given(count=st.integers(1, 6), norm=st.floats(1e-2, 1e2), seed=st.integers(0, 1000))
def test_without_noise_it_is_the_mean_of_clipped_examples(count: int, norm: float, seed: int) -> None:
    updates = examples(count, seed)
    sent = defend_examples(updates, [DPSGD(norm, 0.0)], stream())
    clipped = [flat(update) * min(1.0, norm / float(flat(update).norm())) for update in updates]
    assert torch.allclose(flat(sent), torch.stack(clipped).mean(dim=0), rtol=1e-4, atol=1e-6 * norm)


@given(norm=st.floats(1e-2, 1e2), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_replacing_one_example_moves_the_mean_by_at_most_two_norms_over_the_batch(
    norm: float, scale: float, seed: int
) -> None:
    updates = examples(4, seed)
    others = [*updates[:3], *examples(1, seed + 1, scale)]
    first, second = (flat(defend_examples(batch, [DPSGD(norm, 0.0)], stream())) for batch in (updates, others))
    assert float((first - second).norm()) <= 2 * norm / 4 * (1 + 1e-4)


@given(deviation=st.floats(0.01, 10), count=st.integers(1, 5), seed=st.integers(0, 1000))
def test_noise_on_the_mean_has_the_deviation_whatever_the_batch_size(deviation: float, count: int, seed: int) -> None:
    nothing = [Update({"w": torch.zeros(100, 100)})] * count
    noise = flat(defend_examples(nothing, [DPSGD(1.0, deviation)], stream(seed)))
    # 10,000 draws: the mean strays by sigma / 100 and the deviation by sigma / 141; six times that never happens.
    assert abs(float(noise.mean())) < 0.06 * deviation
    assert abs(float(noise.std()) / deviation - 1) < 0.043


def test_noise_multiplier_is_the_noise_on_the_sum_in_clipping_norms() -> None:
    defense = DPSGD(norm=0.5, deviation=0.01)
    assert defense.noise_multiplier(batch_size=32) == pytest.approx(0.01 * 32 / 0.5)
    nothing = [Update({"w": torch.zeros(200, 200)})] * 32
    sum_of_batch = 32 * flat(defense.apply_examples(nothing, stream()))
    assert float(sum_of_batch.std()) == pytest.approx(defense.noise_multiplier(32) * 0.5, rel=0.03)
    assert DPSGD(1.0, 0.02).noise_multiplier(1) == 0.02


def test_examples_are_gone_through_once_and_left_alone() -> None:
    updates = examples(3, 0, scale=100)
    before = [flat(update) for update in updates]
    sent = [defend_examples(some, [DPSGD(1.0, 0.1)], stream(4)) for some in (updates, iter(updates))]
    assert torch.equal(flat(sent[0]), flat(sent[1]))
    assert all(torch.equal(flat(update), old) for update, old in zip(updates, before, strict=True))


def test_an_update_of_one_example_needs_no_list() -> None:
    [update] = examples(1, 0)
    alone, listed = DPSGD(1.0, 0.1).apply(update, stream()), DPSGD(1.0, 0.1).apply_examples([update], stream())
    assert torch.equal(flat(alone), flat(listed))


@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=2, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_updates_of_a_clients_examples_average_to_that_of_the_batch(fedavg: FedAvg | None) -> None:
    target = small_target("bert")
    texts, labels = ["the cat sat", "a big red dog ran"], [1, 0]
    client = Client(target, fedavg=fedavg)
    alone = (client.update([text], [label]) for text, label in zip(texts, labels, strict=True))
    sent = defend_examples(alone, [DPSGD(1e6, 0.0)], stream())
    sent.check(target)
    together = client.update(texts, labels)
    assert (sent.kind, sent.learning_rate, sent.steps) == (together.kind, together.learning_rate, together.steps)
    if fedavg is None:  # with local steps the examples' weights part after the first one
        assert all(torch.allclose(sent.tensors[n], t, atol=1e-5) for n, t in together.tensors.items())


def test_other_defenses_follow() -> None:
    memory: dict[str, object] = {}
    sent = defend_examples(examples(3, 0), [DPSGD(1.0, 0.1), Sign(), TopK(0.5)], stream(), memory)
    assert set(flat(sent).tolist()) <= {-1.0, 0.0, 1.0}
    assert "2 topk:0.5" in memory


@pytest.mark.parametrize(
    ("defenses", "needed"),
    [([], False), ([Clip(1.0), Noise(0.1)], False), ([DPSGD(1.0, 0.1)], True), ([DPSGD(1.0, 0.1), Sign()], True)],
    ids=str,
)
def test_whether_examples_are_needed_is_known_beforehand(defenses: list[Defense], needed: bool) -> None:
    assert examples_needed(defenses) is needed


def test_wrong_order_and_wrong_function_are_told_in_one_line() -> None:
    dpsgd = DPSGD(1.0, 0.1)
    [update] = examples(1, 0)
    late = "defense dpsgd needs the update of each example: it must come first, and only once"
    for defenses in ([Sign(), dpsgd], [dpsgd, dpsgd]):
        for call in (
            lambda chosen=defenses: examples_needed(chosen),
            lambda chosen=defenses: defend(update, chosen, stream()),
            lambda chosen=defenses: defend_examples([update], chosen, stream()),
        ):
            with pytest.raises(GradleakError) as caught:
                call()
            assert str(caught.value) == late
    with pytest.raises(GradleakError, match="needs the update of each example, not that of the batch"):
        defend(update, [dpsgd], stream())
    with pytest.raises(GradleakError, match="change the update of a batch"):
        defend_examples([update], [Sign()], stream())
    with pytest.raises(GradleakError, match="defense sign changes the update of a batch"):
        Sign().apply_examples([update], stream())
    with pytest.raises(GradleakError, match="at least one example"):
        defend_examples([], [dpsgd], stream())
