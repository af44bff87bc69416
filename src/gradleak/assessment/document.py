"""The record of an audit, as audit.json holds it and the page shows it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from gradleak.assessment.ladders import Ladder
from gradleak.assessment.sweep import Sweep
from gradleak.assessment.trials import TrialResult, setting_record
from gradleak.assessment.verdict import GateLimit, recommendation, verdict
from gradleak.metrics import SCORE_NAMES
from gradleak.reports.record import MARK, SCHEMA, Record
from gradleak.reports.words import cleaned, sentence_record
from gradleak.studies.records.outcome import Sentence
from gradleak.version import __version__

SHOWN, SHOWN_OF_OWN = 40, 6
"""Sentences in the record: of all settings, and of the own one."""

FEWEST_NOISE = 0.3
"""Noise multiplier of DP-SGD below which ε says nothing, however few steps are taken."""

AXES = ("own", "batch", "defense", "knowledge")
PACKAGES = ("torch", "transformers", "numpy", "scipy")


def make_record(
    sweep: Sweep,
    *,
    command: str,
    finished: bool,
    reveal: bool,
    gate: Sequence[GateLimit] = (),
    finished_at: str | None = None,
) -> Record:
    """Return the record of an audit.

    Args:
        sweep: the audit, finished or interrupted.
        command: the command that repeats it.
        finished: whether all was done.
        reveal: hold private words and what was read of them.
        gate: scores that must not be exceeded.
        finished_at: date and time.
    """
    line = sweep.request.line
    ordered = sorted(sweep.results.values(), key=lambda result: _order(sweep, result))
    numbers = {result.trial.name: number for number, result in enumerate(ordered)}
    utilities = sweep.trainings
    record: Record = {
        "gradleak": MARK,
        "schema": SCHEMA,
        "kind": "audit",
        "title": f"Leakage audit of {sweep.subject.facts['name']} on {sweep.request.data.name}",
        "revealed": reveal,
        "finished": finished,
        "notices": _notices(sweep, finished),
        "line": {"rougeL": line.rouge_l, "words": line.words},
        "verdict": verdict(sweep.own, line, [r for r in sweep.of_own_setup() if r.trial.axis == "knowledge"]),
        "recommendation": recommendation(sweep, numbers) if finished else None,
        "gate": [limit.check(sweep.of_own_setup()) for limit in gate],
        "threat_model": _threat_model(sweep),
        "own": numbers.get(sweep.own.trial.name),
        "settings": [
            setting_record(result, number, line, _utility_of(sweep, result)) for number, result in enumerate(ordered)
        ],
        "ladders": [_ladder(sweep, ladder) for ladder in sweep.every if ladder.name in sweep.searches],
        "utility": utilities.record() if sweep.searches else None,
        "defense_notes": _defense_notes(sweep),
        "batch_note": _batch_note(sweep),
        "sentences": _sentences(ordered, numbers, reveal),
        "sentences_total": sum(len(result.sentences) for result in ordered),
        "capacity": _capacity(sweep),
        "measured": _measured(sweep, command, finished_at),
    }
    return cleaned(record)


def _order(sweep: Sweep, result: TrialResult) -> tuple[int, int, float, float]:
    trial = result.trial
    names = [ladder.name for ladder in sweep.every]
    rank = names.index(trial.ladder) if trial.ladder in names else -1
    return AXES.index(trial.axis), rank, trial.place, trial.batch_size


def _utility_of(sweep: Sweep, result: TrialResult) -> dict[str, Any] | None:
    trial = result.trial
    if trial.axis not in ("own", "defense") or not sweep.trainings.possible:
        return None
    return sweep.trainings.found.get((trial.defenses, trial.send))


def _notices(sweep: Sweep, finished: bool) -> list[str]:
    texts, facts = sweep.subject.texts, sweep.subject.facts
    notices = [] if finished else ["This audit was interrupted: what is shown is complete, but more was planned."]
    if texts.skipped:
        notices.append(f"{texts.skipped} of {texts.rows} rows had no text or no label and were left out.")
    if texts.cut:
        notices.append(
            f"{texts.cut} texts were cut to the {facts['longest']} tokens that the model takes (--truncate)."
        )
    if texts.dropped:
        notices.append(f"{texts.dropped} texts were too short to train on and were left out.")
    return notices


def _threat_model(sweep: Sweep) -> dict[str, Any]:
    request = sweep.request
    told = ", ".join(fact.replace("-", " ") for fact in request.facts)
    fedavg = request.client.fedavg
    assumed = [
        "The weights that the client trained from: the attacker is the server, or reads what it receives.",
        "One update as it arrives, after all defenses. The attacker only listens and changes nothing.",
        f"How clients train: {request.client}, batches of {request.batch_size}."
        + (" The learning rate and the number of steps are known." if fedavg else ""),
        f"Of the texts it is told {told}."
        if told
        else "Of the texts it is told nothing: no lengths, labels or counts.",
        f"Up to {sweep.plan.patience:g} seconds of this machine for each update, {sweep.plan.seconds:g} under noise.",
    ]
    not_tested = [
        "A server that sends manipulated weights to make clients leak more.",
        "Attacks that combine the updates of several rounds, or that know parts of the text.",
        "Whether someone's text was used at all (membership), and what the finished model remembers.",
        *(f"{line[:1].upper()}{line[1:]}." for line in sweep.skipped),
    ]
    everything = ", ".join(fact.replace("-", " ") for fact in sweep.subject.can_be_told)
    notes = [f"Everything but the words: {everything}."] if _informed(sweep) else []
    if sweep.own.reads_everything:
        notes.append("The own setup is read whole without being told anything: more knowledge cannot add to it.")
    return {"assumed": assumed, "not_tested": not_tested, "knowledge_note": " ".join(notes) or None}


def _informed(sweep: Sweep) -> bool:
    return any(result.trial.axis == "knowledge" for result in sweep.results.values())


def _ladder(sweep: Sweep, ladder: Ladder) -> dict[str, Any]:
    search = sweep.searches[ladder.name]
    strongest = ladder.rungs[-1]
    if search.high is not None:
        end = ladder.rungs[search.high]
        milder = f"; at {ladder.rungs[search.low].label} text still comes back" if search.low >= 0 else ""
        counted = sweep.results.get(end.name)
        few = f" ({len(counted.sentences)} sentences)" if counted is not None else " (not tried)"
        summary = f"Below the line at {end.label}{few}{milder}." if len(ladder.rungs) > 1 else f"Below the line{few}."
    elif search.leaks_at_strongest:
        milder = f" at its strongest ({strongest.label}): nothing milder can help" if len(ladder.rungs) > 1 else ""
        summary = f"Text comes back{milder}."
    elif search.low >= 0:
        summary = f"Text comes back at {ladder.rungs[search.low].label}; stronger was not tried, the budget was spent."
    else:
        summary = "Not tried: the budget was spent."
    return {
        "name": ladder.name,
        "title": ladder.title,
        "unit": ladder.unit,
        "summary": summary,
        "ends_at": None if search.high is None else ladder.rungs[search.high].option,
    }


def _defense_notes(sweep: Sweep) -> list[str]:
    subject = sweep.subject
    lines = [
        f"Without a defense an update has {subject.values:,} entries and a median L2 norm of {subject.norm:.3g}: "
        f"noise of 1 × the update is noise:{subject.norm / subject.root:.3g} as an option.",
        "On the way to where leakage ends few sentences are attacked at each strength; what is recommended is "
        "confirmed on more.",
    ]
    private = [
        rung
        for ladder in sweep.every
        for rung in ladder.rungs
        if rung.multiplier is not None and rung.name in sweep.results
    ]
    if private:
        told = "; ".join(f"{rung.label}: {rung.option}, multiplier {rung.multiplier:.3g}" for rung in private)
        lines.append(f"DP-SGD as options, with the noise multiplier that ε is computed from: {told}.")
    if any(rung.multiplier < FEWEST_NOISE for rung in private if rung.multiplier is not None):
        lines.append(
            f"A multiplier below {FEWEST_NOISE:g} gives no useful guarantee of differential privacy: what such a "
            "setting is worth was measured against the attacks tried here, and is not proven against others."
        )
    failed = {words: error for words, error in sweep.trainings.errors.items() if words != sweep.trainings.own}
    return lines + [f"Training under {' + '.join(words[0])} failed: {error}" for words, error in failed.items()]


def _batch_note(sweep: Sweep) -> str | None:
    rows = [r for r in sweep.results.values() if r.trial.axis in ("own", "batch") and r.sentences]
    if len(rows) < 2:
        return None
    leaking = [r.trial.batch_size for r in rows if r.leaks(sweep.request.line)]
    safe = [r.trial.batch_size for r in rows if not r.leaks(sweep.request.line)]
    if not leaking:
        return "At none of these batch sizes text came back."
    if safe and min(safe) > max(leaking):
        return f"Text comes back up to batches of {max(leaking)}; at {min(safe)} the attack stayed below the line."
    return f"Text comes back up to batches of {max(leaking)}, the largest that the data or the time allowed."


def _sentences(ordered: Sequence[TrialResult], numbers: dict[str, int], reveal: bool) -> list[dict[str, Any]]:
    """Return a sample: the worst of the own setup, then the worst of every other setting."""
    chosen: list[tuple[TrialResult, Sentence]] = []
    for result in ordered:
        most = SHOWN_OF_OWN if result.trial.axis == "own" else 1
        worst = sorted(result.sentences, key=lambda s: (-s.rougeL, -len(s.reference)))[:most]
        chosen += [(result, sentence) for sentence in worst]
    chosen.sort(key=lambda pair: (pair[0].trial.axis != "own", -pair[1].rougeL))
    return [
        {
            "setting": numbers[result.trial.name],
            **sentence_record(
                sentence.reference,
                sentence.reconstruction,
                {name: getattr(sentence, name) for name in SCORE_NAMES},
                reveal=reveal,
            ),
        }
        for result, sentence in chosen[:SHOWN]
    ]


def _capacity(sweep: Sweep) -> dict[str, Any]:
    facts, lengths = sweep.subject.facts, sweep.subject.texts.lengths
    mean = sum(lengths) / len(lengths)
    sizes = sorted({r.trial.batch_size for r in sweep.results.values() if r.sentences})
    clients = sweep.request.client.clients
    rank, hidden = facts["rank"], facts["hidden"]
    lines = [
        f"A layer's gradient shows the span of its inputs: with fewer tokens than the {hidden:,} dimensions of an "
        "input, the words can be solved for; beyond that an attack has to search."
    ]
    if rank:
        lines.append(
            f"The adapter's rank {rank} limits what each of its matrices shows; several layers add to each other."
        )
    return {
        "hidden": hidden,
        "rank": rank,
        "parameters": facts["parameters"],
        "tokens": [[f"batch of {size}", round(size * clients * mean, 1)] for size in sizes],
        "limits": [["hidden size", hidden]] + ([["rank", rank]] if rank else []),
        "lines": lines,
    }


def _measured(sweep: Sweep, command: str, finished_at: str | None) -> dict[str, Any]:
    request, facts, plan = sweep.request, sweep.subject.facts, sweep.plan
    lengths = sorted(sweep.subject.texts.lengths)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    described = [
        ["model", f"{facts['name']}: {facts['family']}, {facts['layers']} layers, {facts['parameters']:,} parameters"],
        ["model hash", facts["hash"]],
        ["adapter", facts["adapter"] or ""],
        [
            "data",
            f"{request.data.name}, {sweep.subject.texts.rows:,} rows; taken: {request.data.take or 'a random sample'}",
        ],
        ["tokens of a text", f"{lengths[0]} to {lengths[-1]}, half of them up to {lengths[len(lengths) // 2]}"],
        ["client", str(request.client)],
        ["own defenses", ", ".join(request.defenses) or "none"],
        [
            "attack",
            f"{request.attack}, up to {plan.patience:g} s for each update, {plan.seconds:g} s under noise or pruning",
        ],
        ["seed", str(request.seed)],
        ["budget", f"{request.budget:g} s"],
        ["versions", f"Python {platform.python_version()}, {versions}"],
    ]
    total = sum(result.seconds for result in sweep.results.values()) + sweep.trainings.seconds
    return {
        "commands": [command],
        "lines": [
            "Clients are simulated here, so the truth is known and every result is scored against it. The same command "
            "continues after an interruption; the same seed gives the same numbers where no time limit was reached."
        ],
        "facts": [row for row in described if row[1]],
        "machine": _machine(sweep),
        "seconds": round(total, 1),
        "finished_at": finished_at,
        "version": __version__,
    }


def _machine(sweep: Sweep) -> dict[str, Any]:
    """Return the machine that ran the first update of the own setup."""
    cell = sweep.own.trial.cells(sweep.request, sweep.subject, sweep.library)[0]
    found = sweep.session.store.provenance(cell.id)
    names = ("platform", "processor", "cores", "threads", "device")
    return {} if found is None else {name: found[3][name] for name in names if name in found[3]}
