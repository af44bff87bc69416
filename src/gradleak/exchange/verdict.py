"""Verdicts on findings for readers who are no experts; `Attack` attaches one to every reconstruction."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.exchange.knowledge import Knowledge
from gradleak.exchange.victim import Finding

NOT_SAFE = "Not confirmed does not mean safe: another attack, more time or more knowledge may still read this update."
DEFEND = (
    "see what a defense changes: simulate the client with --defense noise:0.001 or another (gradleak list defenses)"
)
KNOWLEDGE = "tell the attacker more: --know labels,lengths; of a captured update --labels, --lengths or --batch-size"
EXPLAINED = "the texts explain all but"


@dataclass(frozen=True)
class Verdict:
    """A finding in words.

    Attributes:
        meaning: one sentence on what the result means.
        not_tested: claims that the result does not support.
        next_steps: suggestions for the user.
    """

    meaning: str
    not_tested: tuple[str, ...]
    next_steps: tuple[str, ...]


def verdict_on(attack: str, finding: Finding, known: Knowledge, *, out_of_time: bool) -> Verdict:
    """Return the verdict on a finding.

    Args:
        attack: the attack's name.
        finding: the attack's finding.
        known: the attacker's knowledge.
        out_of_time: whether the time budget ended the attack.
    """
    if finding.verified:
        return Verdict(_confirmed(finding), _not_tested(finding), (DEFEND,))
    if any(note.startswith(EXPLAINED) for note in finding.notes):
        meaning = (
            "Not proven, and hardly in doubt: these texts explain the update as far as its rounding lets it be told."
        )
        return Verdict(meaning, ("whether texts that differ by less than the rounding were trained on",), (DEFEND,))
    if not any(finding.token_ids):
        meaning, untested = f"Nothing was read by {attack}. {NOT_SAFE}", []
    else:
        meaning = f"Not confirmed: these texts are the best guess of {attack}. {NOT_SAFE}"
        untested = ["whether these texts were trained on"]
    untested.append("any other attack" if attack != "auto" else "attacks that the notes do not name")
    steps = [] if attack == "auto" else ["let gradleak choose the attacks that fit: --attack auto"]
    steps += ["give it more time: --budget 10m"] if out_of_time else []
    steps += [KNOWLEDGE] if known.labels is None or known.lengths is None else []
    return Verdict(meaning, tuple(untested), tuple(steps))


def _confirmed(finding: Finding) -> str:
    if finding.complete:
        return "Leak confirmed: the client trained on exactly these texts; they explain the whole update."
    return "Leak confirmed: the client trained on every one of these texts."


def _not_tested(finding: Finding) -> tuple[str, ...]:
    left = ["whether the update was computed honestly from the stated weights"]
    if not finding.complete:
        left.append("whether the client trained on other texts, too, that left no trace")
    if finding.labels is not None and not finding.labels_verified:
        left.append("the labels, which are an estimate")
    return tuple(left)
