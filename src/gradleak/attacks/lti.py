"""LTI and LTI-P: a network that was trained for the target reads the gradient and returns the text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.exchange import Deadline, Finding, Reporter, Snapshot, Victim
from gradleak.inverters.card import Card
from gradleak.inverters.selection import InverterNeeds, choose_inverter
from gradleak.leakage.labels import known_labels
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.optimisation.slots import Slots, impossible_words, trimmed
from gradleak.settings import setting
from gradleak.targets import Target

# Victims whose gradients are read in one pass: the logits of each are as wide as the vocabulary.
VICTIMS_PER_PASS = 128
# Labellings of a batch that are compared where the labels are neither known nor inferred.
MOST_LABELLINGS = 256


@register
@dataclass(frozen=True, kw_only=True)
class Lti(Attack):
    """Learning to Invert (section 3): a trained network maps the gradient to tokens, without any search.

    The inverter is trained beforehand, by `gradleak invert train`. Of several in a folder, the one for this target,
    batch size and, if it is known, defense is used. The reported loss is the cosine distance between the gradient
    of what was found and the observed one; the inverter itself does not use it. The paper's image half (section 4.1)
    is in `gradleak.vision`.
    """

    name: ClassVar[str] = "lti"
    paper: ClassVar[str] = "Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning"
    assumes: ClassVar[tuple[str, ...]] = ("lengths", "defense")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "fast": {}}
    pseudo_only: ClassVar[bool] = False

    inverter: str = setting(
        "inverters", "folder of an inverter, or of several folders with one each (gradleak invert train -o DIR)"
    )

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read the victims' gradients, all with the inverter that fits them."""
        inverter, notes = choose_inverter(self.inverter, target, self._needs(victims))
        findings = []
        for start in range(0, len(victims), VICTIMS_PER_PASS):
            part = victims[start : start + VICTIMS_PER_PASS]
            sent = {name: torch.stack([victim.gradient[name] for victim in part]) for name in inverter.reduction.names}
            logits = inverter(inverter.reduction(sent))  # [victims, sequences, positions, vocabulary]
            for victim, answer in zip(part, logits, strict=True):
                text = _decode(target, inverter.card, victim, answer)
                findings.append(_finding(target, victim, text, notes, reporter.deadline))
        first = findings[0]
        reporter(1, 1, lambda: (first.loss, tuple(target.decode(ids) for ids in first.token_ids)))
        return findings

    def _needs(self, victims: Sequence[Victim]) -> InverterNeeds:
        """Return what the inverter must be able to read; victims of one run differ in their lengths alone."""
        known = victims[0].knowledge
        return InverterNeeds(
            sent=victims[0].gradient.keys(),
            sequences=known.sequences or 1,
            longest=max((length for victim in victims for length in victim.knowledge.lengths or ()), default=0),
            defenses=known.defenses,
            pseudo_only=self.pseudo_only,
        )


@register
@dataclass(frozen=True, kw_only=True)
class LtiP(Lti):
    """LTI-P (section 4.2): LTI with an inverter that was trained on pseudo-data alone, never on a sentence of text."""

    name: ClassVar[str] = "lti-p"
    pseudo_only: ClassVar[bool] = True


@dataclass(frozen=True)
class _DecodedBatch:
    """The sentences decoded from an inverter's answer.

    Attributes:
        ids: token ids `[sequences, tokens]`.
        mask: True where there is a token.
        notes: what the inverter read beside the tokens.
    """

    ids: Tensor
    mask: Tensor
    notes: tuple[str, ...]


def _decode(target: Target, card: Card, victim: Victim, logits: Tensor) -> _DecodedBatch:
    """Return the most likely token at each position of an answer `[sequences, positions, vocabulary]`."""
    lengths, order = _lengths(target, card, victim, logits)
    slots = Slots.of(target, [[lengths]])
    mask = slots.mask[0, 0]
    possible = logits[order, : mask.shape[-1]].index_fill(-1, impossible_words(target), -torch.inf)
    ids = torch.where(slots.free[0, 0], possible.argmax(dim=-1), slots.ids[0, 0])
    note = f"lengths {', '.join(map(str, lengths))}: read by the inverter"
    return _DecodedBatch(ids, mask, (note,) if victim.knowledge.lengths is None else ())


def _lengths(target: Target, card: Card, victim: Victim, logits: Tensor) -> tuple[list[int], list[int]]:
    """Return the sentences' lengths, and which answer belongs to each: the longest known to the longest read."""
    is_token = logits.argmax(dim=-1) != target.pad_id  # [sequences, positions]
    read = is_token.long().cumprod(dim=1).sum(dim=1).clamp(min=max(card.shortest, target.min_length)).tolist()
    known = victim.knowledge.lengths
    if known is None:
        return read, list(range(len(read)))
    by_answer = sorted(range(len(read)), key=lambda answer: read[answer])
    by_length = sorted(range(len(known)), key=lambda sentence: known[sentence])
    belongs = dict(zip(by_length, by_answer, strict=True))
    return list(known), [belongs[sentence] for sentence in range(len(known))]


def _finding(
    target: Target, victim: Victim, batch: _DecodedBatch, notes: tuple[str, ...], deadline: Deadline
) -> Finding:
    """Return the sentences with their labels and the distance of their gradient from the observed one."""
    names = [name for name in victim.gradient if name not in target.word_parameters]
    matcher = Matcher(target, [victim.gradient], Cosine(), names).until(deadline)
    known, label_note = known_labels(target, victim)
    if target.task == "classification":
        loss, labels = closest_labelling(matcher, batch.ids, batch.mask, labellings(target, len(batch.ids), known))
    else:
        candidates = Candidates(batch.ids[None, None], batch.mask[None, None], batch.ids[None, None])
        loss, labels = float(matcher(candidates)), None
    token_ids = trimmed(batch.ids, batch.mask)
    return Finding(
        token_ids=token_ids,
        labels=labels,
        loss=loss,
        history=(Snapshot(1, loss, tuple(target.decode(row) for row in token_ids)),),
        notes=(*notes, *batch.notes, *([label_note] if label_note and known is not None else [])),
    )


def labellings(target: Target, sequences: int, known: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Return the labels that a batch may have: those known, or else all combinations, the first ones if too many."""
    if known is not None:
        return [tuple(known)]
    every = itertools.product(range(target.num_labels), repeat=sequences)
    return list(itertools.islice(every, MOST_LABELLINGS))


def closest_labelling(
    matcher: Matcher, ids: Tensor, mask: Tensor, labels: Sequence[tuple[int, ...]]
) -> tuple[float, list[int]]:
    """Return the smallest distance of a batch `[sequences, tokens]` over its possible labels, and the labels of it."""
    count = len(labels)
    classes = torch.tensor(labels, device=ids.device)[None]  # [1, labellings, sequences]
    distances = matcher(Candidates(ids.expand(1, count, -1, -1), mask.expand(1, count, -1, -1), classes))[0]
    best = int(distances.argmin())
    return float(distances[best]), list(labels[best])
