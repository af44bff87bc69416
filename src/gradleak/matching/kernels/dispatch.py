"""Sums over single entries of outer products on a GPU, without writing the entries to memory.

On a GPU the time of `elementwise.py` goes into writing and reading a matrix that is a thousand times larger than its
factors. A kernel computes every entry where it is needed, adds it to the sums and discards it; for gradients it
computes it again. Each kernel is checked on a small case before its first use: where Triton is missing, or a kernel
fails or is wrong, entries are built as on a CPU.
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
TILE = 64  # side of the squares in which a matrix's entries are computed
STEP = 16  # outer products added to a tile at once
MAX_TERMS = 64  # outer products whose gradients fit into a program's registers; more are split among programs
ALIGNMENT = 16  # kernels use wide loads where the sides of a matrix are multiples of this
TOLERANCE = 1e-4  # relative error that the check allows


class KernelVariant(NamedTuple):
    """Compile-time constants of a kernel that differ between calls.

    Attributes:
        chunk: outer products whose gradients one program computes.
        kept_only: ignore entries that are zero in the observed gradient.
        precision: Triton's name of the precision of products.
    """

    chunk: int
    kept_only: bool
    precision: str


_CHECKED: dict[tuple[torch.device, KernelVariant], bool] = {}


def fused_sums_fit(factor: LowRank, *, kept_only: bool) -> bool:
    """Return whether `fused_sums` can take this gradient."""
    sides = factor.rows.shape[3], factor.columns.shape[3]
    fits = factor.rows.dtype == torch.float32 and not any(side % ALIGNMENT for side in sides)
    return fits and fused_sums_work(factor.rows.device, factor.terms, kept_only=kept_only)


def fused_sums_work(device: torch.device, terms: int = 32, *, kept_only: bool = False) -> bool:
    """Return whether the kernels for this many outer products are right on a device, in the precision now allowed.

    The first call runs the check. While a CUDA graph is recorded it cannot run, and the answer is no.
    """
    if device.type not in DEVICES or not terms:
        return False
    key = device, _variant(terms, kept_only=kept_only)
    if key not in _CHECKED:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        _CHECKED[key] = _are_right(*key, terms)
    return _CHECKED[key]


def fused_sums(rows: Tensor, columns: Tensor, observed: Tensor, *, kept_only: bool) -> tuple[Tensor, Tensor]:
    """Return ‖entries − observed‖₁ and ‖entries − observed‖² `[victims, candidates]` in float64.

    Args:
        rows: `[victims, candidates, terms, outputs]`.
        columns: `[victims, candidates, terms, inputs]`; entries are Σ_k rows_k ⊗ columns_k.
        observed: `[victims, outputs, inputs]`.
        kept_only: ignore entries that are zero in the observed gradient.
    """
    variant = _variant(rows.shape[2], kept_only=kept_only)
    sums: tuple[Tensor, Tensor] = _FusedSums.apply(rows, columns, observed, variant)  # type: ignore[no-untyped-call]
    return sums


class _FusedSums(torch.autograd.Function):
    """Both sums; saves only the factors, because the gradients' kernel computes the entries again."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        rows: Tensor,
        columns: Tensor,
        observed: Tensor,
        variant: KernelVariant,
    ) -> tuple[Tensor, Tensor]:
        tensors = rows.contiguous(), columns.contiguous(), observed.contiguous()
        ctx.save_for_backward(*tensors)
        ctx.variant = variant
        return _sums(*tensors, variant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        rows, columns, observed = ctx.saved_tensors
        absolute, squared = (grad.to(rows.dtype).contiguous() for grad in grad_outputs)
        return *_gradients(rows, columns, observed, absolute, squared, ctx.variant), None, None


def _sums(rows: Tensor, columns: Tensor, observed: Tensor, variant: KernelVariant) -> tuple[Tensor, Tensor]:
    victims, candidates, terms, outputs = rows.shape
    inputs = columns.shape[3]
    tiles = -(-outputs // TILE) * -(-inputs // TILE)
    absolute, squared = rows.new_empty(2, victims, candidates, tiles)
    tensors = rows, columns, observed, absolute, squared
    constants = {"kept_only": variant.kept_only, "precision": variant.precision}
    _launch("sums", victims * tiles * candidates, tensors, (candidates, terms, outputs, inputs), constants)
    return absolute.sum(dim=2, dtype=torch.float64), squared.sum(dim=2, dtype=torch.float64)


def _gradients(
    rows: Tensor, columns: Tensor, observed: Tensor, absolute: Tensor, squared: Tensor, variant: KernelVariant
) -> tuple[Tensor, Tensor]:
    """Return the gradients of rows and of columns, from those of both sums `[victims, candidates]`."""
    found = torch.empty_like(rows), torch.empty_like(columns)
    for left, right, gradient, transposed in ((rows, columns, found[0], False), (columns, rows, found[1], True)):
        victims, candidates, terms, outputs = left.shape
        programs = victims * -(-outputs // TILE) * -(-terms // variant.chunk) * candidates
        tensors = left, right, observed, absolute, squared, gradient
        constants = variant._asdict() | {"transposed": transposed}
        _launch("gradients", programs, tensors, (candidates, terms, outputs, right.shape[3]), constants)
    return found


def _launch(
    kernel: str, programs: int, tensors: Sequence[Tensor], sizes: Sequence[int], constants: Mapping[str, object]
) -> None:
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        getattr(_kernels(), kernel)[programs,](*tensors, *sizes, tile=TILE, step=STEP, **constants)


def _variant(terms: int, *, kept_only: bool) -> KernelVariant:
    chunk = min(max(1 << (terms - 1).bit_length(), STEP), MAX_TERMS)
    return KernelVariant(chunk, kept_only, "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee")


def _kernels() -> ModuleType:
    from gradleak.matching.kernels import triton_kernels

    return triton_kernels


@torch.no_grad()
def _are_right(device: torch.device, variant: KernelVariant, terms: int) -> bool:
    """Compare kernels with their formulas on small whole numbers, which no precision rounds."""
    generator = torch.Generator().manual_seed(0)

    def whole(*shape: int, lowest: int = -2) -> Tensor:
        return torch.randint(lowest, 3, shape, generator=generator).float().to(device)

    rows, columns = whole(2, 3, terms, TILE + ALIGNMENT), whole(2, 3, terms, 2 * TILE + ALIGNMENT)
    observed, grads = whole(2, rows.shape[3], columns.shape[3]), (whole(2, 3, lowest=1), whole(2, 3, lowest=1) / 2)
    left, right, seen, absolute, squared = (t.double() for t in (rows, columns, observed, *grads))
    difference = left.transpose(-1, -2) @ right - seen[:, None]
    if variant.kept_only:
        difference = difference * (seen != 0)[:, None]
    gradient = absolute[..., None, None] * difference.sign() + 2 * squared[..., None, None] * difference
    expected = (
        *(difference.abs().sum(dim=(2, 3)), difference.square().sum(dim=(2, 3))),
        *(right @ gradient.transpose(-1, -2), left @ gradient),
    )
    try:
        found = (*_sums(rows, columns, observed, variant), *_gradients(rows, columns, observed, *grads, variant))
        return all(_close(a, b) for a, b in zip(found, expected, strict=True))
    except torch.OutOfMemoryError:  # no evidence against the kernels
        raise
    except Exception:  # Triton does not work here: not installed, no compiler, an unknown GPU
        return False


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool(((found - expected).abs() <= TOLERANCE * expected.abs().max()).all())
