"""The Sieve attack: choose a reader by what the update looks like, and report what it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.attacks.sieve.defended.batch_distance import batch_distance
from gradleak.attacks.sieve.defended.batch_search import decide_by_contexts, refine_batch
from gradleak.attacks.sieve.defended.feasible_set import count_sentences
from gradleak.attacks.sieve.defended.reader import read_defended
from gradleak.attacks.sieve.dropout.reader import read_with_dropout
from gradleak.attacks.sieve.last_token import append_last_tokens
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.output import fit_to_knowledge
from gradleak.attacks.sieve.plain.reader import read_plain
from gradleak.attacks.sieve.reading import Reading, overview
from gradleak.attacks.sieve.rounded.peeling import Peeling, number_of_equal_parts
from gradleak.attacks.sieve.rounded.reader import read_rounded
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Reporter, Snapshot, Victim
from gradleak.leakage.dropout import dropout_is_off
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.layer_inputs import LayerInputs, first_layer_inputs
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.perturbation import MAPS_PRUNED, is_rounded, looks_pruned
from gradleak.leakage.proof import Proof, prove_by_whole_gradient
from gradleak.leakage.replay import can_replay
from gradleak.leakage.restoration import restored_values
from gradleak.leakage.row_space import CLEAN
from gradleak.leakage.tokens import possible_words
from gradleak.priors import Prior, load_prior
from gradleak.settings import setting
from gradleak.targets import Target

HIDDEN, SHARE = 2e-3, 0.25
"""A restored difference of weights whose noise floor is above this fraction of the signal hides many tokens. What is
left is mostly not enough to complete sentences by. They are read one by one, and tried to be proven in this share of
the time left; if their number is unsure, the row space is read for this share, and then words are searched as in a
defended update."""

PEELING = 0.85
"""Sentences of such a difference are read one by one for this share of the time at most; then words are decided by the
whole update."""

SENTENCE = 3.0
"""A sentence's singular value in the last layer, in units of the largest that rounding leaves, is above this."""

EXACT = 0.12
"""An update is read from its row space if the noise floor is below this fraction of the signal's smallest singular
value: vectors of the text then lie in the space to about that fraction. Float32 leaves 1e-6, an SGD step with a
learning rate of 1 leaves 1e-4, a cast to float16 2e-3 to 2e-2, one to bfloat16 1e-2 to 7e-2; visible noise leaves
more."""

ROUNDED = 0.02
"""The largest fraction of an update that rounding leaves unexplained; texts that leave more are read again as those of
a defended update."""

TRUST_UNDER_DROPOUT = 0.3
"""Weight of the last LayerNorm's weight gradient, which dropout changes, in finding a language model's last tokens."""

WHOLE_BATCH = "the sentences' weights add up to those of a whole batch; this is no proof"
"""Said of a rounded update that was read to the end."""

FEW_MISSING = 0.1
"""A rounded update of a client with dropout is read to the end if at most this fraction of its tokens is missing."""

NOTHING = (
    "nothing stands out of the first layer: noise covers it, or the batch has more tokens than the model dimensions"
)
ROTARY = (
    "decoders with rotary positions are read from the exact row space alone: dropout, rounding, noise or a batch with "
    "more tokens than the model has dimensions hide it"
)
ONLY_NOISE = "the text leaves nothing of the update but noise; this is no proof"
INEXACT = (
    "no exact read-out: the update was perturbed, took several steps, holds too many tokens, or is of other weights"
)


