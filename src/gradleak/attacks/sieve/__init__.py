"""Sieve: read the text out of the first layer's gradient instead of searching for it; see README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.attacks.sieve.endings import with_endings
from gradleak.attacks.sieve.guesses import Sentence, arranged, fitted, likeliest
from gradleak.attacks.sieve.inputs import Inputs, first_inputs
from gradleak.attacks.sieve.labels import read_labels
from gradleak.attacks.sieve.masked import read_masked
from gradleak.attacks.sieve.peeling import read_plain
from gradleak.attacks.sieve.robust import read_changed
from gradleak.attacks.sieve.seen import Seen, Teller
from gradleak.attacks.sieve.subspace import Subspace, row_space
from gradleak.attacks.sieve.verify import Proof, by_whole_gradient
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Finding, Knowledge, Reporter, Snapshot, Victim
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.tokens import observed_tokens
from gradleak.priors import load_prior
from gradleak.targets import Target

__all__ = ["Proof", "Sieve", "by_whole_gradient", "dropout_is_off", "first_inputs", "possible_words", "row_space"]

EXACT = 0.2
"""An update is read from its row space if the floor is below this share of the smallest singular value of the text:
vectors of the text then lie in the space to about that share. Float32 leaves 1e-6, a step of SGD with a learning rate
of 1 leaves 1e-4, a cast to float16 2e-3 to 2e-2, one to bfloat16 1e-2 to 7e-2; noise that shows leaves more."""

ROUNDED = 0.02
"""Share of an update that rounding leaves unexplained at most; texts that leave more are read again in another way."""

CLEAN = 1e-6
"""A floor below this is float32's own: what the row space does not tell then, nothing else will."""

ZEROS = 0.05
"""Share of zeros in a gradient from which on it was pruned."""

NO_DROPOUT = 1e-3
"""Without dropout less than this share of the first token's x lies outside the row space; with it, about 0.1 does, and
0.01 of a token that twenty sentences begin with, each with its own mask."""

MOST_LENGTHS = 16
"""More sentences than this are not listed one by one."""

TRUST = 0.3
"""How much what dropout has changed counts for the last token of a language model's text."""

NOTHING = (
    "nothing stands out of the first layer: noise covers it, or the batch has more tokens than the model dimensions"
)
INEXACT = (
    "no exact read-out: the update was perturbed, took several steps, holds too many tokens, or is of other weights"
)


@dataclass
class Reading:
    """What was read from one update so far.

    Attributes:
        sentences: token ids of each distinct text.
        copies: how often each was found, at least.
        labels: the class of each; None if they were not read.
        loss: share of the update that is not explained, or the distance of the gradients.
        notes: a line for each fact.
        proof: what the update proves.
    """

    sentences: list[Sentence] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    labels: list[int] | None = None
    loss: float = 1.0
    notes: list[str] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)


