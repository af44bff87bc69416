"""Auto: examine an update and run the attacks that apply to it, strongest first, within a budget of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, find_attack, register
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Finding, Knowledge, Reporter, Snapshot, Update, Victim
from gradleak.leakage.evidence import Evidence, examine
from gradleak.leakage.proof import PROVEN, prove_by_whole_gradient
from gradleak.leakage.recompute import cosine_to_update
from gradleak.settings import setting
from gradleak.targets import Target

NEAREST, NEAREST_ROUNDED = 1e-7, 1e-5
"""Cosine distances below which no words can be nearer: rounding of float32, and of bfloat16."""

SIEVE_SHARE, SHARE = 0.9, 0.6
"""Fractions of the remaining time that an attack may take while others wait: one that reads, and one that searches."""

READERS = ("forest", "sieve")
"""Attacks that solve for the text: forest for decoders, sieve for all; what they count helps the others."""

SEARCHERS = ("lamp", "grab")
"""Attacks that search for texts, of lengths that they are told."""


@dataclass(frozen=True)
class AttackOutcome:
    """What one of the attacks found, and the distance of its gradient from the update's."""

    name: str
    finding: Finding
    distance: float
    cut_short: bool

    @property
    def note(self) -> str:
        """One line for the notes of the result."""
        if not self.finding.verified:
            if self.finding.settled:
                return f"{self.name}: read to the end, not proven"
            ended = ", out of time" if self.cut_short else ""
            return f"{self.name}: not confirmed{ended}; its gradient is {self.distance:.2g} from the update's (0 to 1)"
        whole = any(note.startswith(PROVEN) for note in self.finding.notes)
        source = "the whole gradient" if whole else "the first layer's gradient"
        return f"{self.name}: text confirmed against {source}"


