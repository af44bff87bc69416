"""Half precision where a network is trained, on devices that are faster with it."""

from __future__ import annotations

import torch


def bfloat16(device: torch.device) -> torch.autocast:
    """Compute matrix products in bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
