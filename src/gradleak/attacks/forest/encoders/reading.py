"""From an update of an encoder's adapters to a reading: sentences, labels and proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gradleak.attacks.forest.capacity import Capacity
from gradleak.attacks.forest.encoders.reader import EXPLAINED, EncoderReader
from gradleak.attacks.forest.reading import ForestReading, ProgressCallback
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.attacks.forest.sites import InputSite, find_sites
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.proof import Proof, prove_by_whole_gradient
from gradleak.targets import Target

INEXACT = "adapters of encoders are read from one float32 gradient alone: this one was rounded, or took local steps"


def can_read_encoder(target: Target, sites: Sequence[InputSite]) -> bool:
    """Return whether an update's sites begin with the gradients of A of adapters on the first layer's maps."""
    if not sites or not sites[0].tokenwise or sites[0].reduction is not None:
        return False
    return sites[0].path in {projection.module for projection in first_layer_inputs(target).maps}


def read_encoder(
    target: Target, gradient: Mapping[str, Tensor], protocol: Protocol, deadline: Deadline, progress: ProgressCallback
) -> ForestReading:
    """Return the sentences of an update of an encoder's adapters, as far as they can be read.

    Args:
        target: an encoder with adapters.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
        deadline: when to return the best found so far.
        progress: called with the sentences so far.
    """
    noise, sites = RowNoise(target, gradient, protocol), find_sites(target, gradient)
    capacity = Capacity.of(target, sites[:1])
    if not noise.exact:
        return ForestReading(notes=[capacity.line(None), INEXACT])
    inputs = first_layer_inputs(target)
    reader = EncoderReader(target, inputs, sites, lambda number: noise.residual(sites[number]), deadline, progress)
    tokens = reader.tokens()
    if not len(tokens):
        return ForestReading(notes=[capacity.line(None)])
    texts = reader.sentences(tokens)
    if not texts:
        return ForestReading(notes=[capacity.line(len(tokens)), "no text found"])
    labels = labels_from_classifier(target, gradient, texts)
    proof = Proof()
    notes = [f"{len(texts)} texts of {', '.join(map(str, sorted(map(len, texts))))} tokens"]
    if reader.left < EXPLAINED:
        notes.insert(0, capacity.line(sum(map(len, texts))))
        proof = prove_by_whole_gradient(target, gradient, texts, labels, protocol, deadline)
    else:
        notes.insert(0, capacity.line(len(tokens)))
        notes.append(f"the texts found leave {100 * reader.left:.2g} % of a layer's rows unexplained")
    left = proof.unexplained if reader.left < EXPLAINED else reader.left
    return ForestReading(texts, labels, left, notes, proof, proof.verified)
