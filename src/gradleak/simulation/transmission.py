"""What leaves a client: tensors in a smaller number format, converted back to their own on receipt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Update, WireFormat

BLOCK = 4096  # entries that share a scale, as in FLARE's `blockwise8`, whose code is not linear as this one is
LARGEST_CODE = 127


@dataclass(frozen=True)
class QuantisedTensor:
    """A tensor as 8-bit codes.

    Attributes:
        codes: whole numbers from −127 to 127 `[blocks, entries]`, int8; the last block is padded with zeros.
        scales: the value of code 1 in each block `[blocks, 1]`, float32.
        shape: of the tensor.
    """

    codes: Tensor
    scales: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, block: int | None = BLOCK) -> QuantisedTensor:
        """Quantise a tensor, each block of entries with its own scale; None for one scale for all."""
        size = max(1, tensor.numel()) if block is None else block
        flat = tensor.flatten().float()
        blocks = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
        scales = blocks.abs().amax(dim=1, keepdim=True) / LARGEST_CODE
        codes = (blocks / scales.where(scales > 0, 1.0)).round().clamp(-LARGEST_CODE, LARGEST_CODE)
        return cls(codes.to(torch.int8), scales, tuple(tensor.shape))

    def dequantise(self) -> Tensor:
        """Return the float32 tensor that the codes describe."""
        values = (self.codes.float() * self.scales).flatten()
        return values[: torch.Size(self.shape).numel()].view(self.shape)


def as_received(tensor: Tensor, wire: str) -> Tensor:
    """Return a tensor as the server has it after it was sent in this format, in its own number format again."""
    if wire == "fp16":  # values out of range become the largest, as in FLARE's filter
        largest = torch.finfo(torch.float16).max
        return tensor.clamp(-largest, largest).to(torch.float16).to(tensor.dtype)
    if wire == "bf16":
        return tensor.to(torch.bfloat16).to(tensor.dtype)
    if wire in ("int8", "int8-tensor"):
        if not bool(torch.isfinite(tensor).all()):
            raise GradleakError("the update holds NaN or Inf, which int8 cannot send")
        return QuantisedTensor.of(tensor, BLOCK if wire == "int8" else None).dequantise().to(tensor.dtype)
    return tensor


def transmitted(update: Update, wire: WireFormat) -> Update:
    """Return an update as the server has it after it was sent in a number format."""
    if wire == "fp32":
        return update
    tensors = {name: as_received(tensor, wire) for name, tensor in update.tensors.items()}
    return replace(update, tensors=tensors, send=wire)


def sum_updates(updates: Sequence[Update]) -> Update:
    """Return the sum of several clients' updates, which is all that secure aggregation shows the server."""
    first, *others = updates
    if not others:
        return first
    totals = {name: tensor.clone() for name, tensor in first.tensors.items()}
    for update in others:
        for name, total in totals.items():
            total += update.tensors[name]
    return replace(first, tensors=totals, clients=len(updates))
