"""What an audit tries with the time that it has: decisions of the sweep, with attacks that pretend to take time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from test_trials import result

from gradleak.assessment.ladders import ladders
from gradleak.assessment.plan import AuditPlan
from gradleak.assessment.request import SafetyLine
from gradleak.assessment.sweep import Sweep
from gradleak.assessment.training import Trainings
from gradleak.assessment.trials import Trial, TrialResult
from gradleak.assessment.verdict import recommendation
from gradleak.studies.records.store import Store

PLAN = AuditPlan(seconds=3.0, patience=18.0, sample=16, probe=2, sizes=(2, 4), epochs=0, steps=0)
SUBJECT: Any = SimpleNamespace(
    startup=2.0, norm=1.0, example_norm=1.0, root=10.0, can_be_told=(), texts=SimpleNamespace(attacked=range(16))
)
REQUEST: Any = SimpleNamespace(
    budget=180.0, unit=1, batch_size=1, line=SafetyLine(), defenses=(), facts=(), client=SimpleNamespace(clients=1)
)
READ, HIDDEN = ("a b c d e", 100.0, True), ("a b c d e", 0.0, False)


class Pretended:
    """In place of a TrialRunner: takes its time from the clock, not from the wall."""

    def __init__(self, results: dict[str, TrialResult], find: Callable[[Trial], tuple[bool, float]]) -> None:
        self.results, self.find = results, find

    def run(self, trial: Trial, until: float = math.inf, *, to_the_end: bool = True) -> TrialResult:
        leaks, seconds = self.find(trial)
        found = result(*[READ if leaks else HIDDEN] * trial.sentences, seconds=seconds * trial.sentences)
        self.results[trial.name] = TrialResult(trial, found.sentences, found.batches, found.seconds)
        return self.results[trial.name]


def swept(folder: Path, find: Callable[[Trial], tuple[bool, float]]) -> Sweep:
    with Store(folder / "study.db") as store:
        session: Any = SimpleNamespace(store=store, executor=SimpleNamespace(slots=1))
        trainings = Trainings(REQUEST, SUBJECT, PLAN, None, session)  # type: ignore[arg-type] - none is begun
        every = ladders(SUBJECT, 1)
        sweep = Sweep(REQUEST, SUBJECT, PLAN, every, session, None, trainings, lambda *_: None)  # type: ignore[arg-type]
        sweep.runner = Pretended(sweep.results, find)  # type: ignore[assignment]
        sweep.run()
        return sweep


def tried(sweep: Sweep) -> set[str | None]:
    return {found.trial.ladder for found in sweep.results.values()} - {None}


def test_short_of_time_every_defense_is_tried_although_signs_took_all_their_time(tmp_path: Path) -> None:
    def find(trial: Trial) -> tuple[bool, float]:
        return True, 18.0 if trial.ladder == "sign" else 3.3 if trial.ladder else 1.6

    sweep = swept(tmp_path, find)
    assert tried(sweep) == {"precision", "clip", "sign", "prune", "noise", "dpsgd"}
    assert sweep.clock.spent <= 1.1 * REQUEST.budget
    assert any("the budget was spent" in line for line in sweep.skipped)
    advice = recommendation(sweep, {})
    assert advice["sentence"] == "None of the settings that were tried stays below the line."
    assert advice["detail"][0].startswith("At their strongest these still leak: lower precision, clipping, signs only")


def test_a_budget_that_ends_before_the_defenses_is_not_taken_for_defenses_that_leak(tmp_path: Path) -> None:
    advice = recommendation(swept(tmp_path, lambda trial: (True, 11.0)), {})
    assert advice["sentence"] == "No defense was tried: the budget was spent on the setup as it is."
    assert "Not tried, since the budget was spent: lower precision, clipping" in advice["detail"][0]


def test_a_defense_that_holds_early_does_not_keep_others_from_being_tried(tmp_path: Path) -> None:
    def find(trial: Trial) -> tuple[bool, float]:
        return trial.ladder in (None, "precision", "clip"), 18.0 if trial.ladder == "sign" else 2.0

    sweep = swept(tmp_path, find)
    assert tried(sweep) == {"precision", "clip", "sign", "prune", "noise", "dpsgd"}
    assert sweep.chosen is not None
    assert sweep.clock.spent <= 1.1 * REQUEST.budget


def test_an_audit_of_attacks_that_overrun_their_time_keeps_its_own(tmp_path: Path) -> None:
    """Each update that hides its text takes three times what it is given."""

    def find(trial: Trial) -> tuple[bool, float]:
        hides = trial.ladder in ("prune", "noise", "dpsgd")
        return not hides, 3 * trial.seconds if hides else 1.0

    sweep = swept(tmp_path, find)
    assert sweep.clock.spent <= 1.1 * REQUEST.budget
    assert any("the budget was spent" in line for line in sweep.skipped)


def test_time_that_is_left_confirms_the_ends_of_all_defenses(tmp_path: Path) -> None:
    def find(trial: Trial) -> tuple[bool, float]:
        return trial.ladder in (None, "precision", "clip", "sign"), 1.0

    sweep = swept(tmp_path, find)
    ends = [ladder.rungs[end].name for ladder in sweep.every if (end := sweep.searches[ladder.name].high) is not None]
    assert len(ends) == 3
    assert {len(sweep.results[name].sentences) for name in ends} == {PLAN.sample}
    assert sweep.clock.spent <= 1.1 * REQUEST.budget


def test_an_end_that_fails_on_more_sentences_gives_way_to_the_next_strength(tmp_path: Path) -> None:
    def find(trial: Trial) -> tuple[bool, float]:
        weak = trial.ladder == "noise" and trial.sentences > PLAN.probe and trial.place < 1.0
        return weak or trial.ladder in (None, "precision", "clip", "sign"), 0.5

    sweep = swept(tmp_path, find)
    assert sweep.chosen is not None
    assert sweep.chosen[0].name == "prune"
    noise = next(ladder for ladder in sweep.every if ladder.name == "noise")
    end = sweep.searches["noise"].high
    assert end is not None
    assert noise.rungs[end].place >= 1.0


def test_what_was_held_back_and_not_needed_ends_the_search(tmp_path: Path) -> None:
    """Half of the budget is held back: the search stops early, the advice takes little, and the search goes on."""

    def find(trial: Trial) -> tuple[bool, float]:
        hides = trial.ladder in ("prune", "noise", "dpsgd")
        return not hides, (4.5 if trial.sentences == PLAN.probe else 0.2) if hides else 1.0

    sweep = swept(tmp_path, find)
    assert all(search.next is None for search in sweep.searches.values())
    assert not [line for line in sweep.skipped if line.startswith("more strengths")]
