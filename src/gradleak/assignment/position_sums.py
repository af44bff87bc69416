"""Where tokens stand, from the gradient of the position embeddings.

The input of the first layer is a sum of embeddings, so that the same vector, the gradient of one token's input, is
added to the row of its word and to the row of its position. In a single sentence a word's row is therefore the sum of
the rows of its positions; in a batch a position's row is the sum of the rows of the words that stand there, as far as
these stand nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.assignment.problem import Puzzle
from gradleak.targets import Target


def shows_places(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Tell whether the position embeddings' gradient was sent."""
    return f"{target.family.position_embedding}.weight" in gradient


def read_places(puzzle: Puzzle, gradient: Mapping[str, Tensor], count: int, generator: torch.Generator) -> Tensor:
    """Return solutions `[count, places]` whose tokens stand at the positions that explain the positions' rows best.

    Which of the tokens at a position belongs to which sentence is not to be seen, and drawn at random.

    Args:
        puzzle: tokens and places.
        gradient: gradients by name, those of words and positions among them.
        count: how many solutions to draw.
        generator: source of randomness, on the CPU.
    """
    shares = _shares(puzzle, gradient)
    free = puzzle.slots.free[0, 0].cpu()  # [sequences, tokens]
    solutions = torch.zeros(count, *free.shape, dtype=torch.long)
    for position in free.any(dim=0).nonzero().flatten().tolist():
        sequences = free[:, position].nonzero().flatten()
        likeliest = shares[position].topk(min(len(sequences), puzzle.kinds)).indices
        order = torch.rand(count, len(sequences), generator=generator).argsort(dim=1) % len(likeliest)
        solutions[:, sequences, position] = likeliest[order]
    outside = torch.zeros(count, puzzle.places - int(free.sum()), dtype=torch.long)
    return torch.cat([solutions[:, free], outside], dim=1)


def _shares(puzzle: Puzzle, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return how much of each position is in each word, or for a batch the reverse `[tokens, kinds]`."""
    target = puzzle.target
    table = f"{target.family.position_embedding}.weight"
    (words,) = target.word_parameters
    before, after = target.special_tokens
    known = torch.tensor([*puzzle.vocabulary.tolist(), *sorted({*before, *after})])
    rows = gradient[words][known.to(gradient[words].device)].double().cpu()
    first = target.family.position_offset(target.config)
    length = puzzle.slots.ids.shape[-1]
    positions = gradient[table][first : first + length].double().cpu()
    if puzzle.sequences == 1:
        return _solve(positions, rows)[:, : puzzle.kinds]
    return _solve(rows, positions).T[:, : puzzle.kinds]


def _solve(parts: Tensor, sums: Tensor) -> Tensor:
    """Return what share of each part makes up each sum `[parts, sums]`, by least squares."""
    shares: Tensor = torch.linalg.lstsq(parts.T, sums.T, driver="gelsd").solution
    return shares
