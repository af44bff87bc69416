"""Every defense does what it says, leaves the original alone, and survives a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.defenses import DEFENSES, Clip, Defense, Noise, Prune, Sign, defend, defense_stream
from gradleak.exchange import Update

EXAMPLES: list[Defense] = [Noise(0.1), Prune(0.5), Sign(), Clip(0.5)]
SHAPES = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=3)


def random_update(shapes: list[list[int]] | None = None, seed: int = 0) -> Update:
    stream = torch.Generator().manual_seed(seed)
    return Update({f"t{i}": torch.randn(s, generator=stream) for i, s in enumerate(shapes or [[30, 40], [7]])})


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_defense_has_an_example_here() -> None:
    assert {defense.name for defense in EXAMPLES} == set(DEFENSES)


@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
@given(shapes=SHAPES, seed=st.integers(0, 1000))
def test_names_and_shapes_stay_and_the_original_is_untouched(
    defense: Defense, shapes: list[list[int]], seed: int
) -> None:
    update = random_update(shapes, seed)
    before = {name: tensor.clone() for name, tensor in update.tensors.items()}
    after = defense.apply(update, stream(seed))
    assert after is not update
    assert {n: t.shape for n, t in after.tensors.items()} == {n: t.shape for n, t in before.items()}
    for name, tensor in before.items():
        assert torch.equal(update.tensors[name], tensor)
        assert after.tensors[name].dtype == tensor.dtype
        if tensor.numel():
            assert after.tensors[name].data_ptr() != update.tensors[name].data_ptr()


@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
def test_same_stream_gives_same_update(defense: Defense) -> None:
    first, second = (defense.apply(random_update(), stream(3)).tensors for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
def test_protocol_facts_stay(defense: Defense) -> None:
    update = Update({"w": torch.randn(3)}, "difference", 0.1, 4)
    after = defense.apply(update, stream())
    assert (after.kind, after.learning_rate, after.steps) == ("difference", 0.1, 4)


@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
def test_defended_update_survives_a_file(defense: Defense, tmp_path: Path) -> None:
    after = defense.apply(random_update(), stream())
    after.save(tmp_path / "update.safetensors")
    loaded = Update.load(tmp_path / "update.safetensors")
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in after.tensors.items())


@given(sigma=st.floats(0.01, 10), seed=st.integers(0, 1000))
def test_noise_has_the_standard_deviation_asked_for_and_no_mean(sigma: float, seed: int) -> None:
    update = Update({"w": torch.zeros(100, 100)})
    noise = Noise(sigma).apply(update, stream(seed)).tensors["w"]
    # 10,000 draws: the mean strays by sigma / 100 and the deviation by sigma / 141; six times that never happens.
    assert abs(float(noise.mean())) < 0.06 * sigma
    assert abs(float(noise.std()) / sigma - 1) < 0.043


def test_noise_of_two_tensors_is_not_the_same() -> None:
    noisy = Noise(1.0).apply(Update({"a": torch.zeros(50), "b": torch.zeros(50)}), stream()).tensors
    assert not torch.equal(noisy["a"], noisy["b"])


@given(share=st.floats(0, 0.999), size=st.integers(1, 300), seed=st.integers(0, 1000))
def test_prune_zeroes_the_share_of_smallest_entries(share: float, size: int, seed: int) -> None:
    tensor = torch.randn(size, generator=stream(seed))
    pruned = Prune(share).apply(Update({"w": tensor}), stream()).tensors["w"]
    kept = pruned != 0
    assert int((~kept).sum()) == int(share * size)
    assert torch.equal(pruned[kept], tensor[kept])
    if kept.any() and not kept.all():
        assert tensor[kept].abs().min() >= tensor[~kept].abs().max()


def test_prune_counts_equal_entries_one_by_one() -> None:
    assert int((Prune(0.25).apply(Update({"w": torch.ones(8)}), stream()).tensors["w"] == 0).sum()) == 2


@given(seed=st.integers(0, 1000))
def test_sign_sends_minus_one_zero_and_one(seed: int) -> None:
    tensor = torch.randn(50, generator=stream(seed)) * (torch.arange(50) % 5 != 0)
    sent = Sign().apply(Update({"w": tensor}), stream()).tensors["w"]
    assert set(sent.tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(sent * tensor.abs(), tensor)


@given(norm=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_clip_limits_the_norm_of_the_whole_and_keeps_its_direction(norm: float, seed: int) -> None:
    update = random_update([[4, 5], [3]], seed)
    clipped = Clip(norm).apply(update, stream())
    before, after = (torch.cat([t.flatten() for t in u.tensors.values()]).double() for u in (update, clipped))
    assert float(after.norm()) == pytest.approx(min(norm, float(before.norm())), rel=1e-5)
    assert float(torch.cosine_similarity(before, after, dim=0)) == pytest.approx(1.0, abs=1e-6)


def test_clip_of_a_zero_update_is_zero() -> None:
    assert not Clip(1.0).apply(Update({"w": torch.zeros(4)}), stream()).tensors["w"].any()


def test_defend_applies_all_in_order() -> None:
    update = random_update()
    norm = math.sqrt(update.num_values)
    by_hand = Clip(2.0).apply(Sign().apply(update, stream()), stream())
    together = defend(update, [Sign(), Clip(2.0)], stream())
    assert norm > 2
    assert all(torch.equal(by_hand.tensors[name], together.tensors[name]) for name in by_hand.tensors)


def test_defense_stream_comes_from_the_seed_and_is_no_one_elses() -> None:
    draws = [torch.randn(4, generator=defense_stream(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], torch.randn(4, generator=stream(0)))