@register
@dataclass(frozen=True, kw_only=True)
class Auto(Attack):
    """Gradleak's default: examine the update, order the attacks that apply to it, and spend a budget of time.

    It stops at a result that is verified, or whose gradient equals the update's; otherwise it returns the result with
    the smallest mean cosine distance between its gradient's tensors and the update's. The notes say what the update
    revealed and what was tried.
    """

    name: ClassVar[str] = "auto"
    paper: ClassVar[str] = "gradleak, docs/attacks/auto.md"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {}, "fast": {"budget": 15.0}}

    budget: float = setting(
        60.0, "time for one update, after which the best result so far is returned", unit="seconds", above=0
    )

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Attack one update after the other, each within the whole budget."""
        return [self._attack(target, victim, reporter) for victim in victims]

    def _attack(self, target: Target, victim: Victim, reporter: Reporter) -> Finding:
        deadline = reporter.deadline.sooner(self.budget)
        evidence = examine(target, victim.gradient, victim.protocol)
        outcomes: list[AttackOutcome] = []
        failures: list[str] = []
        attacks = plan(target, victim, evidence)
        for attack in attacks:
            if outcomes and deadline.passed:
                break
            share = 1.0 if attack is attacks[-1] else SIEVE_SHARE if attack.name in READERS else SHARE
            part = reporter.within(deadline.sooner(share * deadline.left))
            try:
                outcomes.append(_run(attack, target, _informed(victim, outcomes, attack), part, evidence))
            except Exception as error:  # one attack's failure must not hide what the others find
                failures.append(f"{attack.name} failed ({' '.join(str(error).split())}); the others went on")
                continue
            nearest = NEAREST_ROUNDED if evidence.rounded else NEAREST
            last = outcomes[-1]
            if last.finding.verified or last.finding.settled or last.distance < nearest:
                break
        if not outcomes:
            raise GradleakError(f"no attack could be run on this update: {'; '.join(failures) or 'none applies to it'}")
        best = min(outcomes, key=lambda o: (not o.finding.verified, not o.finding.settled, o.distance))
        notes = (*evidence.lines, *(outcome.note for outcome in outcomes), *failures, *best.finding.notes)
        texts = tuple(target.decode(ids) for ids in best.finding.token_ids)
        reporter(1, 1, lambda: (best.distance, texts))
        history = best.finding.history or (Snapshot(1, best.distance, texts),)
        loss = best.finding.loss if best.finding.verified else best.distance
        return replace(best.finding, notes=tuple(dict.fromkeys(notes)), history=history, loss=loss)


def plan(target: Target, victim: Victim, evidence: Evidence) -> list[Attack]:
    """Return the attacks that apply to an update, strongest first."""
    hybrid = ("lamp", "grab") if evidence.dropout is False else ("grab", "lamp")
    wanted: list[Attack] = [find_attack("forest")(), find_attack("sieve")()]
    if not evidence.pruned and not evidence.only_signs:  # that the words are recognisable, mosaic checks itself
        wanted.append(find_attack("mosaic").with_settings())
    wanted += [find_attack(name).with_settings("fast") for name in hybrid]
    update = Update(dict(victim.gradient))
    return [attack for attack in wanted if attack.applies(target, update, victim.knowledge)]


def _informed(victim: Victim, outcomes: Sequence[AttackOutcome], attack: Attack) -> Victim:
    """Return the victim with what was read of number, lengths, classes and words, and a fresh random stream.

    What is known stays. Only attacks that search for texts of given lengths are told these, the classes of the texts
    in the same order, and the words, from which they start.
    """
    known, draft = victim.knowledge, victim.draft
    read = next((o.finding for o in outcomes if o.name in READERS), None)
    counted = (sum(read.copies) or len(read.token_ids)) if read is not None else 0
    if known.sequences is None and counted:
        known = replace(known, batch_size=counted)
    if read is not None and attack.name in SEARCHERS and known.lengths is None and known.longest is None:
        lengths = tuple(map(len, read.token_ids))
        if len(lengths) == known.sequences and all(lengths):
            labels = known.labels if known.labels is not None or read.labels is None else tuple(read.labels)
            known, draft = replace(known, lengths=lengths, labels=labels), read.token_ids
    generator = torch.Generator().manual_seed(victim.generator.initial_seed())
    return replace(victim, knowledge=known, generator=generator, draft=draft, inferred={})


def _run(attack: Attack, target: Target, victim: Victim, reporter: Reporter, evidence: Evidence) -> AttackOutcome:
    finding = attack.run(target, [victim], reporter)[0]
    if not finding.verified and evidence.attention:
        finding = verified_by_gradient(target, victim, finding, reporter.deadline)
    distance = _distance(target, victim, finding, evidence)
    return AttackOutcome(attack.name, finding, distance, reporter.deadline.hit)


def verified_by_gradient(target: Target, victim: Victim, finding: Finding, deadline: Deadline | None = None) -> Finding:
    """Return a finding marked as verified if its gradient equals the update, whichever attack found it.

    Only with attention does every word and its position count: a maximum over positions may ignore words, and an LSTM
    forgets.
    """
    texts = list(map(tuple, finding.token_ids))
    labels = None if finding.labels is None else list(finding.labels)
    if labels is not None and len(labels) == len(texts):
        pairs = list(dict.fromkeys(zip(texts, labels, strict=True)))
        texts, labels = [text for text, _ in pairs], [label for _, label in pairs]
    if len(set(texts)) < len(texts) or not all(texts):  # one text with several labels is left unproven
        return finding
    proof = prove_by_whole_gradient(target, victim.gradient, texts, labels, victim.protocol, deadline)
    if not proof.verified:
        return finding
    return replace(
        finding,
        token_ids=texts,
        labels=labels,
        loss=0.0,
        notes=(*finding.notes, *proof.evidence),
        verified=True,
        complete=proof.complete,
        labels_verified=proof.labels_verified,
        copies=(),
    )


def _distance(target: Target, victim: Victim, finding: Finding, evidence: Evidence) -> float:
    """Return the cosine distance of the words' gradient from the update's, one measure for all attacks."""
    if not any(finding.token_ids):
        return 1.0
    names = [name for name in victim.gradient if name not in target.embedding_parameters]
    labels = None
    if target.task == "classification":
        labels = _labels(target, victim.knowledge, finding, len(finding.token_ids))
    pruned = evidence.pruned
    return cosine_to_update(target, victim.gradient, finding.token_ids, labels, names, kept_only=pruned)


def _labels(target: Target, known: Knowledge, finding: Finding, count: int) -> Tensor:
    """Return classes as known or found; uniform probabilities if neither is available."""
    classes = next((row for row in (known.labels, finding.labels) if row is not None and len(row) == count), None)
    if classes is None:
        even = torch.full((count, target.num_labels), 1 / target.num_labels)
        return even.to(target.device, target.dtype)
    return torch.tensor(list(classes), device=target.device)
