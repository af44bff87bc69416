"""Rough and exact matrix products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def allow_tf32() -> Iterator[None]:
    """Within this context a GPU may round the factors of float32 matrix products to ten bits (TF32), for speed.

    Enough to descend and to judge moves; not to tell neighbours of the truth from the truth. A CPU does as always.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
