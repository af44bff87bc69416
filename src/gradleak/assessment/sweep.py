"""The sweep: which settings an audit tries, in which order, and when it stops.

Every decision follows from what the study's file holds, the recorded seconds included: an audit that was killed makes
the same decisions again, finds their results in the file, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gradleak.assessment.ladders import Bisection, Ladder, Rung
from gradleak.assessment.plan import UTILITY_SHARE, AuditPlan
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.subject import Subject
from gradleak.assessment.training import Defended, Trainings
from gradleak.assessment.trials import Trial, TrialResult, collect
from gradleak.exchange import FACTS
from gradleak.studies.definition.library import Library
from gradleak.studies.execution.driver import Session

OWN_SHARE, BATCH_SHARE, CONFIRM_SHARE, SPARE = 0.35, 0.2, 0.25, 0.05
"""Shares of the budget: the own setup, batch sizes, confirmation of what is recommended, and what is never planned."""

SLOW_BATCH = 4
"""Of batches of this size and larger one is attacked, of smaller ones two."""

EXTENDED = 32
"""Sentences of the own setup if time is left: enough for an interval."""

OnTrial = Callable[[Trial, TrialResult | None], None]
"""Called before a trial, and after it with its result."""


@dataclass
class Sweep:
    """The state of an audit.

    Attributes:
        request: what is audited.
        subject: model and data.
        plan: sentences and seconds.
        every: the ladders.
        session: runs cells.
        library: datasets and hashes.
        trainings: the price of defenses.
        tell: called before and after each trial.
        results: by name of the setting, in the order in which they were tried.
        searches: by ladder, what is known of where leakage ends.
        skipped: what was not tried, and why.
        chosen: ladder and rung that are recommended, with whether all sentences of the sample confirmed it.
    """

    request: AuditRequest
    subject: Subject
    plan: AuditPlan
    every: tuple[Ladder, ...]
    session: Session
    library: Library
    trainings: Trainings
    tell: OnTrial
    results: dict[str, TrialResult] = field(default_factory=dict)
    searches: dict[str, Bisection] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    chosen: tuple[Ladder, Rung] | None = None

    def run(self) -> None:
        """Try all settings that the budget allows."""
        own = self._own_setup()
        self._batch_sizes()
        line = self.request.line
        if not own.leaks(line):
            self._more_knowledge(own)
        if any(result.leaks(line) for result in self.of_own_setup()):
            self._find_ends()
            self._price()
            self._choose()
        else:
            self.skipped.append("defenses: the own setup is below the line without more of them")
        self._more_knowledge(own)
        self._extend(own)

    def of_own_setup(self) -> list[TrialResult]:
        """Return the results of the own setup: against the attacker as given, and against a better informed one."""
        return [r for r in self.results.values() if r.trial.axis in ("own", "knowledge") and r.trial.ladder is None]

    @property
    def own(self) -> TrialResult:
        """The result of the own setup."""
        return self.results[OWN]

    # --- axes --------------------------------------------------------------------------------------------------------

    def _own_setup(self) -> TrialResult:
        """Attack the own setup: one update first, then as many as the budget allows."""
        trial = replace(self._trial("own", OWN, self.request.unit), seconds=self.plan.patience)
        first = self._try(trial)
        if first.error is not None:
            return first
        allowed = int(OWN_SHARE * self.request.budget / max(0.01, first.pace))
        sentences = min(self.plan.sample, max(1, allowed) * self.request.unit)
        return self._try(replace(trial, sentences=sentences))

    def _batch_sizes(self) -> None:
        """Double the batch until nothing comes back."""
        started, available = self.spent, len(self.subject.texts.attacked)
        clients = self.request.client.clients
        for size in self.plan.sizes:
            updates = 1 if size >= SLOW_BATCH else min(2, available // (size * clients))
            if self.spent - started + self.plan.patience > BATCH_SHARE * self.request.budget:
                self.skipped.append(f"batches of {size} and more: the budget was spent")
                return
            trial = self._trial("batch", f"batches of {size}", updates * size * clients)
            result = self._try(replace(trial, batch_size=size, seconds=self.plan.patience))
            if size > self.request.batch_size and not result.leaks(self.request.line):
                return

    def _find_ends(self) -> None:
        """Find where leakage ends under each defense: the strongest first, then by bisection, turn by turn."""
        reserve = CONFIRM_SHARE + (UTILITY_SHARE if self.trainings.possible else 0.0)
        self.searches = {ladder.name: Bisection(len(ladder.rungs), top_first=ladder.patient) for ladder in self.every}
        open_ladders = list(self.every)
        while open_ladders:
            for ladder in list(open_ladders):
                search = self.searches[ladder.name]
                number = search.next
                if number is None:
                    open_ladders.remove(ladder)
                elif not self._affordable(self._updates(self.plan.probe), reserve):
                    open_ladders.remove(ladder)
                    self.skipped.append(f"more strengths of {ladder.title}: the budget was spent")
                else:
                    result = self._try_rung(ladder, ladder.rungs[number], self.plan.probe)
                    search.see(number, result.error is not None or result.leaks(self.request.line))

    def _price(self) -> None:
        """Train without and with each defense at the strength where its leakage ends."""
        if not self.trainings.possible:
            return
        self.trainings.train(*self.trainings.own)
        for ladder in self.every:
            end = self.searches[ladder.name].high
            if end is not None and self.trainings.possible and self._trainable():
                self.trainings.train(*self.defended(ladder, ladder.rungs[end]))

    def _choose(self) -> None:
        """Confirm the cheapest defense on the whole sample and against a better informed attacker.

        A strength at which more sentences or more knowledge bring something back gives way to the next one.
        """
        failed: set[str] = set()
        while (candidate := self._cheapest(failed)) is not None:
            ladder, number = candidate
            rung = ladder.rungs[number]
            if self._holds(ladder, rung):
                self.chosen = ladder, rung
                self._train_chosen()
                return
            self.searches[ladder.name].low = max(self.searches[ladder.name].low, number)
            if number + 1 < len(ladder.rungs):
                self.searches[ladder.name].high = number + 1
            else:
                self.searches[ladder.name].high = None
                failed.add(ladder.name)

    def _holds(self, ladder: Ladder, rung: Rung) -> bool:
        """Return whether a rung stays below the line for as many sentences as can be afforded, and told everything."""
        line, unit = self.request.line, self.request.unit
        left = self._left(0.0) / max(0.01, self.pace)
        updates = max(self._updates(self.plan.probe), min(self._updates(self.plan.sample), int(left / 2)))
        if self._try_rung(ladder, rung, updates * unit).leaks(line):
            return False
        facts = self.all_facts()
        probe = self.plan.probe
        if set(facts) == set(self.request.facts) or not self._affordable(self._updates(probe), 0.0):
            return True
        trial = self._rung_trial(ladder, rung, probe)
        told = replace(trial, axis="knowledge", name=f"{rung.name}, {INFORMED}", facts=facts)
        return not self._try(told).leaks(line)

    def _train_chosen(self) -> None:
        if self.chosen is not None and self.trainings.possible and self._trainable():
            self.trainings.train(*self.defended(*self.chosen))

    def _more_knowledge(self, own: TrialResult) -> None:
        """Attack the setup again with full knowledge, unless the first attack read everything."""
        facts = self.all_facts()
        if own.reads_everything or set(facts) == set(self.request.facts) or own.error is not None:
            return
        sentences = min(
            len(own.sentences), max(self.plan.probe, self._updates(self.plan.sample) // 2 * self.request.unit)
        )
        if not self._affordable(self._updates(sentences), 0.0):
            self.skipped.append("an attacker who is told more: the budget was spent")
            return
        trial = self._trial("knowledge", f"{OWN}, {INFORMED}", sentences)
        self._try(replace(trial, facts=facts, seconds=self.plan.patience))

    def _extend(self, own: TrialResult) -> None:
        """Attack more sentences of the own setup, if there is time and text."""
        unit = self.request.unit
        most = min(EXTENDED, len(self.subject.texts.attacked)) // unit * unit
        if most > len(own.sentences) and self._left(0.0) > (most - len(own.sentences)) / unit * max(own.pace, 0.01):
            self._try(replace(own.trial, sentences=most))

    # --- one trial ---------------------------------------------------------------------------------------------------

    def _trial(self, axis: str, name: str, sentences: int) -> Trial:
        return Trial(
            axis=axis,
            name=name,
            sentences=sentences,
            batch_size=self.request.batch_size,
            defenses=self.request.defenses,
            facts=self.request.facts,
            seconds=self.plan.seconds,
        )

    def _rung_trial(self, ladder: Ladder, rung: Rung, sentences: int) -> Trial:
        defenses, send = self.defended(ladder, rung)
        trial = self._trial("defense", rung.name, sentences)
        seconds = self.plan.patience if ladder.patient else self.plan.seconds
        return replace(
            trial, defenses=defenses, send=send, ladder=ladder.name, place=rung.place, label=rung.label, seconds=seconds
        )

    def _try_rung(self, ladder: Ladder, rung: Rung, sentences: int) -> TrialResult:
        return self._try(self._rung_trial(ladder, rung, sentences))

    def _try(self, trial: Trial) -> TrialResult:
        """Run a trial, and keep its result in place of one with fewer sentences."""
        known = self.results.get(trial.name)
        if known is not None and (known.trial.sentences >= trial.sentences or known.error is not None):
            return known
        self.tell(trial, None)
        cells = trial.cells(self.request, self.subject, self.library)
        summary = self.session.run(cells)
        errors = {failed.cell.id: failed.error for failed in summary.failed}
        result = collect(trial, cells, self.session.store, errors)
        self.results[trial.name] = result
        self.tell(trial, result)
        return result

    def defended(self, ladder: Ladder, rung: Rung) -> Defended:
        """Return the defenses of a rung together with the user's own, and the number format that is sent."""
        own = self.request.defenses
        if rung.defense is None:
            return own, rung.send
        return ((rung.defense, *own) if ladder.first else (*own, rung.defense)), None

    def all_facts(self) -> tuple[str, ...]:
        """Return every fact that an attacker can be told in this setup."""
        classifier = self.subject.facts["task"] == "classification"
        return tuple(fact for fact in FACTS if classifier or fact != "labels")

    # --- price and time ----------------------------------------------------------------------------------------------

    def _cheapest(self, failed: set[str]) -> tuple[Ladder, int] | None:
        """Return the defense whose leakage ends at the lowest price, by measured utility or else by its usual cost."""
        ends = [
            (ladder, end)
            for ladder in self.every
            if (end := self.searches[ladder.name].high) is not None and ladder.name not in failed
        ]
        return min(ends, key=lambda pair: self._cost(*pair), default=None)

    def _cost(self, ladder: Ladder, number: int) -> tuple[float, int]:
        utility = self.trainings.found.get(self.defended(ladder, ladder.rungs[number]))
        if utility is None or not self.trainings.possible:
            return (0.5, ladder.cheapness)  # between no loss and a certain one
        loss = -utility["accuracy"] if utility["accuracy"] is not None else utility["perplexity"]
        baseline = self.trainings.baseline or utility
        best = -baseline["accuracy"] if baseline["accuracy"] is not None else baseline["perplexity"]
        return (round(max(0.0, loss - best), 2), ladder.cheapness)

    @property
    def spent(self) -> float:
        """Seconds of all cells so far, as recorded, shared by the workers."""
        slots, clients = self.session.executor.slots, self.request.client.clients
        trials = self.results.values()
        shared = sum(result.seconds / min(slots, max(1, result.trial.updates(clients))) for result in trials)
        return shared + self.trainings.seconds

    @property
    def pace(self) -> float:
        """Seconds that an update takes whose text is not simply read."""
        slow = [result.pace for result in self.results.values() if result.sentences and not result.reads_everything]
        return max(self.plan.seconds, sum(slow) / len(slow)) if slow else 1.3 * self.plan.seconds

    def _updates(self, sentences: int) -> int:
        return max(1, sentences // self.request.unit)

    def _left(self, reserve: float) -> float:
        return (1.0 - SPARE - reserve) * self.request.budget - self.spent

    def _affordable(self, updates: int, reserve: float) -> bool:
        """Return whether so many hard updates fit into the budget, with a share of it held back."""
        waves = -(-updates // self.session.executor.slots)
        return waves * self.pace <= self._left(reserve)

    def _trainable(self) -> bool:
        return (self.trainings.pace or 0.0) <= self._left(0.0)


OWN, INFORMED = "own setup", "attacker told everything but the words"
