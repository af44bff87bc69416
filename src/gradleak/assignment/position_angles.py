"""Read which words are at each position of a batch from the angles between embeddings and their gradients.

The input of the first LayerNorm is x, the sum of a word's, a position's and a type's embedding. The gradient δ of one
token's x is added to the row of its word and to the row of its position. LayerNorm is invariant to the scale of x
around its mean, and δ is therefore orthogonal to x. A row that belongs to a single word at a single position shows
which they are: of all pairs only that one is orthogonal to it. Subtracting what was found from both tables leaves more
such rows, until nothing is left (peeling). FET's paper reads lengths from the positions' rows, and nothing else. Used
by FET's preset `thorough` and by Mosaic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.assignment.problem import AssignmentProblem, padded_problem
from gradleak.exchange import Deadline, Victim
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.tokens import observed_tokens
from gradleak.search import ColumnFrame, ColumnGrid
from gradleak.targets import Target

RIGHT_ANGLE = 5e-7  # cosines below this are zero but for rounding: wrong pairs have 1e-5 and more
NOTHING = 1e-5  # the relative norm of the rest of a row from which everything was subtracted
POSSIBILITIES = 20_000  # explanations of what peeling leaves that are examined at most
FRAMES = 256  # explanations that are kept where several are possible


@dataclass(frozen=True)
class EmbeddingRows:
    """The centred rows of the embedding tables that a batch uses, and their gradients.

    Attributes:
        words: embeddings of words, that of the type included `[words, width]`.
        positions: embeddings of positions `[positions, width]`.
        of_words: gradients of the words' rows `[words, width]`.
        of_positions: gradients of the positions' rows `[positions, width]`.
    """

    words: Tensor
    positions: Tensor
    of_words: Tensor
    of_positions: Tensor

    @classmethod
    def read(cls, target: Target, gradient: Mapping[str, Tensor], tokens: Tensor, length: int) -> EmbeddingRows:
        """Read the rows of these tokens and of the first `length` positions, in float64."""
        family, (words,) = target.family, target.word_parameters
        positions = f"{family.position_embedding}.weight"
        first = family.position_offset(target.config)
        at = slice(first, first + length)
        embedded = target.embed(tokens.to(target.device)).detach().double()
        if family.type_embedding is not None:
            embedded = embedded + target.model.get_parameter(f"{family.type_embedding}.weight").detach()[0]
        return cls(
            _centred(embedded),
            _centred(target.model.get_parameter(positions).detach()[at].double()),
            gradient[words][tokens.to(gradient[words].device)].to(target.device, torch.float64),
            gradient[positions][at].to(target.device, torch.float64),
        )

    def sizes(self) -> Tensor:
        """Return the norm of each sum of a word and a position `[words, positions]`."""
        squares = self.words.square().sum(dim=1)[:, None] + self.positions.square().sum(dim=1)
        return (squares + 2 * self.words @ self.positions.T).clamp(min=0).sqrt()

    def angles_of_words(self, rows: Tensor) -> Tensor:
        """Return the cosines of each word's row with its sums with all positions `[words, positions]`."""
        inner = (rows * self.words).sum(dim=1)[:, None] + rows @ self.positions.T
        return inner.abs() / (self.sizes() * rows.norm(dim=1)[:, None])

    def angles_of_positions(self, rows: Tensor) -> Tensor:
        """Return the cosines of each position's row with its sums with all words `[words, positions]`."""
        inner = self.words @ rows.T + (rows * self.positions).sum(dim=1)
        return inner.abs() / (self.sizes() * rows.norm(dim=1))


