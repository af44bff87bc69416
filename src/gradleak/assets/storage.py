"""Compact weight files of the embedded models: float16 tensors, and int8 rows with a scale for large tables.

A quantised table `NAME` is stored as `NAME.int8` and `NAME.scale`, one float16 scale for each row. The scale is never
rounded down: no value is clipped, and every value is restored to within half a scale. The files are plain safetensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradleak.errors import GradleakError

_CODES = ".int8"
_SCALE = ".scale"
_LARGEST_CODE = 127
_LARGEST_FLOAT16 = 65504.0


def quantise_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the int8 codes [rows, columns] and the float16 scales [rows] of a table."""
    values = table.detach().to("cpu", torch.float32)
    wanted = values.abs().amax(dim=1).numpy() / _LARGEST_CODE
    scale = wanted.astype(np.float16)
    rounded_down = scale.astype(np.float32) < wanted
    scale[rounded_down] = np.nextafter(scale[rounded_down], np.float16(np.inf))
    scales = torch.from_numpy(scale)
    divisor = scales.float().masked_fill(scales == 0, 1.0)  # a row of zeros has scale zero
    codes = torch.round(values / divisor[:, None]).clamp(-_LARGEST_CODE, _LARGEST_CODE)
    return codes.to(torch.int8), scales


def restore_rows(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 table of codes and scales from `quantise_rows`."""
    return codes.float() * scales.float()[:, None]


def save_compact(
    state: Mapping[str, Tensor],
    path: str | Path,
    *,
    quantised: Collection[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a state to a compact file.

    Args:
        state: The tensors by name, each of floating point; a tied tensor should be given once.
        path: The file to write.
        quantised: Names of two-dimensional tensors to store as int8 rows.
        metadata: Entries of the file's header.

    Raises:
        GradleakError: If a tensor cannot be stored this way.
    """
    absent = sorted(set(quantised) - set(state))
    if absent:
        raise GradleakError(f"cannot quantise {', '.join(absent)}: the state has no such tensor")
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        _check_storable(name, tensor, quantised=name in quantised)
        if name in quantised:
            stored[name + _CODES], stored[name + _SCALE] = quantise_rows(tensor)
        else:
            # A clone, because safetensors refuses tensors that share memory.
            stored[name] = tensor.detach().to("cpu", torch.float16).contiguous().clone()
    save_file(stored, str(path), metadata=dict(metadata or {}))
    Path(path).chmod(0o644)  # safetensors writes files that only the owner can read


def load_compact(path: str | Path) -> dict[str, Tensor]:
    """Return the state in a file of `save_compact`, as float32 tensors on the CPU."""
    stored: dict[str, Tensor] = load_file(str(path))
    state: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith(_CODES):
            plain = name.removesuffix(_CODES)
            state[plain] = restore_rows(tensor, stored[plain + _SCALE])
        elif not (name.endswith(_SCALE) and name.removesuffix(_SCALE) + _CODES in stored):
            state[name] = tensor.float()
    return state


def _check_storable(name: str, tensor: Tensor, *, quantised: bool) -> None:
    """Raise a GradleakError if the format cannot hold a tensor."""
    if not tensor.is_floating_point():
        raise GradleakError(f"cannot store {name}: {tensor.dtype} is not a floating-point type")
    if quantised and tensor.ndim != 2:
        raise GradleakError(f"cannot quantise {name}: it has {tensor.ndim} dimensions, not 2")
    limit = _LARGEST_FLOAT16 * (_LARGEST_CODE if quantised else 1)
    if tensor.numel() and not bool((tensor.detach().abs() <= limit).all()):
        raise GradleakError(f"cannot store {name}: it has values that float16 cannot hold")
