"""Sums over single entries of outer products on a GPU, whose entries are never written to memory.

On a GPU the time of `entries.py` goes into writing a matrix that is a thousand times larger than its factors, and into
reading it again. A kernel makes every entry where it is needed, adds it to the sums, and forgets it; for slopes it is
made again. Before a kernel is used it is tried on a small case: where Triton is missing, or a kernel fails or is wrong,
entries are built as they are on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradleak.matching.factors import LowRank

DEVICES: tuple[str, ...] = ("cuda",)
# Entries of a matrix are made in squares of this side, from this many outer products at once.
TILE = 64
STEP = 16
# Slopes of so many outer products fit into a program's registers; more are split among programs.
MOST_TERMS = 64
# Kernels read several numbers at once where the sides of a matrix are multiples of this.
ALIGNED = 16
TOLERANCE = 1e-4


class Variant(NamedTuple):
    """What a kernel is compiled for, apart from the sizes that are always the same.

    Attributes:
        chunk: outer products whose slopes one program computes.
        kept_only: leave out entries that are zero in the observed gradient.
        precision: of products, as Triton names it.
    """

    chunk: int
    kept_only: bool
    precision: str


_TRIED: dict[tuple[torch.device, Variant], bool] = {}


def fused_sums_fit(factor: LowRank, *, kept_only: bool) -> bool:
    """Tell whether `fused_sums` can take such a gradient."""
    sides = factor.rows.shape[3], factor.columns.shape[3]
    fits = factor.rows.dtype == torch.float32 and not any(side % ALIGNED for side in sides)
    return fits and fused_sums_work(factor.rows.device, factor.terms, kept_only=kept_only)


def fused_sums_work(device: torch.device, terms: int = 32, *, kept_only: bool = False) -> bool:
    """Tell whether the kernels for so many outer products are right on a device, in the precision now allowed.

    They are tried at the first question, which must not be asked while a CUDA graph is recorded: the answer is no then.
    """
    if device.type not in DEVICES or not terms:
        return False
    key = device, _variant(terms, kept_only=kept_only)
    if key not in _TRIED:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        _TRIED[key] = _are_right(*key, terms)
    return _TRIED[key]


def fused_sums(rows: Tensor, columns: Tensor, observed: Tensor, *, kept_only: bool) -> tuple[Tensor, Tensor]:
    """Return ‖entries − observed‖₁ and ‖entries − observed‖² `[victims, candidates]` in float64.

    Args:
        rows: `[victims, candidates, terms, outputs]`.
        columns: `[victims, candidates, terms, inputs]`; entries are Σ_k rows_k ⊗ columns_k.
        observed: `[victims, outputs, inputs]`.
        kept_only: leave out entries that are zero in the observed gradient.
    """
    variant = _variant(rows.shape[2], kept_only=kept_only)
    sums: tuple[Tensor, Tensor] = _FusedSums.apply(rows, columns, observed, variant)  # type: ignore[no-untyped-call]
    return sums


class _FusedSums(torch.autograd.Function):
    """Keeps the factors alone: the slopes' kernel makes the entries again."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        rows: Tensor,
        columns: Tensor,
        observed: Tensor,
        variant: Variant,
    ) -> tuple[Tensor, Tensor]:
        tensors = rows.contiguous(), columns.contiguous(), observed.contiguous()
        ctx.save_for_backward(*tensors)
        ctx.variant = variant
        return _sums(*tensors, variant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        rows, columns, observed = ctx.saved_tensors
        absolute, squared = (slope.to(rows.dtype).contiguous() for slope in slopes)
        return *_slopes(rows, columns, observed, absolute, squared, ctx.variant), None, None


def _sums(rows: Tensor, columns: Tensor, observed: Tensor, variant: Variant) -> tuple[Tensor, Tensor]:
    victims, candidates, terms, outputs = rows.shape
    inputs = columns.shape[3]
    tiles = -(-outputs // TILE) * -(-inputs // TILE)
    absolute, squared = rows.new_empty(2, victims, candidates, tiles)
    tensors = rows, columns, observed, absolute, squared
    constants = {"kept_only": variant.kept_only, "precision": variant.precision}
    _launch("sums", victims * tiles * candidates, tensors, (candidates, terms, outputs, inputs), constants)
    return absolute.sum(dim=2, dtype=torch.float64), squared.sum(dim=2, dtype=torch.float64)


def _slopes(
    rows: Tensor, columns: Tensor, observed: Tensor, absolute: Tensor, squared: Tensor, variant: Variant
) -> tuple[Tensor, Tensor]:
    """Return the slopes of rows and of columns, from the slopes of both sums `[victims, candidates]`."""
    found = torch.empty_like(rows), torch.empty_like(columns)
    for left, right, slope, transposed in ((rows, columns, found[0], False), (columns, rows, found[1], True)):
        victims, candidates, terms, outputs = left.shape
        programs = victims * -(-outputs // TILE) * -(-terms // variant.chunk) * candidates
        tensors = left, right, observed, absolute, squared, slope
        constants = variant._asdict() | {"transposed": transposed}
        _launch("slopes", programs, tensors, (candidates, terms, outputs, right.shape[3]), constants)
    return found


def _launch(
    kernel: str, programs: int, tensors: Sequence[Tensor], sizes: Sequence[int], constants: Mapping[str, object]
) -> None:
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        getattr(_kernels(), kernel)[programs,](*tensors, *sizes, tile=TILE, step=STEP, **constants)


def _variant(terms: int, *, kept_only: bool) -> Variant:
    chunk = min(max(1 << (terms - 1).bit_length(), STEP), MOST_TERMS)
    return Variant(chunk, kept_only, "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee")


def _kernels() -> ModuleType:
    from gradleak.matching.kernels import triton_kernels

    return triton_kernels


@torch.no_grad()
def _are_right(device: torch.device, variant: Variant, terms: int) -> bool:
    """Compare kernels with the formulas they stand for, on small whole numbers, which no precision rounds."""
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int, lowest: int = -2) -> Tensor:
        return torch.randint(lowest, 3, shape, generator=generator).float().to(device)

    rows, columns = whole(2, 3, terms, TILE + ALIGNED), whole(2, 3, terms, 2 * TILE + ALIGNED)
    observed, slopes = whole(2, rows.shape[3], columns.shape[3]), (whole(2, 3, lowest=1), whole(2, 3, lowest=1) / 2)
    left, right, seen, absolute, squared = (t.double() for t in (rows, columns, observed, *slopes))
    difference = left.transpose(-1, -2) @ right - seen[:, None]
    if variant.kept_only:
        difference = difference * (seen != 0)[:, None]
    slope = absolute[..., None, None] * difference.sign() + 2 * squared[..., None, None] * difference
    expected = (
        *(difference.abs().sum(dim=(2, 3)), difference.square().sum(dim=(2, 3))),
        *(right @ slope.transpose(-1, -2), left @ slope),
    )
    try:
        found = (*_sums(rows, columns, observed, variant), *_slopes(rows, columns, observed, *slopes, variant))
        return all(_close(a, b) for a, b in zip(found, expected, strict=True))
    except torch.OutOfMemoryError:  # says nothing about the kernels
        raise
    except Exception:  # whatever keeps Triton from working: not installed, no compiler, a GPU that it does not know
        return False


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool(((found - expected).abs() <= TOLERANCE * expected.abs().max()).all())
