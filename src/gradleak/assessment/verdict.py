"""The verdict in one sentence, the recommendation with its price, and the gate for a build server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.assessment.request import SafetyLine
from gradleak.assessment.sweep import OWN, Sweep
from gradleak.assessment.trials import TrialResult
from gradleak.errors import GradleakError, unknown_name
from gradleak.metrics import SCORE_NAMES
from gradleak.reports.page import price

WORST = "worst-"
FEWEST_CONFIRMED = 8
"""Sentences below which the page says that a recommendation rests on few."""


def verdict(own: TrialResult, line: SafetyLine, informed: Sequence[TrialResult] = ()) -> dict[str, str]:
    """Return the verdict on the own setup: a level, one sentence, and the worst case in another.

    Args:
        own: the own setup.
        line: where it counts as safe.
        informed: the own setup against attackers who are told more.
    """
    count, exact = len(own.sentences), own.exact
    if not count:
        return {
            "level": "unknown",
            "sentence": "The setup could not be measured.",
            "detail": f"{own.error or 'Nothing was attacked'}.",
        }
    most = max(s.rougeL for s in own.sentences)
    detail = (
        f"Mean ROUGE-L {own.rouge_l:.0f} over {count} sentences, from {min(s.rougeL for s in own.sentences):.0f} to "
        f"{most:.0f}; the worst case counts as much as the mean."
    )
    if exact == count:
        words = "the one sentence that was attacked" if count == 1 else f"all {count} sentences that were attacked"
        return {
            "level": "leaks",
            "sentence": f"With this setup {words} can be read back word for word.",
            "detail": detail,
        }
    if own.leaks(line):
        level = "leaks" if own.rouge_l >= 50 or exact else "partly"
        read = f"{exact} of {count} sentences word for word" if exact else "parts of sentences"
        return {"level": level, "sentence": f"With this setup an attacker reads back {read}.", "detail": detail}
    worst = max(informed, key=lambda result: result.rouge_l, default=own)
    if worst.leaks(line):
        return {
            "level": "partly",
            "sentence": "An attacker who is told nothing stays below the line; one who is told all but the words "
            f"reads back {worst.exact} of {len(worst.sentences)} sentences word for word.",
            "detail": f"{detail} Told more: mean ROUGE-L {worst.rouge_l:.0f}.",
        }
    return {
        "level": "holds",
        "sentence": f"With this setup the attacks stay below the line: ROUGE-L {line.rouge_l:g}, no sentence of more "
        f"than {line.words} words.",
        "detail": f"{detail} Better attacks, more time or more sentences may find more.",
    }


def recommendation(sweep: Sweep, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the cheapest setting that was found to stay below the line, with its price; or that none was.

    Args:
        sweep: the finished sweep.
        numbers: number of each setting in the record, by its name.
    """
    own, line = sweep.own, sweep.request.line
    if not own.sentences:
        return _advice("Nothing can be recommended: the own setup was not measured.", [])
    if not any(result.leaks(line) for result in sweep.of_own_setup()):
        return _advice(
            "Keep the setup as it is: no attack that was tried reads more than the line allows.",
            [*_leaking_batches(sweep), "Audit again when the model, the batch size or the way of training changes."],
            setting=numbers.get(OWN),
        )
    if sweep.chosen is None:
        untried = _untried(sweep)
        sentence = (
            "None of the settings that were tried stays below the line."
            if len(untried) < len(sweep.every)
            else "No defense was tried: the budget was spent on the setup as it is."
        )
        return _advice(sentence, [_why_none(sweep, untried), *_larger_batches(sweep)])
    rung = sweep.chosen[1]
    result = sweep.results[rung.name]
    confirmed = (
        f"{len(result.sentences)} sentences were attacked under it: mean ROUGE-L {result.rouge_l:.0f}, the worst "
        f"{max(s.rougeL for s in result.sentences):.0f}, {result.exact} word for word."
    )
    priced = sweep.trainings.record()["measured"]
    return _advice(
        f"Of the settings tried, the cheapest that stays below the line is: {rung.name}."
        if priced
        else f"Of the settings tried, this one stays below the line and usually costs least: {rung.name}.",
        [confirmed, *_few(result), *_hurried(result), _price(sweep), *_told(sweep), *_larger_batches(sweep)],
        options=[rung.option],
        setting=numbers.get(rung.name),
    )


def _advice(
    sentence: str, detail: Sequence[str], options: Sequence[str] = (), setting: int | None = None
) -> dict[str, Any]:
    kept = [line for line in detail if line]
    return {"sentence": sentence, "detail": kept, "options": list(options), "setting": setting}


