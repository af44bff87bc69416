"""Under dropout the rest of an update must not contradict what its first layer shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradleak.attacks import Sieve
from gradleak.exchange import Knowledge, Reconstruction, Update
from gradleak.federation import Client, FedAvg
from gradleak.leakage.perturbation import MAPS_PRUNED
from gradleak.targets import Target, load_target
from wide_targets import ids_of

TEXTS = ["my father lost all his money", "she never spoke about the war"]
OTHERS = ["the doctor says my son is ill", "he sold the old house"]


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny", 2)


def dropped(target: Target, texts: list[str] = TEXTS, seed: int = 3, **client: object) -> Update:
    return Client(target, dropout=True, seed=seed, **client).update(texts, [0, 1, 0, 1][: len(texts)])  # type: ignore[arg-type]


def forged(target: Target, change: Callable[[str, Tensor], Tensor]) -> Reconstruction:
    """Attack the first layer's maps of one batch with everything else changed."""
    layer = target.layers[0]
    kept = {name for part in (layer.query, layer.key, layer.value) for name in (part.weight, part.bias)}
    update = dropped(target)
    return Sieve()(target, Update({n: t if n in kept else change(n, t) for n, t in update.tensors.items()}))


def assert_read_and_not_verified(result: Reconstruction, target: Target) -> None:
    assert sorted(result.token_ids) == sorted(ids_of(target, TEXTS))
    assert not result.verified
    assert any(note.startswith("not confirmed: the first layer shows these texts") for note in result.notes)


def test_an_honest_update_is_verified_and_not_called_complete(tiny: Target) -> None:
    for seed in range(4):
        result = Sieve()(tiny, dropped(tiny, seed=seed))
        assert sorted(result.token_ids) == sorted(ids_of(tiny, TEXTS))
        assert result.verified
        assert not result.complete
        assert not result.labels_verified
        assert any("equations more than unknowns" in note for note in result.notes)


def test_zeros_where_half_precision_has_no_smaller_number_contradict_nothing(tiny: Target) -> None:
    update = dropped(tiny, TEXTS[:1])
    small = {name: (0.003 * tensor).half().float() for name, tensor in update.tensors.items()}
    assert float((small["bert.encoder.layer.0.attention.self.query.weight"] == 0).double().mean()) > MAPS_PRUNED
    assert Sieve()(tiny, Update(small)).verified
    name = "bert.encoder.layer.2.intermediate.dense.weight"
    pruned = torch.where(small[name].abs() < small[name].abs().median(), 0.0, small[name])
    assert not Sieve()(tiny, Update({**small, name: pruned})).verified


def test_everything_else_of_another_text_contradicts(tiny: Target) -> None:
    other = dropped(tiny, OTHERS, seed=4).tensors
    assert sum(tiny.encode(OTHERS).lengths) == sum(tiny.encode(TEXTS).lengths)  # no rank gives it away
    assert_read_and_not_verified(forged(tiny, lambda name, _: other[name]), tiny)


def test_noise_in_place_of_everything_else_contradicts(tiny: Target) -> None:
    generator = torch.Generator().manual_seed(0)
    result = forged(tiny, lambda _, t: t.std() * torch.randn(t.shape, generator=generator))
    assert_read_and_not_verified(result, tiny)


def test_pruning_everything_else_contradicts(tiny: Target) -> None:
    assert_read_and_not_verified(forged(tiny, lambda _, t: t * (t.abs() > t.abs().mean())), tiny)


def test_zeros_in_place_of_everything_else_contradict(tiny: Target) -> None:
    assert_read_and_not_verified(forged(tiny, lambda _, t: torch.zeros_like(t)), tiny)


def test_zeros_without_dropout_are_no_crash(tiny: Target) -> None:
    layer = tiny.layers[0]
    kept = {part.weight for part in (layer.query, layer.key, layer.value)}
    update = Client(tiny).update(TEXTS, [0, 1])
    empty = Update({n: t if n in kept else torch.zeros_like(t) for n, t in update.tensors.items()})
    assert not Sieve()(tiny, empty, budget=10.0).verified


