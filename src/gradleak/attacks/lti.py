"""LTI: an inverter that was trained for the target reads the gradient and says the text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Finding, Reporter, Snapshot, Victim
from gradleak.inverters.network import Card, Inverter, inverters_in, load_inverter, read_card
from gradleak.leakage.labels import known_labels
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.optimisation.slots import Slots, impossible_words, trimmed
from gradleak.targets import Target

# Updates that an inverter reads at once: its answers are as wide as the vocabulary.
AT_ONCE = 128
# Ways to label a batch that are tried where labels are not told.
MOST_LABELLINGS = 256


@register
@dataclass(frozen=True, kw_only=True)
class Lti(Attack):
    """Learning to Invert (section 3): a trained network maps a gradient to tokens; nothing is searched here.

    `inverter` is a folder that `gradleak invert train` wrote, or one that holds several such folders: then the one for
    this target, batch size and, if the attacker is told it, defense is taken. The loss is the cosine distance between
    the gradient of what was found and the observed one; the inverter itself does not look at it. The paper's image half
    (section 4.1) is missing: this is text only.
    """

    name: ClassVar[str] = "lti"
    paper: ClassVar[str] = "Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning"
    assumes: ClassVar[tuple[str, ...]] = ("lengths", "defense")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "fast": {}}
    pseudo_only: ClassVar[bool] = False

    inverter: str = "inverters"

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read every victim's gradient with the inverter that fits it."""
        findings: dict[int, Finding] = {}
        for defenses in dict.fromkeys(victim.knowledge.defenses for victim in victims):
            numbers = [n for n, victim in enumerate(victims) if victim.knowledge.defenses == defenses]
            found = self._read(target, [victims[n] for n in numbers], reporter.deadline)
            findings |= dict(zip(numbers, found, strict=True))
        first = findings[0]
        reporter(1, 1, lambda: (first.loss, tuple(target.decode(ids) for ids in first.token_ids)))
        return [findings[number] for number in range(len(victims))]

    def _read(self, target: Target, victims: Sequence[Victim], deadline: Deadline) -> list[Finding]:
        inverter, notes = self._choose(target, victims[0])
        findings = []
        for start in range(0, len(victims), AT_ONCE):
            part = victims[start : start + AT_ONCE]
            read = {name: torch.stack([victim.gradient[name] for victim in part]) for name in inverter.reduction.names}
            logits = inverter(inverter.reduction(read))  # [victims, sequences, places, vocabulary]
            answers = zip(part, logits, strict=True)
            findings += [_finding(target, inverter.card, victim, answer, notes, deadline) for victim, answer in answers]
        return findings

    def _choose(self, target: Target, victim: Victim) -> tuple[Inverter, tuple[str, ...]]:
        """Return the inverter that fits a victim, and a note where it was trained for another defense."""
        folders = {folder: read_card(folder) for folder in inverters_in(self.inverter)}
        if not folders:
            raise GradleakError(
                f"there is no inverter in '{self.inverter}'; train one with gradleak invert train and give its folder "
                "with --set inverter=DIR"
            )
        own = {f: card for f, card in folders.items() if card.origin.fingerprint == target.fingerprint}
        if not own:
            load_inverter(next(iter(folders)), target)  # says whose it is
        sequences = victim.knowledge.sequences or 1
        told = victim.knowledge.defenses
        reasons = [self._misfit(card, sequences, victim) for card in own.values()]
        fitting = [folder for folder, reason in zip(own, reasons, strict=True) if reason is None]
        if not fitting:
            raise GradleakError(f"no inverter in '{self.inverter}' fits this update: {reasons[0]}")
        chosen = min(fitting, key=lambda folder: told is not None and own[folder].defenses != told)
        return load_inverter(chosen, target), tuple(_defense_note(own[chosen], told, chosen))

    def _misfit(self, card: Card, sequences: int, victim: Victim) -> str | None:
        """Return why an inverter cannot read a victim's update, or None."""
        missing = [name for name in card.parameters if name not in victim.gradient]
        lengths = victim.knowledge.lengths or ()
        if card.sequences != sequences:
            return f"it was trained for batches of {card.sequences}, and this one has {sequences}"
        if missing:
            return f"it reads the gradient of {missing[0]}, which was not sent"
        if max(lengths, default=0) > card.tokens:
            return f"it was trained for at most {card.tokens} tokens, and this text has {max(lengths)}"
        if self.pseudo_only and not card.pseudo:
            return "it was trained on text, not on pseudo-data alone"
        return None