def _price(sweep: Sweep) -> str:
    assert sweep.chosen is not None
    whole = sweep.trainings.record()
    utility = sweep.trainings.found.get(sweep.defended(*sweep.chosen))
    if not whole["measured"] or utility is None:
        return (
            f"What it costs is not known. {whole['note']}"
            if not whole["measured"]
            else "What it costs was not measured."
        )
    return f"It costs: {price(utility, whole)}, against {price(whole['baseline'], whole)} without it."


def _few(result: TrialResult) -> list[str]:
    if len(result.sentences) >= FEWEST_CONFIRMED:
        return []
    return ["That is few: a larger --budget confirms it on more."]


def _hurried(result: TrialResult) -> list[str]:
    if not result.out_of_time:
        return []
    return [
        f"The attack used all of the {result.trial.seconds:g} seconds that it had for each update, and might read more "
        "in more time: repeat the audit with a larger --budget before you rely on this."
    ]


def _told(sweep: Sweep) -> list[str]:
    told = [
        r for r in sweep.results.values() if r.trial.axis == "knowledge" and r.trial.ladder is not None and r.sentences
    ]
    if not told:
        return ["An attacker who is told more than the own setup gives away was not tried against it."]
    last = told[-1]
    return [
        f"An attacker who is told everything but the words, with {last.trial.seconds:g} seconds for each update, gets "
        f"ROUGE-L {last.rouge_l:.0f} on {len(last.sentences)} sentences, the worst "
        f"{max(s.rougeL for s in last.sentences):.0f}."
    ]


def _larger_batches(sweep: Sweep) -> list[str]:
    safe = [
        r.trial.batch_size
        for r in sweep.results.values()
        if r.trial.axis == "batch" and r.sentences and not r.leaks(sweep.request.line)
    ]
    larger = [size for size in safe if size > sweep.request.batch_size]
    if not larger:
        return []
    return [f"Nothing came back from batches of {min(larger)} either, but batch size alone is no guarantee."]


def _leaking_batches(sweep: Sweep) -> list[str]:
    sizes = [
        r.trial.batch_size for r in sweep.results.values() if r.trial.axis == "batch" and r.leaks(sweep.request.line)
    ]
    if not sizes:
        return []
    return [f"But keep the batch size: text comes back from batches of {', '.join(map(str, sorted(sizes)))}."]


def _untried(sweep: Sweep) -> list[str]:
    """Return the defenses of which no strength was tried."""
    begun = {name for name, search in sweep.searches.items() if search.begun}
    return [ladder.title for ladder in sweep.every if ladder.name not in begun]


def _why_none(sweep: Sweep, untried: Sequence[str]) -> str:
    leaking = [
        ladder.title
        for ladder in sweep.every
        if ladder.name in sweep.searches and sweep.searches[ladder.name].leaks_at_strongest
    ]
    words = f"At their strongest these still leak: {', '.join(leaking)}. " if leaking else ""
    words += f"Not tried, since the budget was spent: {', '.join(untried)}. " if untried else ""
    return f"{words}Give more time (--budget), or combine defenses and audit them (--defense … --defense …)."


# --- the gate ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateLimit:
    """A score that must not be exceeded.

    Attributes:
        text: as the user wrote it, without the number.
        score: name of the score.
        limit: the largest value that passes.
        worst: whether every sentence counts, not the mean.
    """

    text: str
    score: str
    limit: float
    worst: bool

    @classmethod
    def parse(cls, text: str) -> GateLimit:
        """Parse `rougeL=20`, or `worst-rougeL=80` for the worst sentence.

        Raises:
            GradleakError: if it names no score, or no number from 0 to 100.
        """
        name, _, number = (part.strip() for part in text.partition("="))
        score = name.removeprefix(WORST)
        if score not in SCORE_NAMES:
            raise unknown_name("score of --fail-above", score, SCORE_NAMES)
        if not re.fullmatch(r"\d{1,3}(\.\d+)?", number) or not 0 <= float(number) <= 100:
            raise GradleakError(f"--fail-above takes SCORE=X with X from 0 to 100, such as rougeL=20, not '{text}'")
        return cls(name, score, float(number), name.startswith(WORST))

    def check(self, results: Sequence[TrialResult]) -> dict[str, Any]:
        """Return the largest value found, and whether it passes: the own setup, whatever the attacker was told."""
        values = [
            max(each) if self.worst else sum(each) / len(each)
            for result in results
            if result.sentences
            for each in [[float(getattr(sentence, self.score)) for sentence in result.sentences]]
        ]
        found = max(values, default=None)
        passed = found is not None and found <= self.limit
        return {
            "score": self.text,
            "limit": self.limit,
            "found": None if found is None else round(found, 2),
            "passed": passed,
        }
