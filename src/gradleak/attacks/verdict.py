"""What a result means, for a reader who is no expert: a verdict, what it does not say, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.attacks.base import Finding

NOT_SAFE = "Not confirmed does not mean safe: another attack, more time or more knowledge may still read this update."
DEFEND = "to see what a defense changes, run it again with --defense noise:0.001 or another of 'gradleak list defenses'"


@dataclass(frozen=True)
class Verdict:
    """The words that go with a result.

    Attributes:
        meaning: one sentence on what the result says.
        not_tested: what it says nothing about.
        next_steps: what to do next.
    """

    meaning: str
    not_tested: tuple[str, ...]
    next_steps: tuple[str, ...]


def verdict_on(attack: str, finding: Finding) -> Verdict:
    """Put a finding into words."""
    if finding.verified:
        return Verdict(_confirmed(finding), _left_open(finding), (DEFEND,))
    if not any(finding.token_ids):
        meaning = f"Nothing was read by {attack}. {NOT_SAFE}"
    else:
        meaning = f"Not confirmed: these texts are the best guess of {attack}. {NOT_SAFE}"
    untested = ["whether these texts were trained on", "attacks other than those that the notes name"]
    steps = ["give it more time: --budget 10m", "tell the attacker more: --know labels,lengths"]
    if attack != "auto":
        steps.insert(0, "let gradleak choose the attacks that fit: --attack auto")
    return Verdict(meaning, tuple(untested), tuple(steps))


def _confirmed(finding: Finding) -> str:
    if finding.complete:
        return "Leak confirmed: the client trained on exactly these texts; they explain the whole update."
    return "Leak confirmed: the client trained on every one of these texts."


def _left_open(finding: Finding) -> tuple[str, ...]:
    left = ["whether the update was computed honestly from the stated weights"]
    if not finding.complete:
        left.append("whether the client trained on other texts, too, that left no trace")
    if finding.labels is not None and not finding.labels_verified:
        left.append("the labels, which are an estimate")
    return tuple(left)
