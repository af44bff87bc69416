"""Read the positions of tokens from the position embeddings' gradient by least squares. Used by EDR's preset `fast`.

The input of the first layer is a sum of embeddings: the gradient of one token's input is added to the row of its word
and to the row of its position. In a single sentence a word's row is therefore the sum of the rows of its positions. In
a batch a position's row is the sum of the rows of the words there, as far as these occur at no other position.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.assignment.problem import AssignmentProblem
from gradleak.targets import Target


def has_position_gradient(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether the position embeddings' gradient was sent."""
    return f"{target.family.position_embedding}.weight" in gradient


def read_places(
    problem: AssignmentProblem, gradient: Mapping[str, Tensor], count: int, generator: torch.Generator
) -> Tensor:
    """Return solutions `[count, places]` whose tokens are at the positions that explain the positions' rows best.

    Which of the tokens at a position belongs to which sentence is not visible, and drawn at random.

    Args:
        problem: tokens and places.
        gradient: gradients by name, those of words and positions among them.
        count: how many solutions to draw.
        generator: source of randomness, on the CPU.
    """
    coefficients = _coefficients(problem, gradient)
    free = problem.slots.free[0, 0].cpu()  # [sequences, tokens]
    solutions = torch.zeros(count, *free.shape, dtype=torch.long)
    for position in free.any(dim=0).nonzero().flatten().tolist():
        sequences = free[:, position].nonzero().flatten()
        likeliest = coefficients[position].topk(min(len(sequences), problem.kinds)).indices
        order = torch.rand(count, len(sequences), generator=generator).argsort(dim=1) % len(likeliest)
        solutions[:, sequences, position] = likeliest[order]
    outside = torch.zeros(count, problem.places - int(free.sum()), dtype=torch.long)
    return torch.cat([solutions[:, free], outside], dim=1)


def _coefficients(problem: AssignmentProblem, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the share of each position in each word's row, or for a batch the reverse `[positions, kinds]`."""
    target = problem.target
    table = f"{target.family.position_embedding}.weight"
    (words,) = target.word_parameters
    before, after = target.special_tokens
    known = torch.tensor([*problem.vocabulary.tolist(), *sorted({*before, *after})])
    rows = gradient[words][known.to(gradient[words].device)].double().cpu()
    first = target.family.position_offset(target.config)
    positions = gradient[table][first : first + problem.length].double().cpu()
    if problem.sequences == 1:
        return _least_squares(positions, rows)[:, : problem.kinds]
    return _least_squares(rows, positions).T[:, : problem.kinds]


def _least_squares(parts: Tensor, sums: Tensor) -> Tensor:
    """Return the coefficient of each part in each sum `[parts, sums]`."""
    coefficients: Tensor = torch.linalg.lstsq(parts.T, sums.T, driver="gelsd").solution
    return coefficients
