from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.assets import asset_path, embedded_names
from gradleak.assets.storage import load_compact, quantise_rows, restore_rows, save_compact
from gradleak.errors import GradleakError


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 9),
    columns=st.integers(1, 40),
    size=st.floats(-7, 4),
    seed=st.integers(0, 10_000),
)
def test_a_quantised_value_is_off_by_at_most_half_its_scale(rows: int, columns: int, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, columns, generator=generator) * 10**size
    codes, scales = quantise_rows(table)
    error = (restore_rows(codes, scales) - table).abs()
    assert (error <= scales.float()[:, None] * 0.5001).all()
    finest = 2.0**-24  # the step of the smallest float16 numbers
    assert (scales.float() <= table.abs().amax(1) / 127 * 1.001 + finest).all()


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 6), columns=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_a_state_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = {
        "table": torch.randn(rows, columns, generator=generator),
        "norm.scale": torch.randn(columns, generator=generator).half().float(),
        "scalar": torch.tensor(0.5),
    }
    path = tmp_path_factory.mktemp("compact") / "model.safetensors"
    save_compact(state, path, quantised={"table"}, metadata={"model": "test"})
    loaded = load_compact(path)
    assert loaded.keys() == state.keys()
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    assert torch.equal(loaded["norm.scale"], state["norm.scale"])
    assert torch.equal(loaded["scalar"], state["scalar"])
    assert torch.equal(loaded["table"], restore_rows(*quantise_rows(state["table"])))


def test_a_row_of_zeros_stays_zero() -> None:
    table = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    assert torch.equal(restore_rows(*quantise_rows(table))[0], torch.zeros(2))


@pytest.mark.parametrize(
    ("tensor", "quantised", "complaint"),
    [
        (torch.tensor([1, 2]), (), "floating-point"),
        (torch.tensor([1e6]), (), "float16"),
        (torch.tensor([float("nan")]), (), "float16"),
        (torch.tensor([1.0]), ("weight",), "dimensions"),
        (torch.tensor([1.0]), ("other",), "no such tensor"),
    ],
)
def test_what_would_not_come_back_is_refused(
    tensor: torch.Tensor, quantised: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(GradleakError, match=complaint):
        save_compact({"weight": tensor}, tmp_path / "model.safetensors", quantised=quantised)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert [asset_path(name).name for name in embedded_names()] == ["tiny", "prior"]
    with pytest.raises(GradleakError, match="did you mean 'prior'"):
        asset_path("priors")


def test_asking_for_a_path_does_not_import_torch() -> None:
    code = "import sys, gradleak.assets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
