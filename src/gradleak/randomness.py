"""Random streams of clients and defenses: from a seed for a simulation, or from the system's entropy for secrecy.

PyTorch's generator on the CPU is a Mersenne twister. It uses 32 bits of its seed, few enough to try them all, and its
state can be computed from enough of its output: where a gradient is known to be zero, an update shows the bare noise.
What hides a real client's text must therefore come from the system.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

TWISTER_WORDS = slice(24, 24 + 624 * 8)  # the twister's 624 words in the bytes of the generator's state


class SystemStream(torch.Generator):
    """A generator on the CPU for secret numbers: `uniform` and `normal` draw them from the system's entropy.

    PyTorch functions that are given it use a twister whose whole state, not 32 bits of it, is from the system.
    """

    def __new__(cls) -> Self:
        """Fill the state from the system's entropy."""
        stream = super().__new__(cls)
        state = stream.manual_seed(0).get_state()
        words = np.frombuffer(secrets.token_bytes(624 * 4), dtype=np.uint32).astype(np.uint64)
        state.numpy()[TWISTER_WORDS] = words.view(np.uint8)
        stream.set_state(state)
        return stream


def random_stream(seed: int | None) -> torch.Generator:
    """Return a generator on the CPU from a seed; for None from the system's entropy, which nobody can repeat."""
    return SystemStream() if seed is None else torch.Generator().manual_seed(seed)


def hashed_stream(text: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by the hash of a text: streams of different purposes and seeds are independent."""
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def start_torch(stream: torch.Generator) -> None:
    """Seed PyTorch's global generators, which dropout uses, from a stream; call it inside `torch.random.fork_rng`."""
    if isinstance(stream, SystemStream):
        torch.manual_seed(secrets.randbits(62))  # a GPU's generator is of another kind and uses all bits
        torch.set_rng_state(SystemStream().get_state())
    else:
        torch.manual_seed(int(torch.randint(2**62, (), generator=stream)))


def uniform(shape: Sequence[int], stream: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw from the uniform distribution over [0, 1), on the device of the stream."""
    if isinstance(stream, SystemStream):
        digits = 24 if dtype == torch.float32 else 53
        return _from_system(shape, digits).mul_(2.0**-digits).to(dtype)
    return torch.rand(shape, generator=stream, device=stream.device, dtype=dtype)


def normal(shape: Sequence[int], stream: torch.Generator) -> Tensor:
    """Draw from the standard normal distribution, on the device of the stream."""
    if isinstance(stream, SystemStream):  # adding 0.5 excludes 0 and 1, whose quantiles are infinite
        return torch.special.ndtri(_from_system(shape, 52).add_(0.5).mul_(2.0**-52)).float()
    return torch.randn(shape, generator=stream, device=stream.device)


def _from_system(shape: Sequence[int], digits: int) -> Tensor:
    """Return random whole numbers below 2 ** digits, as doubles."""
    numbers = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(64 - digits)
    return torch.from_numpy(numbers.astype(np.float64)).view(tuple(shape))
