"""Sieve: read the text out of the first layer's gradient instead of searching for it; see README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, Finding, Victim, register
from gradleak.attacks.inference import longest_length, observed_tokens
from gradleak.attacks.sieve.endings import with_endings
from gradleak.attacks.sieve.guesses import Sentence, arranged, fitted, likeliest
from gradleak.attacks.sieve.inputs import Inputs, first_inputs
from gradleak.attacks.sieve.labels import read_labels
from gradleak.attacks.sieve.masked import read_masked
from gradleak.attacks.sieve.peeling import read_plain
from gradleak.attacks.sieve.robust import read_changed
from gradleak.attacks.sieve.seen import Teller
from gradleak.attacks.sieve.subspace import Subspace, row_space
from gradleak.attacks.sieve.verify import difference, reproduces
from gradleak.errors import GradleakError
from gradleak.exchange import Glimpse, Knowledge, Reporter
from gradleak.priors import load_prior
from gradleak.targets import Target

__all__ = ["HIDDEN", "Sieve", "dropout_is_off", "first_inputs", "possible_words", "reproduces", "row_space"]

CLEAN = 1e-6
"""An update is as it was computed if its smallest singular value is below this share of the largest."""

ZEROS = 0.05
"""Share of zeros in a gradient from which on it was pruned."""

NO_DROPOUT = 1e-3
"""Without dropout less than this share of the first token's x lies outside the row space; with it, about 0.1 does, and
0.01 of a token that twenty sentences begin with, each with its own mask."""

TRUST = 0.3
"""How much what dropout has changed counts for the last token of a language model's text."""

HIDDEN = "this update hides its tokens from subspace attacks"


@dataclass
class Reading:
    """What was read from one update so far."""

    sentences: list[Sentence] = field(default_factory=list)
    labels: list[int] | None = None
    loss: float = 1.0
    notes: list[str] = field(default_factory=list)
    verified: bool = False


@register
@dataclass(frozen=True, kw_only=True)
class Sieve(Attack):
    """Sieve (gradleak's own): the first layer's inputs are a finite set, and its gradients span those of the batch.

    With dropout, masks are decoded (`masked.py`); without, sentences are peeled off one by one (`peeling.py`). Labels,
    lengths, batch size and dropout need not be known. What reproduces the gradient is marked as verified, with loss 0:
    what is left is rounding.

    Attributes:
        starts: how many beginnings of sentences are tried, at most, before peeling gives up.
        prior: a language model that proposes words where noise hides them: `embedded`, `none`, or the directory or hub
            id of another, which then only decides between sentences that the update does not tell apart.
    """

    name: ClassVar[str] = "sieve"
    paper: ClassVar[str] = "gradleak, docs/attacks/sieve.md"
    needs: ClassVar[tuple[str, ...]] = ("attention gradients",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "fast": {"starts": 100}}

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
            findings.append(self._finding(target, inputs, victim, tell))
            reporter(number, len(victims), lambda: (findings[-1].loss, findings[-1].history[-1].texts))
        return findings

    def _finding(self, target: Target, inputs: Inputs, victim: Victim, tell: Teller) -> Finding:
        gradient = victim.gradient
        for projection in inputs.maps:
            if projection.weight not in gradient:
                raise GradleakError(f"{self.name} needs the gradient of {projection.weight}; this update has none")
        space = row_space([projection.weight_in(gradient) for projection in inputs.maps])
        words = possible_words(target, victim)
        reading = self._read(target, inputs, victim, space, words, tell)
        if reading.sentences and reading.labels is None:
            reading.labels = read_labels(target, gradient, reading.sentences)
        reading = _as_known(target, inputs, victim, space, words, reading)
        texts = tuple(target.decode(ids) for ids in reading.sentences)
        return Finding(
            token_ids=reading.sentences,
            labels=reading.labels,
            loss=reading.loss,
            history=(Glimpse(1, reading.loss, texts),),
            notes=tuple(reading.notes),
            verified=reading.verified,
        )

    def _read(
        self, target: Target, inputs: Inputs, victim: Victim, space: Subspace, words: Tensor, tell: Teller
    ) -> Reading:
        if space.rank == 0:
            return Reading(notes=[HIDDEN])
        if float(space.values[-1]) > CLEAN or _compressed(inputs, victim):
            return self._changed(target, inputs, victim, words, tell)
        if dropout_is_off(target, inputs, space):
            return self._without_dropout(target, inputs, victim, words)
        return self._with_dropout(target, inputs, victim, space, words, tell)

    def _with_dropout(
        self, target: Target, inputs: Inputs, victim: Victim, space: Subspace, words: Tensor, tell: Teller
    ) -> Reading:
        found = read_masked(target, inputs, victim.gradient, space, words, tell)
        sentences = list(found.sentences)
        ends = with_endings(target, victim.gradient, sentences, TRUST) if target.task == "causal-lm" else None
        sentences = ends or sentences
        notes = [_overview(sentences), f"dropout found: rate about {found.rate:.2f}"]
        if ends:
            notes.append("each text's last token is an estimate")
        if found.missing:
            notes.append(f"{found.missing} of {space.rank} tokens not found")
        return Reading(sentences, found.labels, 0.0 if found.proven else found.loss, notes, found.proven)

    def _without_dropout(self, target: Target, inputs: Inputs, victim: Victim, words: Tensor) -> Reading:
        longest = longest_length(target, victim.gradient) or target.max_length
        found = read_plain(target, inputs, victim.gradient, words, longest, self.starts)
        sentences = found.sentences
        if target.task == "causal-lm":
            sentences = with_endings(target, victim.gradient, sentences) or sentences
        notes = [_overview(sentences), "no dropout"]
        labels = None
        loss = 1.0
        verified = False
        if sentences:
            labels = read_labels(target, victim.gradient, sentences) or found.labels
            labels = labels if target.task == "classification" else None
            loss, _ = difference(target, victim.gradient, sentences, labels)
            verified = reproduces(target, victim.gradient, sentences, labels)
        return Reading(sentences, labels, 0.0 if verified else loss, notes, verified)

    def _changed(self, target: Target, inputs: Inputs, victim: Victim, words: Tensor, tell: Teller) -> Reading:
        prior = None if self.prior == "none" else load_prior(self.prior, target)
        found = read_changed(target, inputs, victim.gradient, words, victim.knowledge, tell, prior)
        if found is None:
            return Reading(notes=[HIDDEN])
        sentences = [tuple(ids) for ids in found.sentences]
        notes = [_overview(sentences), "the row space is not exact: noise, compression, or more tokens than dimensions"]
        return Reading(sentences, found.labels or None, found.distance, notes)


