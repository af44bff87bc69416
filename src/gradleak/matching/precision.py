"""Precision of matrix products on a GPU; LAMP and GRAB lower it while they descend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def allow_tf32() -> Iterator[None]:
    """Let a GPU round the factors of float32 matrix products to ten bits (TF32) within this context, for speed.

    Precise enough for descent and for comparing moves, not for telling the truth from its neighbours. No effect on a
    CPU.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
