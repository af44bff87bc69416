"""Victims that EDR attacks together: what they share, and the lengths that are tried for each until one matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.assignment.history import SearchHistory
from gradleak.assignment.reading import ReadVictim
from gradleak.assignment.scoring import CandidateScorer, padded
from gradleak.attacks.edr.state import EdrState
from gradleak.attacks.edr.token_adjustment import open_places
from gradleak.exchange import Finding
from gradleak.matching import L2L1, Distance, Matcher
from gradleak.targets import Target

# A gradient with a smaller relative error is the same but for rounding; wrong orders have ten times as much.
SAME = 3e-3


class VictimGroup:
    """Search for the texts of several victims together.

    Args:
        target: the model.
        read: what was read of each victim.
        histories: follow the victims' searches.
        distance: between gradients.
    """

    def __init__(
        self, target: Target, read: Sequence[ReadVictim], histories: Sequence[SearchHistory], distance: Distance
    ) -> None:
        self._read, self._histories = read, histories
        self._deadline = histories[0].deadline
        self._gradients = [one.victim.gradient for one in read]
        self._matcher = Matcher(target, self._gradients, distance).until(self._deadline)
        self._tolerances = [tolerance(self._matcher, gradient) for gradient in self._gradients]
        self._tried: list[list[EdrState]] = [[] for _ in read]

    def trials(self) -> Iterator[tuple[CandidateScorer, list[EdrState]]]:
        """Yield for each length to try a scorer, and the searches of all victims that no earlier length has solved.

        The caller changes the states; what they hold when the next one is asked for is the result of the trial.
        """
        for length in range(max(len(one.problems) for one in self._read)):
            numbers = [
                number
                for number, one in enumerate(self._read)
                if length < len(one.problems)
                and all(state.best.loss > state.tolerance for state in self._tried[number])
            ]
            if not numbers or (length and self._deadline.passed):
                break
            states = [self._begin(index, number, length) for index, number in enumerate(numbers)]
            yield (
                CandidateScorer(
                    [state.problem for state in states],
                    torch.stack([self._read[number].labels for number in numbers]),
                    [self._gradients[number] for number in numbers],
                    self._matcher.select(numbers),
                ),
                states,
            )
            for number, state in zip(numbers, states, strict=True):
                self._tried[number].append(state)

    def findings(self) -> list[Finding]:
        """Return the nearest text of each victim, of all lengths that were tried."""
        return [self._finding(number) for number in range(len(self._read))]

    def _begin(self, index: int, number: int, length: int) -> EdrState:
        read = self._read[number]
        return EdrState.begin(
            index, read.victim, read.problems[length], self._tolerances[number], self._histories[number]
        )

    def _finding(self, number: int) -> Finding:
        read, history = self._read[number], self._histories[number]
        history.finish()
        nearest = min(self._tried[number], key=lambda state: state.best.loss)
        ids = nearest.problem.sentences(nearest.best.solution)
        return Finding(ids, read.labels.tolist(), nearest.best.loss, history.snapshots, read.notes)


def freeze_right_sentences(scorer: CandidateScorer, states: Sequence[EdrState]) -> None:
    """Close the places of sentences whose rows agree with the observed ones (section 4.3).

    Args:
        scorer: of these states' problems.
        states: the searches whose best solutions are examined.
    """
    errors = scorer.row_errors(torch.stack([padded(state.best.solution, scorer.length) for state in states]))
    for state, own in zip(states, errors, strict=True):
        solution = state.best.solution
        state.is_open = open_places(own[: len(solution)], solution, state.layout.sentences)


def tolerance(matcher: Matcher, gradient: Mapping[str, Tensor]) -> float:
    """Return the distance below which two gradients are the same but for rounding."""
    if not isinstance(matcher.distance, L2L1):
        return SAME**2 / 2
    alpha = matcher.distance.alpha
    tensors = [gradient[name].double() for name in matcher.parameters]
    return SAME * sum(float(tensor.norm() + alpha * tensor.abs().sum()) for tensor in tensors)
