"""Where a client's random numbers come from: a seed, to repeat a simulation, or the system, so that nobody can.

PyTorch's generator on the CPU is a Mersenne twister. It takes 32 bits of its seed, few enough to try them all, and its
state can be computed from enough of its numbers: where a gradient is known to be zero, an update shows the bare noise.
What hides a real client's text must therefore come from elsewhere.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

TWISTER_WORDS = slice(24, 24 + 624 * 8)  # where the 624 words of the twister are in the bytes of its state


class SystemStream(torch.Generator):
    """A generator on the CPU for what must stay secret: `uniform` and `normal` draw for it from the system's entropy.

    Code that hands it to PyTorch itself gets a twister whose whole state, not 32 bits of it, is from the system.
    """

    def __new__(cls) -> Self:
        """Fill the state."""
        stream = super().__new__(cls)
        state = stream.manual_seed(0).get_state()
        words = np.frombuffer(secrets.token_bytes(624 * 4), dtype=np.uint32).astype(np.uint64)
        state.numpy()[TWISTER_WORDS] = words.view(np.uint8)
        stream.set_state(state)
        return stream


def random_stream(seed: int | None) -> torch.Generator:
    """Return a generator on the CPU: from a seed, or for None from the system's entropy, which nobody can repeat."""
    return SystemStream() if seed is None else torch.Generator().manual_seed(seed)


def start_torch(stream: torch.Generator) -> None:
    """Start PyTorch's global random numbers, such as those of dropout, from a stream; see `torch.random.fork_rng`."""
    if isinstance(stream, SystemStream):
        torch.manual_seed(secrets.randbits(62))  # all of it on a GPU, which has another kind of generator
        torch.set_rng_state(SystemStream().get_state())
    else:
        torch.manual_seed(int(torch.randint(2**62, (), generator=stream)))


def uniform(shape: Sequence[int], stream: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw numbers from 0 up and below 1, where the stream is."""
    if isinstance(stream, SystemStream):
        digits = 24 if dtype == torch.float32 else 53
        return _from_system(shape, digits).mul_(2.0**-digits).to(dtype)
    return torch.rand(shape, generator=stream, device=stream.device, dtype=dtype)


def normal(shape: Sequence[int], stream: torch.Generator) -> Tensor:
    """Draw from the standard normal distribution, where the stream is."""
    if isinstance(stream, SystemStream):  # the half keeps 0 and 1 out, whose quantiles are infinite
        return torch.special.ndtri(_from_system(shape, 52).add_(0.5).mul_(2.0**-52)).float()
    return torch.randn(shape, generator=stream, device=stream.device)


def _from_system(shape: Sequence[int], digits: int) -> Tensor:
    """Return whole numbers below 2 ** digits, as doubles."""
    numbers = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(64 - digits)
    return torch.from_numpy(numbers.astype(np.float64)).view(tuple(shape))
