"""Which defense an audit advises: the cheapest one that holds on more sentences and against better attackers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradleak.assessment.ladders import Ladder, Rung

if TYPE_CHECKING:
    from gradleak.assessment.sweep import Sweep

INFORMED = "attacker told everything but the words"


@dataclass(frozen=True)
class Confirmation:
    """Confirms where leakage ends, with what the search for it has left of the budget.

    Attributes:
        sweep: the audit.
    """

    sweep: Sweep

    def choose(self) -> None:
        """Confirm the cheapest defense on the whole sample and against a better informed attacker.

        A strength at which more of them bring something back gives way to the next one, while there is time to try it.
        """
        sweep = self.sweep
        sweep.chosen = None
        failed: set[str] = set()
        while (candidate := self._cheapest(failed)) is not None:
            ladder, number = candidate
            rung = ladder.rungs[number]
            if rung.name not in sweep.results and not sweep.affordable(ladder):
                sweep.skip(f"stronger {ladder.title}: the budget was spent")
                failed.add(ladder.name)
            elif self._holds(ladder, rung):
                sweep.chosen = ladder, rung
                self._train_chosen()
                return
            else:
                self._give_way(ladder, number)

    def deepen(self) -> None:
        """Spend what is left on the ends of the other defenses: twice as many sentences of each in every round."""
        plan, sentences = self.sweep.plan, self.sweep.plan.probe
        while sentences < plan.sample:
            sentences = min(2 * sentences, plan.sample)
            for ladder in self.sweep.every:
                if self.sweep.chosen is None or ladder != self.sweep.chosen[0]:
                    self._deepen(ladder, sentences)

    def _deepen(self, ladder: Ladder, sentences: int) -> None:
        """Attack so many sentences where a defense's leakage ends; a strength that fails gives way to the next one."""
        sweep = self.sweep
        while (number := sweep.searches[ladder.name].high) is not None:
            rung = ladder.rungs[number]
            known = sweep.results.get(rung.name)
            done = 0 if known is None else known.trial.sentences
            more = sweep.updates(sentences - done) if sentences > done else 0
            if (known is not None and known.error) or not more or not sweep.affordable(ladder, updates=more):
                return
            if not sweep.try_rung(ladder, rung, sentences).leaks(sweep.request.line):
                return
            self._give_way(ladder, number)

    def _give_way(self, ladder: Ladder, number: int) -> None:
        """Put the next strength in the place of one that failed; after the strongest there is none."""
        search = self.sweep.searches[ladder.name]
        search.low = max(search.low, number)
        search.high = number + 1 if number + 1 < len(ladder.rungs) else None

    def _holds(self, ladder: Ladder, rung: Rung) -> bool:
        """Return whether a rung stays below the line for as many sentences as can be afforded, and told everything."""
        sweep = self.sweep
        line, unit, plan = sweep.request.line, sweep.request.unit, sweep.plan
        known = sweep.results.get(rung.name)
        pace = known.pace if known and known.sentences else sweep.clock.pace(sweep.patience(ladder))
        least, most = sweep.updates(plan.probe), sweep.updates(plan.sample)
        if sweep.try_rung(ladder, rung, max(least, min(most, self._within_half(pace))) * unit).leaks(line):
            return False
        facts = sweep.subject.can_be_told
        if set(facts) == set(sweep.request.facts) or not sweep.affordable(ladder):
            return True
        # The last word is that of the strongest attacker: told everything, and given more time where there is enough.
        seconds = sweep.patience(ladder)
        if self._within_half(sweep.clock.pace(plan.patience)) >= least:
            seconds = plan.patience
        updates = max(least, min(most // 2, self._within_half(sweep.clock.pace(seconds))))
        trial = sweep.rung_trial(ladder, rung, updates * unit)
        told = replace(trial, axis="knowledge", name=f"{rung.name}, {INFORMED}", facts=facts, seconds=seconds)
        return not sweep.runner.run(told, to_the_end=False).leaks(line)

    def _within_half(self, pace: float) -> int:
        """Return how many updates of so many seconds each fit into half of the time that is left."""
        return int(self.sweep.clock.left() / 2 / max(pace, 0.01)) * self.sweep.session.executor.slots

    def _train_chosen(self) -> None:
        sweep = self.sweep
        if sweep.chosen is None or not sweep.trainings.possible:
            return
        if sweep.clock.trainable(by_example=sweep.chosen[0].first):
            sweep.trainings.train(*sweep.defended(*sweep.chosen))

    def _cheapest(self, failed: set[str]) -> tuple[Ladder, int] | None:
        """Return the defense whose leakage ends at the lowest price, by measured utility or else by its usual cost."""
        ends = [
            (ladder, end)
            for ladder in self.sweep.every
            if (end := self.sweep.searches[ladder.name].high) is not None and ladder.name not in failed
        ]
        return min(ends, key=lambda pair: self._cost(*pair), default=None)

    def _cost(self, ladder: Ladder, number: int) -> tuple[float, int]:
        loss = self.sweep.trainings.loss(self.sweep.defended(ladder, ladder.rungs[number]))
        return (0.5 if loss is None else loss, ladder.cheapness)  # one half: between no loss and a certain one
