"""Cohort: the victims that an attack optimises side by side, and all that belongs to them.

DLG, TAG, LAMP and GRAB are written against a cohort: their `run` shows the paper's algorithm for one victim, and the
cohort carries it out for many, as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Finding, Reporter, Victim
from gradleak.leakage.assumptions import Assumptions
from gradleak.matching import Distance, Matcher
from gradleak.optimisation.descent import Descender, Descent, Penalty
from gradleak.optimisation.guess import Guess, keep_better, random_guess
from gradleak.optimisation.history import History
from gradleak.optimisation.slots import Slots, trimmed
from gradleak.targets import Target

# A distance below this share of the initial one is rounding: no words are nearer.
SOLVED = 1e-5


class Cohort:
    """Victims whose guesses are optimised together; `select` takes a subset, `retire` removes those that are done.

    Args:
        target: the model.
        victims: the updates under attack, of one batching key.
        assumptions: the lengths and labels that the guesses start from, one for each victim.
        distance: the distance to the observed gradients that is minimised.
        reporter: receives progress, and holds the deadline.

    Attributes:
        target: the model.
        victims: the active victims, each with its own random stream.
        numbers: their indices among all victims.
        guess: the present state of their guesses.
        words: the nearest words found so far, one start or several for each victim.
        history: progress and snapshots of all victims, the retired ones included.
    """

    def __init__(
        self,
        target: Target,
        victims: Sequence[Victim],
        assumptions: Sequence[Assumptions],
        distance: Distance,
        reporter: Reporter,
    ) -> None:
        self.target, self.victims, self.numbers = target, list(victims), list(range(len(victims)))
        self.history = History(target, len(victims), reporter)
        self.notes = [assumed.notes for assumed in assumptions]
        self.guess = _first_guess(target, victims, assumptions)
        self.words = self.guess
        self._initial_losses = self.guess.losses
        # Word embeddings are left out: continuous embeddings have no gradient of the table that they are drawn from.
        names = [name for name in victims[0].gradient if name not in target.word_parameters]
        gradients = [victim.gradient for victim in victims]
        self._matcher: Callable[[], Matcher] = _value(
            Matcher(target, gradients, distance, names).until(reporter.deadline)
        )
        self._descender: Descender | None = None
        self._steps_before = 0

    @property
    def matcher(self) -> Matcher:
        """Compares candidates with the active victims' gradients."""
        return self._matcher()

    @property
    def deadline(self) -> Deadline:
        """When the attack, or its present part, has to end."""
        return self.matcher.deadline

    @contextmanager
    def limited_to(self, share: float) -> Iterator[None]:
        """Limit what is done meanwhile to a share of the time that is left."""
        whole = self.matcher
        self._matcher = _value(whole.until(whole.deadline.sooner(share * whole.deadline.left)))
        yield
        self._matcher = _value(whole)

    # --- descent ---------------------------------------------------------------------------------------------------

    @property
    def descender(self) -> Descender:
        """The descent that `begin` has begun."""
        assert self._descender is not None, "begin has not been called"
        return self._descender

    def begin(self, descent: Descent, penalty: Penalty | None = None, *, after: int = 0) -> None:
        """Begin a descent from the present guess.

        Args:
            descent: its schedule.
            penalty: a term added to the distance.
            after: steps of earlier descents, for the history.
        """
        self._descender = Descender(self.target, self.matcher, self.guess, descent, penalty)
        self._steps_before = after

    def minimise(self, descent: Descent, *, after: int = 0) -> Guess:
        """Run a whole descent from the present guess and return the best state of each start."""
        self.begin(descent, after=after)
        best = self.descend(descent.steps)
        self._descender = None
        return best

    def descend(self, steps: int) -> Guess:
        """Take some steps of the descent and return the best state of each start so far."""
        return self.descender.run(
            steps, lambda step, best: self.history.record(self._steps_before + step, best, self.numbers)
        )

    # --- words -----------------------------------------------------------------------------------------------------

    def nearest_words(self, guess: Guess) -> Guess:
        """Project a guess to its nearest words, with the distances of their gradients."""
        _, words = guess.words(self.target)
        return replace(words, losses=self.matcher(words.candidates(self.target)))

    def keep_words(self, words: Guess) -> None:
        """Keep words, for each start, that are nearer than those found so far."""
        self.words = keep_better(self.words, words, words.losses)

    def measure_start(self) -> None:
        """Record the distance that each victim starts from, and its nearest words."""
        self._initial_losses = self.matcher(self.guess.candidates(self.target))
        self.words = self.nearest_words(self.guess)

    def solved(self) -> list[bool]:
        """Return for each victim whether its words give the observed gradient up to rounding."""
        return (self.words.losses.amin(dim=1) < SOLVED * self._initial_losses.amin(dim=1)).tolist()

    # --- subsets ---------------------------------------------------------------------------------------------------

    def select(self, places: Sequence[int]) -> Cohort:
        """Return the cohort of some active victims, at its present state; gradients are copied when first needed."""
        some = copy(self)
        some.victims = [self.victims[place] for place in places]
        some.numbers = [self.numbers[place] for place in places]
        some.guess, some.words = self.guess.select(places), self.words.select(places)
        some._initial_losses = self._initial_losses[list(places)]
        some._matcher = _once(self._matcher, places)
        if self._descender is not None:
            some._descender = self._descender.select(places, some.matcher)
        return some

    def retire(self, done: Sequence[bool]) -> Cohort:
        """Remove the victims that are done, and return them as a cohort."""
        retired = self._part([place for place, is_done in enumerate(done) if is_done])
        vars(self).update(vars(self._part([place for place, is_done in enumerate(done) if not is_done])))
        return retired

    def _part(self, places: Sequence[int]) -> Cohort:
        """Return the cohort of some active victims, of none, or of all, without needless copies."""
        part = copy(self)
        if not places:
            part.victims, part.numbers = [], []
        return self.select(places) if 0 < len(places) < len(self.numbers) else part

    # --- results ---------------------------------------------------------------------------------------------------

    def findings(self, words: Guess, numbers: Sequence[int] | None = None) -> dict[int, Finding]:
        """Return words, one start for each victim, as findings by victim number.

        Args:
            words: the words.
            numbers: whose they are; those of the active victims by default.
        """
        ids, classes = words.slots.project(self.target, words.embeddings), words.classes(self.target)
        numbers = self.numbers if numbers is None else numbers
        return {
            number: Finding(
                token_ids=trimmed(ids[row, 0], words.slots.mask[row, 0]),
                labels=None if classes is None else classes[row, 0].tolist(),
                loss=loss,
            )
            for row, (number, loss) in enumerate(zip(numbers, words.losses[:, 0].tolist(), strict=True))
        }

    def results(self, findings: Mapping[int, Finding]) -> list[Finding]:
        """Return the findings of all victims in their order, with their history and notes."""
        return [
            replace(findings[number], history=snapshots, notes=notes)
            for number, (snapshots, notes) in enumerate(zip(self.history.snapshots, self.notes, strict=True))
        ]


def _first_guess(target: Target, victims: Sequence[Victim], assumptions: Sequence[Assumptions]) -> Guess:
    """Draw a guess at every victim, in slots of the lengths and with the labels that are assumed."""
    slots = Slots.of(target, [assumed.lengths for assumed in assumptions])
    labels = [assumed.labels for assumed in assumptions]
    classes: Tensor | None = None
    if labels[0] is not None:
        rows = torch.tensor(labels, device=target.device)  # [victims, sequences]
        classes = rows[:, None].expand(-1, slots.ids.shape[1], -1).contiguous()
    return random_guess(target, slots, classes, [victim.generator for victim in victims])


def _value(matcher: Matcher) -> Callable[[], Matcher]:
    return lambda: matcher


def _once(whole: Callable[[], Matcher], places: Sequence[int]) -> Callable[[], Matcher]:
    """Return a function that selects victims of a matcher at its first call, and releases the whole matcher then."""
    made: list[Matcher] = []
    sources = [whole]

    def matcher() -> Matcher:
        if not made:
            made.append(sources.pop()().select(places))
        return made[0]

    return matcher