@register
@dataclass(frozen=True, kw_only=True)
class Sieve(Attack):
    """Sieve (gradleak's own): find the vocabulary's vectors that lie in the span of the first layer's gradients.

    Under dropout the masks are decoded (`dropout/`); without it, sentences are found and subtracted one by one
    (`plain/`); updates changed by noise, pruning or sign compression are read approximately (`defended/`, `noise/`).
    Labels, lengths, batch size and dropout need not be known. A reading that the update proves is marked as verified
    and has loss 0: the remainder is rounding.
    """

    name: ClassVar[str] = "sieve"
    paper: ClassVar[str] = "gradleak, docs/attacks/sieve.md"
    needs: ClassVar[tuple[str, ...]] = ("attention gradients",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {}, "fast": {"starts": 100}}

    starts: int = setting(
        600, "beginnings of sentences that are tried, at most, before the reader without dropout gives up", least=1
    )
    prior: str = setting(
        "embedded",
        "language model that proposes words hidden by noise: `embedded`, `none`, or the directory or hub id of "
        "another, which then only decides between sentences that the update does not distinguish",
    )

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read one update after the other."""
        inputs = first_layer_inputs(target)
        findings: list[Finding] = []

        @cache
        def prior() -> Prior | None:
            return None if self.prior == "none" else load_prior(self.prior, target)

        def progress(sentences: Sequence[Tensor], loss: float) -> None:
            texts = tuple(target.decode(sentence.tolist()) for sentence in sentences)
            reporter(len(findings), len(victims), lambda: (loss, texts))

        for number, victim in enumerate(victims, start=1):
            self._require_maps(inputs, victim)
            words = possible_words(target, victim.gradient)
            observed = ObservedUpdate(
                target,
                inputs,
                victim.gradient,
                words,
                target.max_length,
                progress,
                reporter.deadline,
                victim.protocol,
                load_prior=prior,
            )
            findings.append(self._finding(observed, victim.knowledge))
            reporter(number, len(victims), lambda: (findings[-1].loss, findings[-1].history[-1].texts))
        return findings

    def _side_by_side(self, target: Target) -> bool:
        return False

    def _require_maps(self, inputs: LayerInputs, victim: Victim) -> None:
        for projection in inputs.maps:
            if projection.weight not in victim.gradient:
                raise GradleakError(f"{self.name} needs the gradient of {projection.weight}; this update has none")

    def _finding(self, observed: ObservedUpdate, known: Knowledge) -> Finding:
        reading = self._read(observed, known)
        if reading.sentences and reading.labels is None:
            reading.labels = labels_from_classifier(observed.target, observed.gradient, reading.sentences)
        reading = fit_to_knowledge(observed, known, reading)
        texts = tuple(observed.target.decode(ids) for ids in reading.sentences)
        return Finding(
            token_ids=reading.sentences,
            labels=reading.labels,
            loss=reading.loss,
            history=(Snapshot(1, reading.loss, texts),),
            notes=(*reading.notes, *reading.repeats(), *reading.proof.evidence),
            verified=reading.proof.verified,
            complete=reading.proof.complete,
            labels_verified=reading.proof.labels_verified,
            copies=tuple(reading.copies),
            settled=reading.settled,
        )

    def _read(self, observed: ObservedUpdate, known: Knowledge) -> Reading:
        """Read from the exact row space where there is one; else, or if that fails, as a defended update."""
        observed = observed.counted(_number_of_texts(observed, known)).at_mean_weights().restored
        target, space = observed.target, observed.space
        if space.rank == 0:
            return Reading(notes=["the first layer's gradient is zero: nothing can be read from it"])
        pruned = looks_pruned(target, observed.gradient, observed.inputs.maps, MAPS_PRUNED)
        if space.error < EXACT and (not pruned or is_rounded(target, observed.gradient, observed.protocol)):
            off = dropout_is_off(target, observed.inputs, space)
            if not observed.inputs.by_position:
                return self._plain(observed, target.max_length) if off else Reading(notes=[ROTARY])
            hidden = off and bool(observed.floors) and space.floor > HIDDEN
            if not off:
                reading = self._with_dropout(observed)
            elif not hidden:
                reading = self._without_dropout(observed, known)
            else:
                reading = self._peeled(observed, known) or self._in_part_of_the_time(observed, known)
            if reading.sentences and (reading.settled or reading.proof.verified or reading.loss < ROUNDED):
                return reading
            if hidden and not observed.deadline.passed:
                return _nearer(observed, reading, self._defended(observed, known))
            if observed.deadline.passed or (reading.sentences and (reading.certain or space.floor < CLEAN)):
                return reading
        return self._defended(observed, known) if observed.inputs.by_position else Reading(notes=[ROTARY])

    def _peeled(self, observed: ObservedUpdate, known: Knowledge) -> Reading | None:
        """Read a small difference of weights sentence by sentence; None if their weights in it are not known."""
        target, training = observed.target, observed.protocol.training
        if training is None or target.task != "classification" or len(observed.inputs.maps) == 1:
            return None
        count = number_of_equal_parts(training, observed.texts)
        if count is None:
            return None
        longest = longest_length(target, observed.gradient) or target.max_length

        def search(rest: ObservedUpdate, missing: int) -> Sequence[Sequence[int]]:
            near = read_defended(rest, Knowledge(batch_size=missing), decide_by_contexts)
            return near.sentences if near else ()

        in_time = replace(observed, deadline=observed.deadline.share(PEELING))
        found = Peeling(in_time, count, longest, self.starts, search).run()
        in_time = replace(observed, deadline=observed.deadline.share(SHARE))
        reading = _proven(in_time, found.sentences, found.labels)
        if found.sentences and not reading.proof.verified and not observed.deadline.passed:
            better = refine_batch(observed, found.sentences)
            again = _proven(observed, [tuple(ids) for ids in better.sentences], better.labels)
            reading = again if again.loss < reading.loss else reading
        if not reading.proof.verified:
            reading.certain, reading.settled = found.certain, found.whole and reading.loss < ROUNDED
            reading.notes.append(f"{found.certain} of {count} sentences fit the update; no proof")
        return reading

    def _in_part_of_the_time(self, observed: ObservedUpdate, known: Knowledge) -> Reading:
        return self._without_dropout(replace(observed, deadline=observed.deadline.share(SHARE)), known)

    def _with_dropout(self, observed: ObservedUpdate) -> Reading:
        target = observed.target
        found = read_with_dropout(observed)
        sentences = list(found.sentences)
        ended = None
        if target.task == "causal-lm":
            ended = append_last_tokens(target, observed.gradient, sentences, TRUST_UNDER_DROPOUT)
        sentences = ended or sentences
        notes = [overview(sentences), f"dropout found: rate about {found.rate:.2f}"]
        if ended:
            notes.append("each text's last token is an estimate")
        if found.missing:
            notes.append(f"{found.missing} of {observed.space.rank} tokens not found")
        loss = 0.0 if found.proof.verified else found.loss
        space = observed.space
        settled = space.floor > CLEAN and found.missing <= FEW_MISSING * space.rank
        return Reading(sentences, [], found.labels, loss, notes, found.proof, settled).distinct()

    def _without_dropout(self, observed: ObservedUpdate, known: Knowledge) -> Reading:
        target, attention = observed.target, len(observed.inputs.maps) > 1  # not ALBERT's
        longest = longest_length(target, observed.gradient) or target.max_length
        if observed.space.floor < CLEAN or "causal-lm" in target.family.tasks or not attention:
            return self._plain(observed, longest)
        training, count = observed.protocol.training, known.sequences
        if count is None and training is not None:
            count = number_of_equal_parts(training, observed.texts)
        found = read_rounded(observed, count, longest, self.starts)
        reading = _proven(observed, found.sentences, found.labels)
        reading.settled, reading.certain = found.whole, found.certain
        unsure = reading.loss > ROUNDED or can_replay(observed.protocol)
        if found.sentences and not reading.proof.verified and unsure and not observed.deadline.passed:
            better = refine_batch(observed, found.sentences)
            again = _proven(observed, [tuple(ids) for ids in better.sentences], better.labels)
            if again.loss < reading.loss:
                again.settled, again.certain = reading.settled, reading.certain
                reading = again
        if reading.proof.verified:
            return reading
        if found.whole:
            reading.notes.append(WHOLE_BATCH)
        elif found.certain:
            reading.notes.append(
                f"{found.certain} of {len(found.sentences)} sentences fit the update; the rest is guessed"
            )
        return reading

    def _plain(self, observed: ObservedUpdate, longest: int) -> Reading:
        target, gradient = observed.target, observed.gradient
        found = read_plain(observed, longest, self.starts)
        sentences = found.sentences
        if target.task == "causal-lm":
            sentences = append_last_tokens(target, gradient, sentences) or sentences
        return _proven(observed, sentences, found.labels)

    def _defended(self, observed: ObservedUpdate, known: Knowledge) -> Reading:
        found = read_defended(observed, known)
        if found is None:
            return Reading(notes=[NOTHING])
        sentences = [tuple(ids) for ids in found.sentences]
        if can_replay(observed.protocol) and found.labels and not observed.deadline.passed:
            reading = _proven(observed, sentences, found.labels)
            if reading.proof.verified:
                return reading
        notes = [overview(sentences), ONLY_NOISE if found.settled else INEXACT]
        reading = Reading(sentences, [], found.labels or None, found.distance, notes, settled=found.settled)
        return reading.distinct()


def _number_of_texts(observed: ObservedUpdate, known: Knowledge) -> int | None:
    """Return the number of texts behind one client's steps of SGD, known or counted; None of other updates."""
    target, protocol = observed.target, observed.protocol
    if protocol.training is None or protocol.training.optimizer != "sgd" or protocol.clients > 1:
        return None
    part = target.layers[-1].attention_output
    if known.sequences is None and part.weight in observed.gradient:
        values = restored_values(target, observed.gradient, protocol, part, observed.deadline)
        if values is not None:  # a classifier uses one vector of each sentence there
            return int((values > SENTENCE).sum()) or None
    return known.sequences or count_sentences(target, observed.gradient, protocol, observed.deadline)