@register
@dataclass(frozen=True, kw_only=True)
class Sieve(Attack):
    """Sieve (gradleak's own): the first layer's inputs are a finite set, and its gradients span those of the batch.

    With dropout, masks are decoded (`masked.py`); without, sentences are peeled off one by one (`peeling.py`). Labels,
    lengths, batch size and dropout need not be known. What the update proves is marked as verified, with loss 0: what
    is left is rounding.

    Attributes:
        starts: how many beginnings of sentences are tried, at most, before peeling gives up.
        prior: a language model that proposes words where noise hides them: `embedded`, `none`, or the directory or hub
            id of another, which then only decides between sentences that the update does not tell apart.
    """

    name: ClassVar[str] = "sieve"
    paper: ClassVar[str] = "gradleak, docs/attacks/sieve.md"
    needs: ClassVar[tuple[str, ...]] = ("attention gradients",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {}, "fast": {"starts": 100}}

    starts: int = 600
    prior: str = "embedded"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.starts < 1:
            raise GradleakError("sieve takes starts of at least 1")

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read one update after the other."""
        inputs = first_inputs(target)
        findings: list[Finding] = []

        def tell(sentences: Sequence[Tensor], loss: float) -> None:
            texts = tuple(target.decode(sentence.tolist()) for sentence in sentences)
            reporter(len(findings), len(victims), lambda: (loss, texts))

        for number, victim in enumerate(victims, start=1):
            findings.append(self._finding(target, inputs, victim, tell, reporter.deadline))
            reporter(number, len(victims), lambda: (findings[-1].loss, findings[-1].history[-1].texts))
        return findings

    def _side_by_side(self, target: Target) -> bool:
        return False

    def _finding(self, target: Target, inputs: Inputs, victim: Victim, tell: Teller, deadline: Deadline) -> Finding:
        gradient = victim.gradient
        for projection in inputs.maps:
            if projection.weight not in gradient:
                raise GradleakError(f"{self.name} needs the gradient of {projection.weight}; this update has none")
        space = row_space([projection.weight_in(gradient) for projection in inputs.maps])
        seen = Seen(target, inputs, gradient, possible_words(target, victim), target.max_length, tell, deadline)
        reading = self._read(seen, victim.knowledge, space)
        if reading.sentences and reading.labels is None:
            reading.labels = read_labels(target, gradient, reading.sentences)
        reading = _as_known(seen, victim.knowledge, space, reading)
        texts = tuple(target.decode(ids) for ids in reading.sentences)
        return Finding(
            token_ids=reading.sentences,
            labels=reading.labels,
            loss=reading.loss,
            history=(Snapshot(1, reading.loss, texts),),
            notes=(*reading.notes, *_repeats(reading), *reading.proof.evidence),
            verified=reading.proof.verified,
            complete=reading.proof.complete,
            labels_verified=reading.proof.labels_verified,
            copies=tuple(reading.copies),
        )

    def _read(self, seen: Seen, known: Knowledge, space: Subspace) -> Reading:
        if space.rank == 0:
            return Reading(notes=["the first layer's gradient is zero: nothing can be read from it"])
        if space.error < EXACT and not _compressed(seen):
            off = dropout_is_off(seen.target, seen.inputs, space)
            reading = self._without_dropout(seen, space) if off else self._with_dropout(seen, space)
            if reading.sentences and (reading.proof.verified or reading.loss < ROUNDED):
                return reading
            if seen.deadline.passed or (reading.sentences and space.floor < CLEAN):
                return reading
        return self._changed(seen, known)

    def _with_dropout(self, seen: Seen, space: Subspace) -> Reading:
        target = seen.target
        found = read_masked(target, seen.inputs, seen.gradient, space, seen.words, seen.tell, seen.deadline)
        sentences = list(found.sentences)
        ends = with_endings(target, seen.gradient, sentences, TRUST) if target.task == "causal-lm" else None
        sentences = ends or sentences
        notes = [_overview(sentences), f"dropout found: rate about {found.rate:.2f}"]
        if ends:
            notes.append("each text's last token is an estimate")
        if found.missing:
            notes.append(f"{found.missing} of {space.rank} tokens not found")
        loss = 0.0 if found.proof.verified else found.loss
        return _distinct(Reading(sentences, [], found.labels, loss, notes, found.proof))

    def _without_dropout(self, seen: Seen, space: Subspace) -> Reading:
        target = seen.target
        longest = longest_length(target, seen.gradient) or target.max_length
        found = read_plain(
            target, seen.inputs, seen.gradient, seen.words, longest, self.starts, space.floor, seen.deadline
        )
        sentences = found.sentences
        if target.task == "causal-lm":
            sentences = with_endings(target, seen.gradient, sentences) or sentences
        labels = None
        if sentences and target.task == "classification":
            labels = read_labels(target, seen.gradient, sentences) or found.labels
        proof = by_whole_gradient(target, seen.gradient, sentences, labels)
        if not proof.verified and labels not in (None, found.labels):
            # the closed form takes each text once: labels found text by text hold where one occurs several times
            again = by_whole_gradient(target, seen.gradient, sentences, found.labels)
            labels, proof = (found.labels, again) if again.verified else (labels, proof)
        loss = 0.0 if proof.verified else proof.unexplained
        notes = [_overview(sentences), "no dropout"]
        if sentences and not proof.verified and loss < ROUNDED:
            notes.append(
                f"the texts explain all but {100 * loss:.2g} % of the update: about what rounding leaves, and no proof"
            )
        return _distinct(Reading(sentences, [], labels, loss, notes, proof))

    def _changed(self, seen: Seen, known: Knowledge) -> Reading:
        prior = None if self.prior == "none" else load_prior(self.prior, seen.target)
        found = read_changed(seen, known, prior)
        if found is None:
            return Reading(notes=[NOTHING])
        sentences = [tuple(ids) for ids in found.sentences]
        notes = [_overview(sentences), INEXACT]
        return _distinct(Reading(sentences, [], found.labels or None, found.distance, notes))


def possible_words(target: Target, victim: Victim) -> Tensor:
    """Return the ids that may stand inside a text: those that the word embeddings' gradient shows, if it was sent."""
    impossible = set(target.impossible_ids) - {target.tokenizer.unk_token_id}
    if target.word_parameters <= victim.gradient.keys() and target.task == "classification":
        ids = observed_tokens(target, victim.gradient)
        ids = ids[[int(i) not in impossible for i in ids]]
        if len(ids):  # an empty table shows no words, and rules none out
            return ids
    possible = [index for index in range(len(target.word_embeddings)) if index not in impossible]
    return torch.tensor(possible, device=target.device)


