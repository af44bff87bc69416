"""L-BFGS for fits that plain gradient descent approaches too slowly, such as the likelihood of a noisy gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gradleak.exchange import Deadline

MEMORY = 30
"""How many pairs of steps and changes of the gradient approximate the curvature."""

Objective = Callable[[Tensor], tuple[float, Tensor]]
"""Takes a point; returns its value and gradient."""


class _TimeOverError(Exception):
    """Ends scipy's loop from within the objective."""


def minimise(objective: Objective, start: Tensor, evaluations: int, deadline: Deadline | None = None) -> Tensor:
    """Return the best point that L-BFGS (Liu and Nocedal 1989) finds from a start.

    Args:
        objective: what is minimised.
        start: where to begin, of any shape.
        evaluations: how often the objective is evaluated, about.
        deadline: when to stop.
    """
    best, least = start.clone(), inf

    def value(flat: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        nonlocal best, least
        if deadline is not None and deadline.passed:
            raise _TimeOverError
        point = torch.from_numpy(flat).to(start).view_as(start)
        found, gradient = objective(point)
        if found < least:
            best, least = point, found
        return found, gradient.detach().flatten().double().cpu().numpy()

    options = {"maxcor": MEMORY, "maxfun": evaluations, "maxiter": evaluations, "ftol": 0.0, "gtol": 0.0}
    with suppress(_TimeOverError):
        minimize(value, start.flatten().double().cpu().numpy(), jac=True, method="L-BFGS-B", options=options)
    return best