def _nearer(observed: ObservedUpdate, *readings: Reading) -> Reading:
    """Return the reading that is proven, or whose gradient is nearest to the update's."""

    def distance(reading: Reading) -> float:
        if reading.proof.verified or not reading.sentences:
            return -1.0 if reading.proof.verified else 2.0
        return batch_distance(observed).labelled([list(ids) for ids in reading.sentences]).distance

    return min(readings, key=distance)


def _proven(observed: ObservedUpdate, sentences: list[Sentence], read: list[int]) -> Reading:
    """Return sentences read without dropout, with their classes and what the whole gradient proves of them.

    Args:
        observed: the update.
        sentences: token ids of each.
        read: the classes that were found with them.
    """
    target = observed.target
    labels = None
    if sentences and target.task == "classification":
        labels = labels_from_classifier(target, observed.gradient, sentences) or read
    proof = _proof(observed, sentences, labels)
    if not proof.verified and len(read) == len(sentences) and labels not in (None, read):
        # the closed form assumes that each text occurs once; labels found while subtracting texts do not
        again = _proof(observed, sentences, read)
        if again.verified or again.unexplained < proof.unexplained:
            labels, proof = read, again
    loss = 0.0 if proof.verified else proof.unexplained
    notes = [overview(sentences), "no dropout"]
    if sentences and not proof.verified and loss < ROUNDED:
        notes.append(
            f"the texts explain all but {100 * loss:.2g} % of the update: about what rounding leaves, and no proof"
        )
    return Reading(sentences, [], labels, loss, notes, proof).distinct()


def _proof(observed: ObservedUpdate, sentences: list[Sentence], labels: list[int] | None) -> Proof:
    return prove_by_whole_gradient(
        observed.untrained, observed.as_sent, sentences, labels, observed.protocol, observed.deadline
    )
