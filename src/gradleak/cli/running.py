"""Attacks on many batches, group by group: what has finished stays finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradleak.audit.threads import fitting_threads
from gradleak.cli.codes import INTERRUPTED
from gradleak.cli.output.json_file import attack_record, summary, write_json
from gradleak.cli.output.live import Watch
from gradleak.cli.output.screen import Screen
from gradleak.cli.plans import Job, Plan, full_scenario

if TYPE_CHECKING:
    from gradleak.attacks import Attack
    from gradleak.exchange import Reconstruction
    from gradleak.metrics import BatchScores
    from gradleak.targets import Target

# Batches attacked side by side, and values that their updates may hold together: a group's updates are all in memory
# at once, and Ctrl-C loses the group it falls into.
GROUP = {"cpu": 16, "cuda": 64}
VALUES = {"cpu": 2**28, "cuda": 2**32}


@dataclass(frozen=True)
class Outcome:
    """What an attack found in one batch, and how close it came where the truth is known."""

    references: tuple[str, ...] | None
    reconstruction: Reconstruction
    scores: BatchScores | None

    @property
    def order(self) -> list[int | None]:
        """Which reconstructed sentence stands beside each reference; those that fit none follow."""
        every = range(len(self.reconstruction.texts))
        if self.scores is None:
            return list(every)
        return [*self.scores.matches, *(i for i in every if i not in self.scores.matches)]


def carry_out(
    plan: Plan,
    attack: Attack,
    preset: str,
    seed: int,
    screen: Screen,
    json_file: Path | None,
    budget: float | None = None,
) -> list[Outcome]:
    """Run a plan, draw it, write it down, and return what came out.

    Raises:
        typer.Exit: after Ctrl-C, when what had finished is drawn and written.
    """
    watch = screen.watch(plan.target.tokenizer)
    outcomes: list[Outcome] = []
    interrupted = False
    try:
        for group in run_groups(plan, attack, seed, watch, budget):
            for outcome in group:
                outcomes.append(outcome)
                screen.outcome(outcome, len(outcomes), plan.count)
    except KeyboardInterrupt:
        interrupted = True
        screen.interrupted(watch.last, len(outcomes), plan.count)
    screen.summary(summary(outcomes), outcomes)
    scenario = full_scenario(plan, preset) | ({} if budget is None else {"budget": budget})
    write_json(json_file, attack_record(attack, plan.target, scenario, seed, outcomes, interrupted))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    return outcomes


def run_groups(
    plan: Plan, attack: Attack, seed: int, watch: Watch, budget: float | None = None
) -> Iterator[list[Outcome]]:
    """Attack a plan's updates, as many side by side as fit, and yield each group when it is done."""
    jobs = plan.jobs
    size = group_size(plan.target, plan.first)
    done = 0
    while group := list(islice(jobs, size)):
        last = done + len(group)
        title = f"batch {last}" if len(group) == 1 else f"batches {done + 1} to {last}"
        with watch.group(f"{attack.name}, {title} of {plan.count}", group[0].references) as listener:
            updates, knowledge = [job.update for job in group], [job.knowledge for job in group]
            with fitting_threads(plan.target, knowledge):
                found = attack.many(plan.target, updates, knowledge, seed=seed, listener=listener, budget=budget)
        done = last
        yield [outcome_of(job, reconstruction) for job, reconstruction in zip(group, found, strict=True)]


def group_size(target: Target, job: Job) -> int:
    """Return how many updates to attack side by side."""
    kind = "cuda" if target.device.type == "cuda" else "cpu"
    return max(1, min(GROUP[kind], VALUES[kind] // max(1, job.update.num_values)))


def outcome_of(job: Job, reconstruction: Reconstruction) -> Outcome:
    """Score a reconstruction if the truth is known."""
    from gradleak.api import score

    scores = None if job.references is None else score(reconstruction, job.references)
    return Outcome(job.references, reconstruction, scores)
