"""The sweep: which settings an audit tries, in which order, and when it stops.

Every decision follows from what the study's file holds, the recorded seconds included: an audit that was killed makes
the same decisions again, finds their results in the file, and goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradleak.assessment.clock import AuditClock, LostTime
from gradleak.assessment.confirmation import INFORMED, Confirmation
from gradleak.assessment.ladders import Bisection, Ladder, Rung
from gradleak.assessment.plan import UTILITY_SHARE, AuditPlan
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.runner import OnTrial, TrialRunner
from gradleak.assessment.subject import Subject
from gradleak.assessment.training import Defended, Trainings
from gradleak.assessment.trials import Trial, TrialResult
from gradleak.studies.definition.library import Library
from gradleak.studies.execution.driver import Session

OWN_SHARE, BATCH_SHARE, CONFIRM_SHARE = 0.35, 0.2, 0.25
"""Shares of the budget: the own setup (of what its first update left), batch sizes, and confirmation of the advice."""

SLOW_BATCH = 4
"""Of batches of this size and larger one is attacked, of smaller ones two."""

EXTENDED = 32
"""Sentences of the own setup if time is left: enough for an interval."""


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
        chosen: ladder and rung that are recommended.
        clock, runner: count what is spent of the budget, and run the trials.
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
    clock: AuditClock = field(init=False)
    runner: TrialRunner = field(init=False)

    def __post_init__(self) -> None:
        self.clock = AuditClock(
            budget=self.request.budget,
            startup=self.subject.startup,
            slots=self.session.executor.slots,
            clients=self.request.client.clients,
            plan=self.plan,
            results=self.results,
            trainings=self.trainings,
            lost=LostTime(self.session.store),
        )
        self.runner = TrialRunner(
            self.request, self.subject, self.session, self.library, self.clock, self.results, self.tell
        )

    def run(self) -> None:
        """Try all settings that the budget allows."""
        own = self._own_setup()
        self._batch_sizes()
        line = self.request.line
        if not own.leaks(line):
            self._more_knowledge(own)
        if not any(result.leaks(line) for result in self.of_own_setup()):
            self.skip("defenses: the own setup is below the line without more of them")
        else:
            self._advise(reserve=True)
            if any(search.next is not None for search in self.searches.values()):
                self._advise(reserve=False)  # what was held back and not needed may find a milder strength
        self._more_knowledge(own)
        self._extend(own)
        if self.searches:
            Confirmation(self).deepen()

    def _advise(self, *, reserve: bool) -> None:
        """Search for where leakage ends, measure what that costs, and choose; some of the budget may be held back."""
        self.skipped = [line for line in self.skipped if not line.startswith((MORE, PRICE))]
        self._find_ends(reserve=reserve)
        self._price()
        Confirmation(self).choose()

    def skip(self, line: str) -> None:
        """Note what was not tried, and why."""
        if line not in self.skipped:
            self.skipped.append(line)

    def of_own_setup(self) -> list[TrialResult]:
        """Return the results of the own setup: against the attacker as given, and against a better informed one."""
        return [r for r in self.results.values() if r.trial.axis in ("own", "knowledge") and r.trial.ladder is None]

    @property
    def own(self) -> TrialResult:
        """The result of the own setup."""
        return self.results[OWN]

    # --- axes --------------------------------------------------------------------------------------------------------

    def _own_setup(self) -> TrialResult:
        """Attack the own setup: one update first, then as many as its share of the budget allows."""
        trial = replace(self._own_trial("own", OWN, self.request.unit), seconds=self.plan.patience)
        first = self.runner.run(trial)
        if first.error is not None:
            return first
        until = self.clock.spent + OWN_SHARE * self.clock.left()
        return self.runner.run(replace(trial, sentences=self.plan.sample), until)

    def _batch_sizes(self) -> None:
        """Double the batch until nothing comes back."""
        started, available = self.clock.spent, len(self.subject.texts.attacked)
        clients = self.request.client.clients
        for size in self.plan.sizes:
            updates = 1 if size >= SLOW_BATCH else min(2, available // (size * clients))
            spent = self.clock.spent - started
            patience = self.plan.patience
            if spent + patience > BATCH_SHARE * self.request.budget or not self.clock.affordable(1, patience):
                self.skip(f"batches of {size} and more: the budget was spent")
                return
            trial = self._own_trial("batch", f"batches of {size}", updates * size * clients)
            result = self.runner.run(replace(trial, batch_size=size, seconds=self.plan.patience))
            if size > self.request.batch_size and not result.leaks(self.request.line):
                return

    def _find_ends(self, *, reserve: bool) -> None:
        """Find where leakage ends under each defense: the strongest first, then by bisection, turn by turn."""
        if not self.searches:
            self.searches = {each.name: Bisection(len(each.rungs), top_first=each.patient) for each in self.every}
        open_ladders = list(self.every)
        while open_ladders:
            for ladder in list(open_ladders):
                search = self.searches[ladder.name]
                number = search.next
                if number is None:
                    open_ladders.remove(ladder)
                elif not self.affordable(ladder, self._reserve if reserve and search.begun else 0.0):
                    open_ladders.remove(ladder)
                    self.skip(f"{MORE} of {ladder.title}: the budget was spent")
                else:
                    result = self.try_rung(ladder, ladder.rungs[number], self.plan.probe)
                    search.see(number, result.error is not None or result.leaks(self.request.line))

    @property
    def _reserve(self) -> float:
        """The share of the budget that is held back for confirming and pricing a defense, once one holds."""
        if all(search.high is None for search in self.searches.values()):
            return 0.0
        return CONFIRM_SHARE + (UTILITY_SHARE if self.trainings.possible else 0.0)

    def _price(self) -> None:
        """Train without and with each defense at the strength where its leakage ends."""
        if not self.trainings.possible:
            return
        if not self.clock.trainable(CONFIRM_SHARE):
            self.trainings.skip(self.clock.left(CONFIRM_SHARE))
            return
        self.trainings.train(*self.trainings.own)
        for ladder in self.every:
            end = self.searches[ladder.name].high
            if end is None or not self.trainings.possible:
                continue
            if self.clock.trainable(CONFIRM_SHARE, by_example=ladder.first):
                self.trainings.train(*self.defended(ladder, ladder.rungs[end]))
            else:
                self.skip(f"{PRICE} of {ladder.title}: the budget was spent")

    def _more_knowledge(self, own: TrialResult) -> None:
        """Attack the setup again with full knowledge, unless the first attack read everything."""
        facts = self.subject.can_be_told
        if own.reads_everything or set(facts) == set(self.request.facts) or own.error is not None:
            return
        sentences = min(
            len(own.sentences), max(self.plan.probe, self.updates(self.plan.sample) // 2 * self.request.unit)
        )
        if not self.clock.affordable(self.updates(sentences), self.plan.patience):
            self.skip("an attacker who is told more: the budget was spent")
            return
        trial = self._own_trial("knowledge", f"{OWN}, {INFORMED}", sentences)
        self.runner.run(replace(trial, facts=facts, seconds=self.plan.patience))

    def _extend(self, own: TrialResult) -> None:
        """Attack more sentences of the own setup, if there is time and text."""
        unit = self.request.unit
        most = min(EXTENDED, len(self.subject.texts.attacked)) // unit * unit
        if most > len(own.sentences) and self.clock.left() > (most - len(own.sentences)) / unit * max(own.pace, 0.01):
            self.runner.run(replace(own.trial, sentences=most))

    # --- one trial ---------------------------------------------------------------------------------------------------

    def _own_trial(self, axis: str, name: str, sentences: int) -> Trial:
        return Trial(
            axis=axis,
            name=name,
            sentences=sentences,
            batch_size=self.request.batch_size,
            defenses=self.request.defenses,
            facts=self.request.facts,
            seconds=self.plan.seconds,
        )

    def rung_trial(self, ladder: Ladder, rung: Rung, sentences: int) -> Trial:
        """Return the trial of one strength of a defense."""
        defenses, send = self.defended(ladder, rung)
        trial = self._own_trial("defense", rung.name, sentences)
        trial = replace(trial, ladder=ladder.name, place=rung.place, label=rung.label)
        return replace(trial, defenses=defenses, send=send, seconds=self.patience(ladder))

    def try_rung(self, ladder: Ladder, rung: Rung, sentences: int) -> TrialResult:
        """Attack one strength of a defense, until a sentence that was read decides that it leaks."""
        return self.runner.run(self.rung_trial(ladder, rung, sentences), to_the_end=False)

    def defended(self, ladder: Ladder, rung: Rung) -> Defended:
        """Return the defenses of a rung together with the user's own, and the number format that is sent."""
        return ladder.beside(self.request.defenses, rung)

    # --- price and time ----------------------------------------------------------------------------------------------

    def patience(self, ladder: Ladder) -> float:
        """Return the seconds for an update under a defense."""
        return self.plan.patience if ladder.patient else self.plan.seconds

    def affordable(self, ladder: Ladder, reserve: float = 0.0, updates: int | None = None) -> bool:
        """Return whether so many updates under a defense can be attacked; by default those of another strength."""
        if updates is None:
            updates = self.updates(self.plan.probe)
        return self.clock.affordable(updates, self.patience(ladder), reserve)

    def updates(self, sentences: int) -> int:
        """Return the updates of so many sentences, at least one."""
        return max(1, sentences // self.request.unit)


OWN = "own setup"
MORE, PRICE = "more strengths", "the price"