@pytest.mark.parametrize("dropout", [False, True])
def test_an_empty_table_of_words_rules_no_words_out(tiny: Target, dropout: bool) -> None:
    update = Client(tiny, dropout=dropout, embeddings="trained").update(TEXTS, [0, 1])
    empty = Update({n: torch.zeros_like(t) if n in tiny.word_parameters else t for n, t in update.tensors.items()})
    result = Sieve()(tiny, empty, budget=20.0)
    assert sorted(result.token_ids) == sorted(ids_of(tiny, TEXTS))
    assert not result.complete


@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_a_scaled_map_of_the_second_layer_contradicts(tiny: Target, factor: float) -> None:
    value = tiny.layers[1].value.weight
    update = dropped(tiny)
    scaled = Update({n: factor * t if n == value else t for n, t in update.tensors.items()})
    assert_read_and_not_verified(Sieve()(tiny, scaled), tiny)


def test_one_map_of_another_text_contradicts(tiny: Target) -> None:
    update, other = dropped(tiny), dropped(tiny, OTHERS, seed=4)
    part = tiny.layers[1].feed_forward_in
    mixed = Update({n: other.tensors[n] if n in (part.weight, part.bias) else t for n, t in update.tensors.items()})
    assert_read_and_not_verified(Sieve()(tiny, mixed), tiny)


def test_biases_of_another_text_in_the_first_layer_contradict(tiny: Target) -> None:
    update, other = dropped(tiny), dropped(tiny, OTHERS, seed=4)
    bias = tiny.layers[0].value.bias
    mixed = Update({n: other.tensors[n] if n == bias else t for n, t in update.tensors.items()})
    assert_read_and_not_verified(Sieve()(tiny, mixed), tiny)


def test_two_averaged_dropout_passes_are_two_texts_found_twice(tiny: Target) -> None:
    first, second = (dropped(tiny, seed=seed).tensors for seed in (1, 2))
    result = Sieve()(tiny, Update({name: (first[name] + second[name]) / 2 for name in first}))
    assert sorted(result.token_ids) == sorted(ids_of(tiny, TEXTS))
    assert result.copies == (2, 2)
    assert not result.complete
    assert any("at least once" in note for note in result.notes)


def test_two_local_steps_on_one_text_are_one_text(tiny: Target) -> None:
    result = Sieve()(tiny, dropped(tiny, TEXTS[:1], fedavg=FedAvg(steps=2, lr=10.0)))
    assert set(result.token_ids) == set(ids_of(tiny, TEXTS[:1]))
    assert len(result.token_ids) == 1
    assert not result.complete


@pytest.mark.parametrize("dropout", [False, True])
def test_a_text_beside_one_that_leaves_no_trace_is_not_called_complete(tiny: Target, dropout: bool) -> None:
    update = Client(tiny, dropout=dropout).update(TEXTS[:1], [1])
    halved = Update({name: tensor / 2 for name, tensor in update.tensors.items()})  # the other's gradient is zero
    result = Sieve()(tiny, halved)
    assert result.token_ids == tuple(ids_of(tiny, TEXTS[:1]))
    assert result.verified
    assert not result.complete


def test_a_text_that_fills_the_batch_twice_is_reported_once(tiny: Target) -> None:
    result = Sieve()(tiny, Client(tiny).update([TEXTS[0], TEXTS[0], TEXTS[1]], [1, 1, 0]))
    assert sorted(result.token_ids) == sorted(ids_of(tiny, TEXTS))
    assert result.complete
    assert any(note.startswith("the texts weigh ") for note in result.notes)
    told = Sieve()(tiny, Client(tiny).update([TEXTS[0], TEXTS[0], TEXTS[1]], [1, 1, 0]), Knowledge(batch_size=3))
    first, second = ids_of(tiny, TEXTS)
    assert dict(zip(told.token_ids, told.copies, strict=True)) == {first: 2, second: 1}
    alone = Sieve()(tiny, Client(tiny).update([TEXTS[0]] * 2, [1, 1]))
    assert alone.token_ids == tuple(ids_of(tiny, TEXTS[:1]))
