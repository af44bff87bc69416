"""The sweep: which settings an audit tries, in which order, and when it stops.

Every decision follows from what the study's file holds, the recorded seconds included: an audit that was killed makes
the same decisions again, finds their results in the file, and goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradleak.assessment.clock import AuditClock, LostTime
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
            self.skipped.append("defenses: the own setup is below the line without more of them")
        else:
            self._find_ends()
            self._price()
            self._choose()
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
                self.skipped.append(f"batches of {size} and more: the budget was spent")
                return
            trial = self._own_trial("batch", f"batches of {size}", updates * size * clients)
            result = self.runner.run(replace(trial, batch_size=size, seconds=self.plan.patience))
            if size > self.request.batch_size and not result.leaks(self.request.line):
                return

    def _find_ends(self) -> None:
        """Find where leakage ends under each defense: the strongest first, then by bisection, turn by turn."""
        self.searches = {ladder.name: Bisection(len(ladder.rungs), top_first=ladder.patient) for ladder in self.every}
        open_ladders = list(self.every)
        while open_ladders:
            for ladder in list(open_ladders):
                search = self.searches[ladder.name]
                number = search.next
                if number is None:
                    open_ladders.remove(ladder)
                elif not self._affordable(ladder, self._reserve if search.begun else 0.0):
                    open_ladders.remove(ladder)
                    self.skipped.append(f"more strengths of {ladder.title}: the budget was spent")
                else:
                    result = self._try_rung(ladder, ladder.rungs[number], self.plan.probe)
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
                self.skipped.append(f"the price of {ladder.title}: the budget was spent")

    def _choose(self) -> None:
        """Confirm the cheapest defense on the whole sample and against a better informed attacker.

        A strength at which more of them bring something back gives way to the next one, while there is time to try it.
        """
        failed: set[str] = set()
        while (candidate := self._cheapest(failed)) is not None:
            ladder, number = candidate
            rung = ladder.rungs[number]
            if rung.name not in self.results and not self._affordable(ladder):
                self.skipped.append(f"stronger {ladder.title}: the budget was spent")
                failed.add(ladder.name)
            elif self._holds(ladder, rung):
                self.chosen = ladder, rung
                self._train_chosen()
                return
            else:
                self._give_way(ladder, number, failed)

    def _give_way(self, ladder: Ladder, number: int, failed: set[str]) -> None:
        """Put the next strength in the place of one that failed, or the whole defense aside."""
        search = self.searches[ladder.name]
        search.low = max(search.low, number)
        if number + 1 < len(ladder.rungs):
            search.high = number + 1
        else:
            search.high = None
            failed.add(ladder.name)

    def _holds(self, ladder: Ladder, rung: Rung) -> bool:
        """Return whether a rung stays below the line for as many sentences as can be afforded, and told everything."""
        line, unit = self.request.line, self.request.unit
        known = self.results.get(rung.name)
        pace = known.pace if known and known.sentences else self.clock.pace(self._patience(ladder))
        most = int(self.clock.left() / 2 / max(pace, 0.01)) * self.session.executor.slots
        updates = max(self._updates(self.plan.probe), min(self._updates(self.plan.sample), most))
        if self._try_rung(ladder, rung, updates * unit).leaks(line):
            return False
        facts, probe = self.subject.can_be_told, self.plan.probe
        if set(facts) == set(self.request.facts) or not self._affordable(ladder):
            return True
        trial = self._rung_trial(ladder, rung, probe)
        told = replace(trial, axis="knowledge", name=f"{rung.name}, {INFORMED}", facts=facts)
        return not self.runner.run(told).leaks(line)

    def _train_chosen(self) -> None:
        if self.chosen is None or not self.trainings.possible:
            return
        if self.clock.trainable(by_example=self.chosen[0].first):
            self.trainings.train(*self.defended(*self.chosen))

    def _more_knowledge(self, own: TrialResult) -> None:
        """Attack the setup again with full knowledge, unless the first attack read everything."""
        facts = self.subject.can_be_told
        if own.reads_everything or set(facts) == set(self.request.facts) or own.error is not None:
            return
        sentences = min(
            len(own.sentences), max(self.plan.probe, self._updates(self.plan.sample) // 2 * self.request.unit)
        )
        if not self.clock.affordable(self._updates(sentences), self.plan.patience):
            self.skipped.append("an attacker who is told more: the budget was spent")
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

    def _rung_trial(self, ladder: Ladder, rung: Rung, sentences: int) -> Trial:
        defenses, send = self.defended(ladder, rung)
        trial = self._own_trial("defense", rung.name, sentences)
        shown = {"ladder": ladder.name, "place": rung.place, "label": rung.label}
        return replace(trial, defenses=defenses, send=send, seconds=self._patience(ladder), **shown)

    def _try_rung(self, ladder: Ladder, rung: Rung, sentences: int) -> TrialResult:
        return self.runner.run(self._rung_trial(ladder, rung, sentences), to_the_end=False)

    def defended(self, ladder: Ladder, rung: Rung) -> Defended:
        """Return the defenses of a rung together with the user's own, and the number format that is sent."""
        return ladder.beside(self.request.defenses, rung)

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
        loss = self.trainings.loss(self.defended(ladder, ladder.rungs[number]))
        return (0.5 if loss is None else loss, ladder.cheapness)  # one half: between no loss and a certain one

    def _patience(self, ladder: Ladder) -> float:
        """Return the seconds for an update under a defense."""
        return self.plan.patience if ladder.patient else self.plan.seconds

    def _affordable(self, ladder: Ladder, reserve: float = 0.0) -> bool:
        """Return whether another strength of a defense can be tried."""
        return self.clock.affordable(self._updates(self.plan.probe), self._patience(ladder), reserve)

    def _updates(self, sentences: int) -> int:
        return max(1, sentences // self.request.unit)


OWN, INFORMED = "own setup", "attacker told everything but the words"