def possible_words(target: Target, victim: Victim) -> Tensor:
    """Return the ids that may stand inside a text: those that the word embeddings' gradient shows, if it was sent."""
    impossible = set(target.impossible_ids) - {target.tokenizer.unk_token_id}
    if target.word_parameters <= victim.gradient.keys() and target.task == "classification":
        ids = observed_tokens(target, victim.gradient)
        return ids[[int(i) not in impossible for i in ids]]
    possible = [index for index in range(len(target.word_embeddings)) if index not in impossible]
    return torch.tensor(possible, device=target.device)


def _compressed(inputs: Inputs, victim: Victim) -> bool:
    """Return whether entries were set to zero: a gradient of text has next to none that are."""
    zeros = [(projection.weight_in(victim.gradient) == 0).double().mean() for projection in inputs.maps]
    return float(torch.stack(zeros).mean()) > ZEROS


def dropout_is_off(target: Target, inputs: Inputs, space: Subspace) -> bool:
    """Return whether some token's x at the first position lies in the row space as it is."""
    first = target.special_tokens[0][:1] or range(len(target.word_embeddings))
    tokens = torch.tensor(list(first), device=target.device)
    start = torch.zeros(1, dtype=torch.long, device=target.device)
    best = inputs.captured(space.basis, tokens, start)[:, 0].topk(min(16, len(tokens))).indices
    return bool((space.outside(inputs(tokens[best], start.expand(len(best)))) < NO_DROPOUT).any())


def _overview(sentences: Sequence[Sentence]) -> str:
    lengths = sorted(map(len, sentences))
    if not lengths:
        return "no sentence found"
    if len(lengths) == 1:
        return f"1 sentence of {lengths[0]} tokens"
    return f"{len(lengths)} sentences of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} tokens"


def _agrees(known: Knowledge, sentences: Sequence[Sentence]) -> bool:
    if known.lengths is not None:
        return sorted(known.lengths) == sorted(map(len, sentences))
    return known.sequences in (None, len(sentences))


def _as_known(
    target: Target, inputs: Inputs, victim: Victim, space: Subspace, words: Tensor, reading: Reading
) -> Reading:
    """Put the sentences in the order that is known, and guess those that are missing.

    What is proven stands against what was told.
    """
    known = victim.knowledge
    if reading.verified and not _agrees(known, reading.sentences):
        return replace(reading, notes=[*reading.notes, "the lengths or batch size told do not fit the update"])
    order = arranged(reading.sentences, reading.labels, known)
    sentences: list[Sentence] = []
    for slot, number in enumerate(order):
        found = () if number is None else reading.sentences[number]
        length = known.lengths[slot] if known.lengths is not None else len(found) or target.min_length
        if len(found) != length:
            found = fitted(target, found, length, likeliest(target, inputs, space, words, length, slot))
        sentences.append(found)
    labels = None
    if target.task == "classification":
        read = reading.labels or []
        labels = [0 if number is None or number >= len(read) else read[number] for number in order]
        labels = labels if known.labels is None else list(known.labels)
    verified = reading.verified and sorted(sentences) == sorted(reading.sentences)
    return replace(reading, sentences=sentences, labels=labels, verified=verified)