def peel(rows: EmbeddingRows, deadline: Deadline | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return which words were found at which positions `[words, positions]`, and what is left of the two tables.

    What is left belongs to words that all occur at several positions, each of which several of them share.
    """
    deadline = deadline or Deadline()
    words, positions = rows.of_words, rows.of_positions
    found = torch.zeros(len(words), len(positions), dtype=torch.bool, device=words.device)
    for _ in range(sum(found.shape)):
        if deadline.passed:
            break
        before = int(found.sum())
        is_open = _left(words, rows.of_words)[:, None] & _left(positions, rows.of_positions)
        here = _smallest(rows.angles_of_words(words).where(is_open, 1.0), 1)  # the word is left at this position alone
        positions, words = positions - here.double().T @ words, words.where(~here.any(dim=1)[:, None], 0.0)
        is_open = _left(words, rows.of_words)[:, None] & _left(positions, rows.of_positions)
        only = _smallest(rows.angles_of_positions(positions).where(is_open, 1.0), 0)  # no other word is left here
        words, positions = words - only.double() @ positions, positions.where(~only.any(dim=0)[:, None], 0.0)
        found |= here | only
        if int(found.sum()) == before:
            break
    words = words.where(_left(words, rows.of_words)[:, None], 0.0)
    return found, words, positions.where(_left(positions, rows.of_positions)[:, None], 0.0)


def read_grid(
    target: Target, victim: Victim, most: int = FRAMES, deadline: Deadline | None = None
) -> tuple[AssignmentProblem, ColumnGrid] | None:
    """Return the assignment problem and the tokens of each of its columns, or None where these cannot be read.

    Args:
        target: the model.
        victim: the update under attack.
        most: how many explanations of the tables to keep, those with the fewest tokens.
        deadline: when to stop looking for more explanations.
    """
    deadline = deadline or Deadline()
    before, after = target.special_tokens
    length = longest_length(target, victim.gradient)
    if target.family.embedding_norm is None or length is None or len(after) != 1:
        return None
    tokens, special = observed_tokens(target, victim.gradient).cpu(), torch.tensor([*before, *after])
    sequences = victim.knowledge.sequences or 1
    if len(tokens) > sequences * length:  # noise gives every row a gradient
        return None
    rows = EmbeddingRows.read(target, victim.gradient, torch.cat([tokens, special]), length)
    found, words, positions = peel(rows, deadline)
    explanations = _explanations(found.cpu(), words.cpu(), positions.cpu(), sequences)
    frames = (frame for one in explanations for frame in _frames(one, len(tokens), len(before), sequences))
    examined = itertools.takewhile(lambda _: not deadline.passed, itertools.islice(frames, POSSIBILITIES))
    possible = [frame for frame in examined if frame.is_possible]
    if not possible:
        return None
    problem = padded_problem(target, victim.gradient, tokens, [length] * sequences)
    kept = sorted(possible, key=lambda frame: (sum(frame.lengths), frame.repeated))[:most]
    return problem, ColumnGrid(kept, padding=problem.kinds - 1, kinds=problem.kinds)


def _explanations(found: Tensor, words: Tensor, positions: Tensor, sequences: int) -> Iterator[Tensor]:
    """Yield all explanations `[words, positions]` of what peeling left: words at several positions, and the reverse.

    No position has more words than there are sequences. Words and positions belong to one group if their rows have the
    same sum: the space of such sums, which has one dimension for each group, tells the groups apart.
    """
    open_words, open_positions = (rows.any(dim=1).nonzero().flatten() for rows in (words, positions))
    if not len(open_words) or not len(open_positions):
        if len(open_words) == len(open_positions):
            yield found
        return
    joined = _joined(words[open_words], positions[open_positions])
    room = sequences - found[:, open_positions].sum(dim=0)
    subsets = [
        _subsets(open_words[together].tolist(), most) for together, most in zip(joined.T, room.tolist(), strict=True)
    ]
    for chosen in itertools.islice(itertools.product(*subsets), POSSIBILITIES):
        counts = torch.bincount(torch.tensor([word for some in chosen for word in some]), minlength=len(found))
        if bool((counts[open_words] > 1).all()):
            explained = found.clone()
            for position, some in zip(open_positions.tolist(), chosen, strict=True):
                explained[list(some), position] = True
            yield explained


def _joined(words: Tensor, positions: Tensor) -> Tensor:
    """Tell which words and positions belong to one group `[words, positions]`."""
    both = torch.cat([words, -positions])
    both = both / both.norm()
    space = torch.eye(len(both), dtype=both.dtype) - both @ torch.linalg.pinv(both, rtol=NOTHING)
    return space[: len(words), len(words) :].abs() > NOTHING


def _subsets(words: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Return all subsets of two words or more, the smallest first; at most as many as are examined."""
    sizes = range(2, min(most, len(words)) + 1)
    chosen = (some for size in sizes for some in itertools.combinations(words, size))
    return list(itertools.islice(chosen, POSSIBILITIES))


def _frames(found: Tensor, kinds: int, before: int, sequences: int) -> Iterator[ColumnFrame]:
    """Yield all frames, possible or not, in which sentences end at the positions of the last special token."""
    ends = found[-1].nonzero().flatten().tolist()
    columns = [found[:kinds, position].nonzero().flatten().tolist() for position in range(before, found.shape[1] - 1)]
    if not ends:
        return
    for cuts in itertools.combinations(range(1, sequences), len(ends) - 1):
        counts = [last - first for first, last in itertools.pairwise((0, *cuts, sequences))]
        lengths = [end - before for end, count in zip(ends, counts, strict=True) for _ in range(count)]
        yield ColumnFrame(columns, lengths)


def _left(rows: Tensor, whole: Tensor) -> Tensor:
    """Tell which rows have more left than rounding."""
    return rows.norm(dim=1) > NOTHING * whole.norm(dim=1)


def _smallest(angles: Tensor, dim: int) -> Tensor:
    """Return a mask of the smallest entry along a dimension, if it is zero but for rounding."""
    places = torch.zeros_like(angles, dtype=torch.bool).scatter(dim, angles.argmin(dim=dim, keepdim=True), True)
    return places & (angles < RIGHT_ANGLE)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)