def _compressed(seen: Seen) -> bool:
    """Return whether entries were set to zero: a gradient of text has next to none that are."""
    zeros = [(projection.weight_in(seen.gradient) == 0).double().mean() for projection in seen.inputs.maps]
    return float(torch.stack(zeros).mean()) > ZEROS


def dropout_is_off(target: Target, inputs: Inputs, space: Subspace) -> bool:
    """Return whether some token's x at the first position lies in the row space as it is."""
    first = target.special_tokens[0][:1] or range(len(target.word_embeddings))
    tokens = torch.tensor(list(first), device=target.device)
    start = torch.zeros(1, dtype=torch.long, device=target.device)
    best = inputs.captured(space.basis, tokens, start)[:, 0].topk(min(16, len(tokens))).indices
    outside = space.outside(inputs(tokens[best], start.expand(len(best))))
    return bool((outside < max(NO_DROPOUT, 3 * space.error)).any())


def _overview(sentences: Sequence[Sentence]) -> str:
    lengths = sorted(map(len, dict.fromkeys(sentences)))
    if not lengths:
        return "no sentence found"
    if len(lengths) == 1:
        return f"1 sentence of {lengths[0]} tokens"
    if len(lengths) > MOST_LENGTHS:
        return f"{len(lengths)} sentences of {lengths[0]} to {lengths[-1]} tokens"
    return f"{len(lengths)} sentences of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} tokens"


def _distinct(reading: Reading) -> Reading:
    """Return the reading with each text once, and how often it was found."""
    copies: Counter[Sentence] = Counter()
    for sentence, count in zip(reading.sentences, reading.copies or [1] * len(reading.sentences), strict=True):
        copies[sentence] += count
    labels, proof = reading.labels, reading.proof
    if labels is not None and len(labels) == len(reading.sentences):
        pairs = set(zip(reading.sentences, labels, strict=True))
        labels = [labels[reading.sentences.index(sentence)] for sentence in copies]
        if len(pairs) > len(copies):  # a text that occurs with several labels is returned once, with one of them
            proof = replace(proof, labels_verified=False)
    return replace(reading, sentences=list(copies), copies=list(copies.values()), labels=labels, proof=proof)


def _repeats(reading: Reading) -> list[str]:
    if max(reading.copies, default=1) < 2:
        return []
    counts = ", ".join(f"text {n} {c} times" for n, c in enumerate(reading.copies, start=1) if c > 1)
    end = "; each was trained on at least once, maybe in several passes" if reading.proof.verified else ""
    return [f"found several times: {counts}{end}"]


def _agrees(known: Knowledge, sentences: Sequence[Sentence]) -> bool:
    if known.lengths is not None:
        return sorted(known.lengths) == sorted(map(len, sentences))
    return known.sequences in (None, len(sentences))


def _for_batch_of(told: int | None, counts: Sequence[int]) -> list[int]:
    """Return how often each text occurs in a batch of a size that was told; nothing if none was, or it does not fit.

    Without dropout a batch and the same batch twice have one gradient; several passes over a batch show its texts
    several times.
    """
    total = sum(counts)
    if told and total and told % total == 0:
        return [count * (told // total) for count in counts]
    if told and total % told == 0 and all(count % (total // told) == 0 for count in counts):
        return [count // (total // told) for count in counts]
    return []


def _as_known(seen: Seen, known: Knowledge, space: Subspace, reading: Reading) -> Reading:
    """Put the texts in the order that is known, and guess those that are missing; what is proven stays as it is."""
    target = seen.target
    copies = _for_batch_of(known.sequences, reading.proof.counts or reading.copies) or reading.copies
    places = [number for number, count in enumerate(copies) for _ in range(count)]
    occurring = [reading.sentences[number] for number in places]
    if reading.proof.verified and not _agrees(known, occurring):
        return replace(reading, notes=[*reading.notes, "the lengths or batch size told do not fit the update"])
    read = reading.labels or []
    read = [read[number] if number < len(read) else 0 for number in places]
    order = arranged(occurring, read if reading.labels else None, known)
    sentences: list[Sentence] = []
    for slot, number in enumerate(order):
        found = () if number is None else occurring[number]
        length = known.lengths[slot] if known.lengths is not None else len(found) or target.min_length
        if len(found) != length:
            found = fitted(target, found, length, likeliest(target, seen.inputs, space, seen.words, length, slot))
        sentences.append(found)
    labels = None
    proof = reading.proof
    if target.task == "classification":
        labels = [0 if number is None else read[number] for number in order]
        if known.labels is not None and labels != list(known.labels):
            labels, proof = list(known.labels), replace(proof, labels_verified=False)
    return _distinct(replace(reading, sentences=sentences, copies=[], labels=labels, proof=proof))
