"""Sums by kernels equal sums over entries; where kernels do not work, entries are built.

Kernels need a GPU or Triton's interpreter, which must be asked for before anything imports Triton: without a GPU, the
last test runs those of the kernels in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_matcher import close, draw, observe
from torch import Tensor

from conftest import small_target
from gradleak.matching import L1, L2L1, Candidates, Distance, Matcher
from gradleak.matching.elementwise import difference_sums
from gradleak.matching.factors import LowRank
from gradleak.matching.kernels import dispatch as fused
from gradleak.targets import Target

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
Launch = Callable[..., None]


def need_kernels() -> None:
    if DEVICE.type == "cpu" and not INTERPRETED:
        pytest.skip("kernels need a GPU or Triton's interpreter")
    pytest.importorskip("triton")


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are wanted on this device, and none has been tried."""
    monkeypatch.setattr(fused, "DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(fused, "_CHECKED", {})


def written_out(
    kernel: str, _programs: int, tensors: Sequence[Tensor], _sizes: Sequence[int], constants: dict[str, Any]
) -> None:
    """What the kernels do, in a few tensor operations."""
    left, right, observed, absolute, squared, *found = tensors
    seen = (observed.transpose(1, 2) if constants.get("transposed") else observed)[:, None]
    difference = left.transpose(-1, -2) @ right - seen
    if constants["kept_only"]:
        difference = difference * (seen != 0)
    if kernel == "sums":
        share = absolute.shape[2]
        absolute.copy_((difference.abs().sum(dim=(2, 3)) / share)[..., None])
        squared.copy_((difference.square().sum(dim=(2, 3)) / share)[..., None])
    else:
        gradient = absolute[..., None, None] * difference.sign() + 2 * squared[..., None, None] * difference
        found[0].copy_(right @ gradient.transpose(-1, -2))


@pytest.fixture(params=["written out", "kernels"])
def launched(request: pytest.FixtureRequest, wanted: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels, or what they stand for, are used without a check; returns the names of those that ran."""
    if request.param == "kernels":
        need_kernels()
    launch = fused._launch if request.param == "kernels" else written_out
    names: list[str] = []

    def noted(kernel: str, *arguments: Any) -> None:
        names.append(kernel)
        launch(kernel, *arguments)

    monkeypatch.setattr(fused, "_launch", noted)
    monkeypatch.setattr(fused, "fused_sums_work", lambda *_, **__: True)
    return names


def random_case(terms: int, outputs: int, inputs: int, *, victims: int = 2, candidates: int = 3) -> list[Tensor]:
    """Return rows, columns, and observed gradients a third of which is zero."""
    generator = torch.Generator().manual_seed(terms)
    rows, columns = (torch.randn(victims, candidates, terms, side, generator=generator) for side in (outputs, inputs))
    observed = torch.randn(victims, outputs, inputs, generator=generator)
    observed = torch.where(torch.rand(observed.shape, generator=generator) < 1 / 3, 0.0, observed)
    return [rows.to(DEVICE).requires_grad_(), columns.to(DEVICE).requires_grad_(), observed.to(DEVICE)]


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], leaves: list[Tensor]) -> None:
    """Compare sums, and gradients of sums that count differently for every candidate."""
    assert all(a.dtype == torch.float64 and close(a, b, torch.float32) for a, b in zip(found, expected, strict=True))
    weights = torch.arange(1.0, found[0].numel() + 1, dtype=torch.float64, device=DEVICE).view_as(found[0])
    gradients = [
        torch.autograd.grad((weights * absolute + squared / weights).sum(), leaves)
        for absolute, squared in (found, expected)
    ]
    assert all(close(a, b, torch.float32) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("kept_only", [False, True], ids=["all", "kept"])
@pytest.mark.parametrize(
    ("terms", "outputs", "inputs"), [(1, 16, 16), (5, 48, 144), (16, 64, 80), (40, 128, 16), (70, 16, 80)]
)
@pytest.mark.usefixtures("launched")
def test_kernels_equal_sums_over_entries(terms: int, outputs: int, inputs: int, kept_only: bool) -> None:
    rows, columns, observed = random_case(terms, outputs, inputs)
    found = fused.fused_sums(rows, columns, observed, kept_only=kept_only)
    expected = difference_sums(LowRank(rows, columns).dense(), observed, kept_only=kept_only)
    assert_same(found, expected, [rows, columns])


@pytest.mark.usefixtures("launched")
def test_kernels_take_factors_whose_numbers_lie_apart() -> None:
    rows, columns, observed = random_case(6, 32, 48)
    apart = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in (rows, columns, observed)]
    found = fused.fused_sums(apart[0], apart[1], apart[2], kept_only=False)
    assert_same(found, difference_sums(LowRank(rows, columns).dense(), observed, kept_only=False), [rows, columns])


@pytest.mark.usefixtures("launched")
def test_a_candidate_that_is_right_has_no_distance() -> None:
    rows, columns, _ = random_case(12, 64, 64, victims=1, candidates=2)
    observed = LowRank(rows, columns).dense()[:, 0].detach()
    absolute, squared = fused.fused_sums(rows, columns, observed, kept_only=False)
    assert absolute[0, 0] < 1e-5 * absolute[0, 1]  # products rounded to ten bits would leave a thousandth
    assert squared[0, 0] < 1e-10 * squared[0, 1]


@pytest.mark.usefixtures("wanted")
def test_kernels_pass_their_check() -> None:
    need_kernels()
    assert fused.fused_sums_work(DEVICE, 20, kept_only=True)


@pytest.fixture
def aligned() -> Target:
    """A model whose matrices are of the sizes that kernels take."""
    return small_target("bert", "classification", intermediate_size=32).to(DEVICE)


def candidates_of(
    target: Target, shape: tuple[int, int, int, int], *, seed: int = 0, embedded: bool = False
) -> Candidates:
    drawn = draw(target, shape, seed, embedded=embedded)
    return Candidates(*(tensor.to(DEVICE) for tensor in (drawn.inputs, drawn.mask, drawn.labels)))


def both_ways(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a call gives with kernels and without."""
    found = run()
    monkeypatch.setattr(fused, "fused_sums_work", lambda *_, **__: False)
    return found, run()


@pytest.mark.parametrize(
    "distance", [L1(), L2L1(alpha=0.5), L2L1(kept_only=True), L1(normalised=True, kept_only=True)], ids=repr
)
def test_engine_gives_the_same_with_kernels(
    aligned: Target, distance: Distance, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = observe(aligned, 2, prune=distance.kept_only)
    candidates = candidates_of(aligned, (2, 2, 2, 5), embedded=True)
    candidates.inputs.requires_grad_()
    layer = aligned.layers[0]
    names = [layer.query.weight, layer.feed_forward_in.weight, layer.feed_forward_in.bias]
    matcher = Matcher(aligned, observed, distance, names)
    found, expected = both_ways(monkeypatch, lambda: matcher.gradients(candidates))
    assert {"sums", "gradients"} == set(launched)
    assert close(found[0], expected[0], torch.float32)
    assert close(found[1]["inputs"], expected[1]["inputs"], torch.float32)


@pytest.mark.parametrize(
    ("distance", "fits"), [(L2L1(), True), (L2L1(kept_only=True), False), (L2L1(normalised=True), False)], ids=repr
)
def test_replacing_one_sequence_gives_the_same_with_kernels(
    aligned: Target, distance: Distance, fits: bool, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = observe(aligned, 2, prune=distance.kept_only)
    base, new = candidates_of(aligned, (2, 1, 2, 5)), candidates_of(aligned, (2, 3, 1, 5), seed=1)
    held = Matcher(aligned, observed, distance, [aligned.layers[1].value.weight]).with_fixed_sequences(base, 0)
    found, expected = both_ways(monkeypatch, lambda: held(new))
    assert bool(launched) is fits
    assert close(found, expected, torch.float32)


def spoiled(kernel: str, which: int) -> Launch:
    """Return kernels one result of which is one part in a thousand too large."""

    def launch(name: str, _programs: int, tensors: Sequence[Tensor], *rest: Any) -> None:
        written_out(name, _programs, tensors, *rest)
        if name == kernel:
            tensors[which].mul_(1.001)

    return launch


def forgets_what_was_kept(*arguments: Any) -> None:
    written_out(*arguments[:4], arguments[4] | {"kept_only": False})


def fails(*_: Any) -> None:
    raise RuntimeError("no such instruction on this device")


def misses_triton(*_: Any) -> None:
    raise ModuleNotFoundError("No module named 'triton'")


@pytest.mark.parametrize("terms", [1, 20, 100])
@pytest.mark.parametrize("kept_only", [False, True], ids=["all", "kept"])
@pytest.mark.usefixtures("wanted")
def test_right_kernels_are_used(terms: int, kept_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_launch", written_out)
    assert fused.fused_sums_work(DEVICE, terms, kept_only=kept_only)


WRONG: list[Launch] = [
    *(spoiled("sums", 3), spoiled("sums", 4), spoiled("gradients", 5)),
    *(forgets_what_was_kept, fails, misses_triton),
]


@pytest.mark.parametrize("launch", WRONG, ids=["absolute", "squared", "gradients", "kept", "fails", "no triton"])
@pytest.mark.usefixtures("wanted")
def test_wrong_kernels_are_never_used(launch: Launch, aligned: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    observed, candidates = observe(aligned, prune=True), candidates_of(aligned, (1, 2, 1, 5))
    names = [aligned.layers[0].query.weight]
    calls: list[str] = []

    def noted(kernel: str, *arguments: Any) -> None:
        calls.append(kernel)
        launch(kernel, *arguments)

    monkeypatch.setattr(fused, "_launch", noted)
    matcher = Matcher(aligned, observed, L2L1(kept_only=True), names)
    found = matcher(candidates)
    in_check = len(calls)
    assert in_check
    matcher(candidates)
    assert len(calls) == in_check
    assert not fused.fused_sums_work(DEVICE, 5, kept_only=True)
    monkeypatch.setattr(fused, "DEVICES", ())
    assert close(found, matcher(candidates), torch.float32)


@pytest.mark.usefixtures("wanted")
def test_a_full_device_is_no_verdict_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(fused, "_launch", full)
    with pytest.raises(torch.OutOfMemoryError):
        fused.fused_sums_work(DEVICE)
    monkeypatch.setattr(fused, "_launch", written_out)
    assert fused.fused_sums_work(DEVICE)


@pytest.mark.usefixtures("wanted")
def test_nothing_is_tried_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not fused.fused_sums_work(torch.device("cuda"))
    assert not fused._CHECKED


def test_a_cpu_builds_entries() -> None:
    assert not fused.fused_sums_work(torch.device("cpu"))


@pytest.mark.parametrize(
    ("dtype", "outputs", "fits"),
    [(torch.float32, 32, True), (torch.float64, 32, False), (torch.float32, 30, False)],
)
@pytest.mark.usefixtures("wanted")
def test_kernels_take_float32_and_sides_they_read_well(
    dtype: torch.dtype, outputs: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_launch", written_out)
    factor = LowRank(torch.ones(1, 1, 4, outputs, dtype=dtype), torch.ones(1, 1, 4, 16, dtype=dtype))
    assert fused.fused_sums_fit(factor, kept_only=False) is fits


@pytest.mark.skipif(DEVICE.type == "cuda" or INTERPRETED, reason="kernels run in this process")
def test_kernels_pass_these_tests_in_the_interpreter() -> None:
    pytest.importorskip("triton", minversion="3.8")  # older ones' interpreter fails with the numpy of today
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "kernels and not written",
        __file__,
    ]
    ran = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "passed" in ran.stdout
