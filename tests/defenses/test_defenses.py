"""Every defense does what it says, leaves the original alone, and survives a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import small_target
from gradleak.defenses import (
    DEFENSES,
    DPSGD,
    Clip,
    Defense,
    Laplace,
    Mask,
    Noise,
    Prune,
    PruneGlobal,
    Sign,
    TopK,
    defend,
    defense_stream,
)
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg

EXAMPLES: list[Defense] = [
    Noise(0.1),
    Laplace(0.1),
    Prune(0.5),
    PruneGlobal(0.5),
    Mask(0.5),
    TopK(0.1),
    Sign(),
    Clip(0.5),
    DPSGD(0.5, 0.1),
]
ZEROING: list[Defense] = [Prune(0.7), PruneGlobal(0.7), Mask(0.7), TopK(0.3)]
SHAPES = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=3)


def random_update(shapes: list[list[int]] | None = None, seed: int = 0) -> Update:
    stream = torch.Generator().manual_seed(seed)
    return Update({f"t{i}": torch.randn(s, generator=stream) for i, s in enumerate(shapes or [[30, 40], [7]])})


def flat(update: Update) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in update.tensors.values()])


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


@given(scale=st.floats(0.01, 10), seed=st.integers(0, 1000))
def test_laplacian_noise_has_the_scale_and_the_tails_of_its_distribution(scale: float, seed: int) -> None:
    noise = Laplace(scale).apply(Update({"w": torch.zeros(400, 500)}), stream(seed)).tensors["w"].double() / scale
    # Of 200,000 draws: mean 0 ± 0.0032, mean magnitude 1 ± 0.0022, variance 2 ± 0.01, kurtosis 6 ± 0.11 or so.
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.abs().mean()) - 1) < 0.014
    assert abs(float(noise.var()) - 2) < 0.06
    assert 5 < float(noise.pow(4).mean() / noise.var() ** 2) < 7.5


@pytest.mark.parametrize("kind", [Noise, Laplace])
def test_noise_of_two_tensors_is_not_the_same(kind: type[Noise] | type[Laplace]) -> None:
    noisy = kind(1.0).apply(Update({"a": torch.zeros(50), "b": torch.zeros(50)}), stream()).tensors
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


@given(share=st.floats(0, 0.999), sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_global_pruning_zeroes_the_share_of_smallest_entries_of_all(share: float, sizes: list[int], seed: int) -> None:
    update = random_update([[size] for size in sizes], seed)
    before, after = flat(update), flat(PruneGlobal(share).apply(update, stream()))
    kept = after != 0
    assert int((~kept).sum()) == int(share * before.numel())
    assert torch.equal(after[kept], before[kept])
    if kept.any() and not kept.all():
        assert before[kept].abs().min() >= before[~kept].abs().max()


def test_global_pruning_empties_a_tensor_of_small_entries_and_pruning_each_does_not() -> None:
    update = Update({"large": torch.full((10,), 5.0), "small": torch.full((10,), 0.1)})
    everywhere, each = (d.apply(update, stream()).tensors["small"] for d in (PruneGlobal(0.5), Prune(0.5)))
    assert not everywhere.any()
    assert int((each != 0).sum()) == 5


@given(share=st.floats(0, 0.99), seed=st.integers(0, 1000))
def test_mask_zeroes_about_the_share_and_keeps_the_rest(share: float, seed: int) -> None:
    tensor = torch.randn(10_000, generator=stream(seed)) + 10
    sent = Mask(share).apply(Update({"w": tensor}), stream(seed + 1)).tensors["w"]
    kept = sent != 0
    spread = math.sqrt(share * (1 - share) / 10_000)
    assert abs(float((~kept).double().mean()) - share) <= 6 * spread + 1e-3
    assert torch.equal(sent[kept], tensor[kept])


def test_mask_does_not_look_at_magnitudes() -> None:
    tensor = torch.cat([torch.full((5000,), 0.001), torch.full((5000,), 100.0)])
    kept = Mask(0.5).apply(Update({"w": tensor}), stream()).tensors["w"] != 0
    assert abs(int(kept[:5000].sum()) - int(kept[5000:].sum())) < 300  # 50 is one standard deviation


def test_mask_is_new_in_every_round() -> None:
    generator = stream()
    first, second = (Mask(0.5).apply(random_update(), generator).tensors["t0"] != 0 for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("defense", ZEROING, ids=str)
def test_zero_in_place_of_a_negative_entry_does_not_give_its_sign_away(defense: Defense) -> None:
    sent = defense.apply(Update({"w": -torch.rand(100, generator=stream()) - 0.1}), stream()).tensors["w"]
    assert (sent == 0).any()
    assert not torch.signbit(sent[sent == 0]).any()


@given(share=st.floats(0.001, 1), rounds=st.integers(1, 6), seed=st.integers(0, 1000))
def test_error_feedback_loses_nothing_over_the_rounds(share: float, rounds: int, seed: int) -> None:
    memory: dict[str, torch.Tensor] = {}
    made = [random_update([[6, 7], [5]], seed + number) for number in range(rounds)]
    sent = [TopK(share).apply(update, stream(), memory) for update in made]
    left = Update(memory)
    assert torch.allclose(sum(map(flat, sent)) + flat(left), sum(map(flat, made)), atol=1e-5)
    assert all(int((flat(update) != 0).sum()) <= max(1, int(share * 47)) for update in sent)


@given(share=st.floats(0.02, 1), seed=st.integers(0, 1000))
def test_topk_without_memory_sends_the_largest_share_and_starts_afresh(share: float, seed: int) -> None:
    update = random_update([[30], [20]], seed)
    first, second = (flat(TopK(share).apply(update, stream())) for _ in range(2))
    assert torch.equal(first, second)
    assert int((first != 0).sum()) == max(1, int(share * 50))
    assert (
        flat(update).abs()[first != 0].min() >= first.new_tensor(sorted(flat(update).abs()))[-int((first != 0).sum())]
    )


def test_what_is_small_in_every_round_is_sent_in_the_end() -> None:
    memory: dict[str, torch.Tensor] = {}
    update = Update({"w": torch.tensor([1.0, 0.3])})
    sent = [TopK(0.5).apply(update, stream(), memory).tensors["w"].tolist() for _ in range(8)]
    assert sent[:3] == [[1.0, 0.0]] * 3
    assert any(small for _, small in sent)


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


@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
def test_a_client_of_federated_averaging_can_be_defended(defense: Defense) -> None:
    target = small_target("bert")
    update = Client(target, fedavg=FedAvg(steps=2, lr=0.1)).update(["the cat sat"], [1])
    after = defense.apply(update, stream())
    after.check(target)
    assert (after.kind, after.learning_rate, after.steps, after.origin) == ("difference", 0.1, 2, update.origin)
    assert set(after.gradient()) == set(update.tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("defense", EXAMPLES, ids=str)
def test_number_format_stays(defense: Defense, dtype: torch.dtype) -> None:
    assert defense.apply(random_update().to("cpu", dtype), stream()).tensors["t0"].dtype == dtype


@pytest.mark.parametrize("kind", DEFENSES.values(), ids=list(DEFENSES))
def test_summary_is_one_line(kind: type[Defense]) -> None:
    assert 10 < len(kind.summary) < 90
    assert "\n" not in kind.summary


def test_defend_applies_all_in_order() -> None:
    update = random_update()
    norm = math.sqrt(update.num_values)
    by_hand = Clip(2.0).apply(Sign().apply(update, stream()), stream())
    together = defend(update, [Sign(), Clip(2.0)], stream())
    assert norm > 2
    assert all(torch.equal(by_hand.tensors[name], together.tensors[name]) for name in by_hand.tensors)


def test_two_defenses_of_a_kind_do_not_share_their_memory() -> None:
    memory: dict[str, object] = {}
    update = random_update()
    for _ in range(3):
        defend(update, [TopK(0.5), Sign(), TopK(0.5)], stream(), memory)
    assert list(memory) == ["0 topk:0.5", "1 sign", "2 topk:0.5"]
    rest = [memory["0 topk:0.5"], memory["2 topk:0.5"]]
    assert not torch.equal(flat(Update(rest[0])), flat(Update(rest[1])))  # type: ignore[arg-type]


def test_defense_stream_comes_from_the_seed_and_is_no_one_elses() -> None:
    draws = [torch.randn(4, generator=defense_stream(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], torch.randn(4, generator=stream(0)))
