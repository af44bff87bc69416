"""Weights from a seed instead of a checkpoint: new classifiers, and whole models with `--random-weights`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn


def initialise(model: nn.Module, names: Iterable[str], *, seed: int, scale: float) -> None:
    """Fill the named parameters: matrices from a normal distribution, biases zero, the scales of norms one.

    Each parameter has its own random stream, derived by numpy from the seed and the parameter's name. The same name and
    seed give the same weights on every device, whatever the thread count and the order in which layers are built.
    """
    parameters = dict(model.named_parameters())
    for name in names:
        parameter = parameters.get(name)
        if parameter is None:  # a tied copy of another parameter
            continue
        with torch.no_grad():
            if parameter.ndim > 1:
                stream = np.random.default_rng([seed, zlib.crc32(name.encode())])
                values = stream.standard_normal(tuple(parameter.shape), dtype=np.float32) * np.float32(scale)
                parameter.copy_(torch.from_numpy(values))
            else:
                owner = model.get_submodule(name.rpartition(".")[0])
                # Gemma's norms store their scale's difference from one.
                parameter.fill_(0.0 if name.endswith("bias") else 1.0 - getattr(owner, "offset", 0.0))
