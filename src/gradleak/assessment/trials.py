"""A trial: one setting of an audit, cut into cells of a study, and what they found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradleak.assessment.request import AuditRequest, SafetyLine
from gradleak.assessment.subject import Subject
from gradleak.audit.scenario import ClientSettings
from gradleak.exchange import FACTS
from gradleak.federation import WireFormat
from gradleak.metrics import SCORE_NAMES
from gradleak.studies.definition.cells import AttackCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.specs import AttackSpec, DataSpec
from gradleak.studies.records.outcome import Sentence
from gradleak.studies.records.store import Store
from gradleak.studies.report.intervals import bootstrap

FEWEST_FOR_INTERVAL = 30
"""Sentences below which no interval is given: it would pretend to know."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting.

    Attributes:
        axis: `own`, `batch`, `defense` or `knowledge`.
        name: in words.
        sentences: number of attacked sentences, a multiple of those behind one update.
        batch_size: sentences of a client's batch.
        defenses: applied to the updates, in order.
        send: number format that is sent; None for the user's own.
        facts: what the attacker is told.
        seconds: time for each update.
        ladder: name of its ladder, for a defense.
        place: position on the chart's axis.
        label: short strength, on that axis.
    """

    axis: str
    name: str
    sentences: int
    batch_size: int
    defenses: tuple[str, ...] = ()
    send: WireFormat | None = None
    facts: tuple[str, ...] = ()
    seconds: float
    ladder: str | None = None
    place: float = 0.0
    label: str = ""

    def client(self, own: ClientSettings) -> ClientSettings:
        """Return the client of this setting."""
        return own if self.send is None else replace(own, send=self.send)

    def updates(self, clients: int) -> int:
        """Return the number of updates that are attacked."""
        return self.sentences // (self.batch_size * clients)

    def cells(self, request: AuditRequest, subject: Subject, library: Library) -> list[AttackCell]:
        """Return its cells, one for each update, so that a stop loses little and workers share the work."""
        step = self.batch_size * request.client.clients
        return [self._cell(request, subject, library, start, step) for start in range(0, self.sentences, step)]

    def _cell(self, request: AuditRequest, subject: Subject, library: Library, start: int, step: int) -> AttackCell:
        data = DataSpec(request.data.name, f"{start}:{start + step}", labels=request.data.labels)
        settings = {**request.settings, "budget": self.seconds}
        return AttackCell(
            target=subject.target,
            defenses=self.defenses,
            seed=request.seed,
            hashes={"weights": library.weights_hash(subject.target), "sentences": library.sentences_hash(data)},
            dataset=data,
            batch_size=self.batch_size,
            client=self.client(request.client),
            knowledge=tuple(fact for fact in FACTS if fact in self.facts),
            attack=AttackSpec(request.attack, None, settings).with_preset(None),
        )


@dataclass(frozen=True)
class TrialResult:
    """What a trial found.

    Attributes:
        trial: the setting.
        sentences: every attacked sentence with its scores.
        batches: for each sentence the number of its update.
        seconds: of all its cells.
        error: why nothing was measured; None if something was.
    """

    trial: Trial
    sentences: tuple[Sentence, ...]
    batches: tuple[int, ...]
    seconds: float
    error: str | None = None

    @property
    def pace(self) -> float:
        """Seconds for each update."""
        return self.seconds / max(1, len(set(self.batches)))

    @property
    def out_of_time(self) -> bool:
        """Whether the attack used all its time on some update without reading it: more time might find more."""
        return bool(self.sentences) and not self.reads_everything and self.pace >= 0.9 * self.trial.seconds

    @property
    def rouge_l(self) -> float:
        """Mean ROUGE-L."""
        return sum(s.rougeL for s in self.sentences) / len(self.sentences) if self.sentences else 0.0

    @property
    def exact(self) -> int:
        """Sentences that were read word for word."""
        return sum(bool(s.exact) for s in self.sentences)

    def exact_long(self, words: int) -> int:
        """Return the number of sentences with more than so many words that were read word for word."""
        return sum(bool(s.exact) and len(s.reference.split()) > words for s in self.sentences)

    def leaks(self, line: SafetyLine) -> bool:
        """Return whether it is not below the line."""
        return self.rouge_l >= line.rouge_l or self.exact_long(line.words) > 0

    @property
    def reads_everything(self) -> bool:
        """Whether every sentence was read word for word."""
        return bool(self.sentences) and self.exact == len(self.sentences)

    def scores(self) -> dict[str, dict[str, float | None]]:
        """Return mean, least, most and the 95 % interval of the mean, which few sentences do not have."""
        table = np.array([[getattr(s, name) for name in SCORE_NAMES] for s in self.sentences], dtype=np.float64)
        batches = np.array(self.batches, dtype=np.int64)
        ends = bootstrap(table, np.array([len(table)]), batches)[0]
        enough = len(table) >= FEWEST_FOR_INTERVAL
        return {
            name: {
                "mean": _rounded(table[:, place].mean()),
                "min": _rounded(table[:, place].min()),
                "max": _rounded(table[:, place].max()),
                "low": _rounded(ends[place, 1]) if enough else None,
                "high": _rounded(ends[place, 2]) if enough else None,
            }
            for place, name in enumerate(SCORE_NAMES)
        }


def collect(trial: Trial, cells: Sequence[AttackCell], store: Store, errors: Mapping[str, str]) -> TrialResult:
    """Return what the store holds of a trial's cells.

    Args:
        trial: the setting.
        cells: its cells.
        store: the records.
        errors: by cell, why it failed.
    """
    sentences: list[Sentence] = []
    batches: list[int] = []
    seconds = 0.0
    for number, cell in enumerate(cells):
        found = store.provenance(cell.id)
        if found is None:
            continue
        seconds += found[0]
        for sentence in store.sentences(cell.id):
            sentences.append(sentence)
            batches.append(number)
    failed = next((errors[cell.id] for cell in cells if cell.id in errors), "not measured")
    error = None if sentences else without_quotes(failed)
    return TrialResult(trial, tuple(sentences), tuple(batches), seconds, error)


def without_quotes(error: str) -> str:
    """Return an error without what it quotes, which may be private text."""
    return re.sub(r"""(?<!\w)(?P<mark>['"]).*?(?P=mark)""", "\N{HORIZONTAL ELLIPSIS}", error)


def setting_record(
    result: TrialResult, number: int, line: SafetyLine, utility: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what audit.json holds of a setting."""
    trial = result.trial
    return {
        "id": number,
        "axis": trial.axis,
        "name": trial.name,
        "ladder": trial.ladder,
        "place": trial.place,
        "label": trial.label,
        "defenses": list(trial.defenses),
        "send": trial.send,
        "batch_size": trial.batch_size,
        "knowledge": list(trial.facts),
        "sentences": len(result.sentences),
        "scores": result.scores() if result.sentences else None,
        "exact": result.exact,
        "exact_long": result.exact_long(line.words),
        "below": bool(result.sentences) and not result.leaks(line),
        "seconds": round(result.seconds, 1),
        "seconds_for_each_update": trial.seconds,
        "out_of_time": result.out_of_time,
        "utility": None if utility is None else dict(utility),
        "error": result.error,
    }


def _rounded(value: float) -> float:
    return round(float(value), 2)