@register
@dataclass(frozen=True, kw_only=True)
class LtiP(Lti):
    """LTI-P (section 4.2): as LTI, with an inverter that saw pseudo-data alone, and never a sentence of text."""

    name: ClassVar[str] = "lti-p"
    pseudo_only: ClassVar[bool] = True


def _finding(
    target: Target, card: Card, victim: Victim, logits: Tensor, notes: tuple[str, ...], deadline: Deadline
) -> Finding:
    """Turn an inverter's answer `[sequences, places, vocabulary]` into sentences."""
    lengths, order = _lengths(target, card, victim, logits)
    slots = Slots.of(target, [[lengths]])
    places = slots.ids.shape[-1]
    words = logits[order, :places].index_fill(-1, impossible_words(target), -torch.inf).argmax(dim=-1)
    ids = torch.where(slots.free[0, 0], words, slots.ids[0, 0])
    labels, label_note = known_labels(target, victim)
    loss, classes = _distance(target, victim, ids, slots.mask[0, 0], labels, deadline)
    found = trimmed(ids, slots.mask[0, 0])
    told = victim.knowledge.lengths is not None
    return Finding(
        token_ids=found,
        labels=classes,
        loss=loss,
        history=(Snapshot(1, loss, tuple(target.decode(row) for row in found)),),
        notes=(
            *notes,
            *([] if told else [f"lengths {', '.join(map(str, lengths))}: read by the inverter"]),
            *([label_note] if label_note and labels is not None else []),
        ),
    )


def _lengths(target: Target, card: Card, victim: Victim, logits: Tensor) -> tuple[list[int], list[int]]:
    """Return the sentences' lengths, and which answer belongs to each: the longest told to the longest read."""
    words = logits.argmax(dim=-1) != target.tokenizer.pad_token_id  # [sequences, places]
    read = words.long().cumprod(dim=1).sum(dim=1).clamp(min=max(card.shortest, target.min_length)).tolist()
    told = victim.knowledge.lengths
    if told is None:
        return read, list(range(len(read)))
    by_answer = sorted(range(len(read)), key=lambda answer: read[answer])
    by_length = sorted(range(len(told)), key=lambda sentence: told[sentence])
    belongs = dict(zip(by_length, by_answer, strict=True))
    return list(told), [belongs[sentence] for sentence in range(len(told))]


def _distance(
    target: Target, victim: Victim, ids: Tensor, mask: Tensor, labels: Sequence[int] | None, deadline: Deadline
) -> tuple[float, list[int] | None]:
    """Return the cosine distance of the sentences' gradient and their labels: those known, or the best that fit."""
    names = [name for name in victim.gradient if name not in target.word_parameters]
    matcher = Matcher(target, [victim.gradient], Cosine(), names).until(deadline)
    if target.task != "classification":
        return float(matcher(Candidates(ids[None, None], mask[None, None], ids[None, None]))), None
    tried = [tuple(labels)] if labels is not None else _labellings(target, len(ids))
    count = len(tried)
    classes = torch.tensor(tried, device=target.device)[None]  # [1, labellings, sequences]
    distances = matcher(Candidates(ids.expand(1, count, -1, -1), mask.expand(1, count, -1, -1), classes))[0]
    best = int(distances.argmin())
    return float(distances[best]), list(tried[best])


def _labellings(target: Target, sequences: int) -> list[tuple[int, ...]]:
    """Return ways to label a batch: all, or the first of too many."""
    every = itertools.product(range(target.num_labels), repeat=sequences)
    return list(itertools.islice(every, MOST_LABELLINGS))


def _defense_note(card: Card, told: tuple[str, ...] | None, folder: Path) -> list[str]:
    if told is None or told == card.defenses:
        return []
    names = [" + ".join(defenses) or "none" for defenses in (card.defenses, told)]
    return [f"the inverter in {folder} learnt under defense {names[0]}; this update is under {names[1]}"]
