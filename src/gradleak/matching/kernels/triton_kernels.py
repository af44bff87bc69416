"""Triton kernels; only `dispatch.py` imports this module, because Triton comes with PyTorch for GPUs, not for CPUs.

A program works on one candidate of one victim, tile by tile of a weight matrix; a tile's entries of
D = Σ_k rows_k ⊗ columns_k − observed stay in registers. Programs with neighbouring numbers work on the same tile for
several candidates of a victim: the observed gradient then comes from the cache. Every number is written by one program
and every sum has one order, which makes results deterministic.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _difference(
    rows: tl.tensor,
    columns: tl.tensor,
    observed: tl.tensor,
    o: tl.tensor,
    i: tl.tensor,
    terms: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    tile: tl.constexpr,
    step: tl.constexpr,
    transposed: tl.constexpr,
    kept_only: tl.constexpr,
    precision: tl.constexpr,
) -> tl.tensor:
    """Return a tile of D for outputs `o` and inputs `i`, zero beyond the matrix."""
    entries = tl.zeros((tile, tile), tl.float32)
    for first in range(0, terms, step):
        k = first + tl.arange(0, step)
        left_inside = (o < outputs)[:, None] & (k < terms)[None, :]
        right_inside = (k < terms)[:, None] & (i < inputs)[None, :]
        left = tl.load(rows + k[None, :] * outputs + o[:, None], left_inside, 0.0)
        right = tl.load(columns + k[:, None] * inputs + i[None, :], right_inside, 0.0)
        entries = tl.dot(left, right, entries, input_precision=precision)
    place = i[None, :] * outputs + o[:, None] if transposed else o[:, None] * inputs + i[None, :]
    seen = tl.load(observed + place, (o < outputs)[:, None] & (i < inputs)[None, :], 0.0)
    difference = entries - seen
    if kept_only:
        difference = tl.where(seen != 0, difference, 0.0)
    return difference


@triton.jit(do_not_specialize=["candidates", "terms"])
def sums(
    rows: tl.tensor,
    columns: tl.tensor,
    observed: tl.tensor,
    absolute: tl.tensor,
    squared: tl.tensor,
    candidates: tl.tensor,
    terms: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    tile: tl.constexpr,
    step: tl.constexpr,
    kept_only: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Write Σ|D| and ΣD² of one tile; programs are numbered `[victims, output tiles, input tiles, candidates]`."""
    input_tiles = tl.cdiv(inputs, tile)
    tiles = tl.cdiv(outputs, tile) * input_tiles
    part = tl.program_id(0) // candidates
    here = part % tiles
    victim = (part // tiles).to(tl.int64)
    member = victim * candidates + tl.program_id(0) % candidates
    o = here // input_tiles * tile + tl.arange(0, tile)
    i = here % input_tiles * tile + tl.arange(0, tile)
    difference = _difference(
        rows + member * terms * outputs,
        columns + member * terms * inputs,
        observed + victim * outputs * inputs,
        o,
        i,
        terms,
        outputs,
        inputs,
        tile,
        step,
        False,
        kept_only,
        precision,
    )
    tl.store(absolute + member * tiles + here, tl.sum(tl.abs(difference)))
    tl.store(squared + member * tiles + here, tl.sum(difference * difference))


@triton.jit(do_not_specialize=["candidates", "terms"])
def gradients(
    rows: tl.tensor,
    columns: tl.tensor,
    observed: tl.tensor,
    absolute: tl.tensor,
    squared: tl.tensor,
    found: tl.tensor,
    candidates: tl.tensor,
    terms: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    tile: tl.constexpr,
    step: tl.constexpr,
    chunk: tl.constexpr,
    transposed: tl.constexpr,
    kept_only: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Write the rows' gradients for one tile of outputs and one chunk of terms: Σ_i S[o, i] · columns[k, i].

    S = absolute · sign(D) + 2 · squared · D, where `absolute` and `squared` are the gradients of the sums. With rows
    and columns exchanged and the observed gradient read `transposed`, the same gives the gradients of the columns.
    Programs are numbered `[victims, output tiles, chunks, candidates]`.
    """
    chunks = tl.cdiv(terms, chunk)
    part = tl.program_id(0) // candidates
    tiles = tl.cdiv(outputs, tile)
    victim = (part // chunks // tiles).to(tl.int64)
    member = victim * candidates + tl.program_id(0) % candidates
    rows += member * terms * outputs
    columns += member * terms * inputs
    observed += victim * outputs * inputs
    found += member * terms * outputs
    of_absolute = tl.load(absolute + member)
    of_squared = 2 * tl.load(squared + member)
    o = part // chunks % tiles * tile + tl.arange(0, tile)
    k = part % chunks * chunk + tl.arange(0, chunk)
    total = tl.zeros((tile, chunk), tl.float32)
    for first in range(0, inputs, tile):
        i = first + tl.arange(0, tile)
        difference = _difference(
            rows, columns, observed, o, i, terms, outputs, inputs, tile, step, transposed, kept_only, precision
        )
        sign = tl.where(difference > 0, 1.0, 0.0) - tl.where(difference < 0, 1.0, 0.0)
        gradient = of_absolute * sign + of_squared * difference
        inside = (i < inputs)[:, None] & (k < terms)[None, :]
        right = tl.load(columns + k[None, :] * inputs + i[:, None], inside, 0.0)
        total = tl.dot(gradient, right, total, input_precision=precision)
    tl.store(found + k[None, :] * outputs + o[:, None], total, (o < outputs)[:, None] & (k < terms)[None, :])
