"""Read from an update what can be read before any search: tokens, lengths, labels, columns. Used by FET and EDR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradleak.assignment.position_angles import read_grid
from gradleak.assignment.problem import AssignmentProblem, assignment_problems, likeliest_labels
from gradleak.exchange import Deadline, Victim
from gradleak.search import ColumnGrid
from gradleak.targets import Target


@dataclass(frozen=True)
class ReadVictim:
    """What was read of a victim.

    Attributes:
        victim: the update under attack.
        problems: the assignment problems that are left, one for each length to try.
        labels: the sequences' classes `[sequences]`.
        notes: what had to be inferred.
        columns: the tokens of each column of the only problem, if these were read.
    """

    victim: Victim
    problems: Sequence[AssignmentProblem]
    labels: Tensor
    notes: tuple[str, ...]
    columns: ColumnGrid | None = None

    @classmethod
    def read(
        cls,
        target: Target,
        victim: Victim,
        lengths_tried: int,
        *,
        columns: bool = False,
        deadline: Deadline | None = None,
    ) -> ReadVictim:
        """Read an update.

        Args:
            target: the model.
            victim: the update under attack.
            lengths_tried: the most lengths to try where none is known or shown.
            columns: whether to read which words are at each position, too.
            deadline: when to stop.
        """
        problems, notes = assignment_problems(target, victim, lengths_tried)
        grid: ColumnGrid | None = None
        if columns:
            read = read_grid(target, victim, deadline=deadline)
            if read is None:
                notes = [*notes, "which words stand at each place could not be read"]
            else:
                problems, grid = [read[0]], read[1]
                notes = [*notes, "words of each place: read from the position embeddings' gradient"]
        labels, more = likeliest_labels(target, victim, problems[0], deadline)
        return cls(victim, problems, labels, (*notes, *more), grid)
