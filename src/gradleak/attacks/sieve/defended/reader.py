"""Read an update that noise, pruning or sign compression has changed: choose the reader, and combine what they find.

Instead of asking whether x(t, p) lies in an exact row space, these readers ask how much of the signal the tokens of a
sentence capture, in the inputs of several maps at once, and then edit the sentence while its own gradient comes closer
to the update. If the update has noise, and what was read leaves more than noise, words are proposed in other ways
(`noise/`).
"""

from __future__ import annotations

from dataclasses import replace

from gradleak.attacks.sieve.defended.batch_search import Decide, read_batch, refine_with_contexts
from gradleak.attacks.sieve.defended.feasible_set import FeasibleSet, count_sentences
from gradleak.attacks.sieve.defended.single_search import read_sentence
from gradleak.attacks.sieve.noise.batch_search import read_batch_by_likelihood
from gradleak.attacks.sieve.noise.map_search import read_by_likelihood
from gradleak.attacks.sieve.noise.sentence_count import count_noisy_sentences, shows_several
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.attacks.sieve.steps.reader import decide_by_steps
from gradleak.exchange import Knowledge
from gradleak.leakage.perturbation import noise_deviation

LONGEST = 64
"""Sentences of more tokens are not searched."""

NOISY, DROWNED = 0.003, 0.1
"""Fractions of an update's energy that are noise: above NOISY, the likelihood search refines the reading; above
DROWNED, it starts from nothing: a fit of all inputs finds more words than exceed the noise in the first layer."""

RANK_HIDDEN = 0.05
"""The same fraction above which too few singular values exceed the noise to count sentences by them."""

ALONE = 0.35
"""A noisy batch in which only one sentence shows is read as a single one first, for this share of the time: the energy
of a long sentence is that of several short ones."""

MOST_UNDER_NOISE = 16
"""Larger batches are not searched where noise hides the words of the first layer."""

TINY = 1e-30


def read_defended(observed: ObservedUpdate, known: Knowledge, decide: Decide | None = None) -> DefendedReading | None:
    """Read a defended update of one or several sentences; None if nothing exceeds the noise.

    Args:
        observed: the update.
        known: what the attacker is told; an unknown number of sentences is counted (`feasible_set.py`).
        decide: decides on several sentences; that which fits the client's optimiser if left out.
    """
    target, inputs = observed.target, observed.inputs
    longest = min(known.longest or LONGEST, LONGEST, inputs.positions.shape[0])
    # gradients are compared for embeddings that are no words as well, and those have no gradient by word
    gradient = {name: own for name, own in observed.gradient.items() if name not in target.word_parameters}
    observed = replace(observed, gradient=gradient, longest=longest)
    noise = noise_energy(observed) if target.task == "classification" else 0.0
    count = known.sequences or _count(observed, noise)
    if noise > DROWNED and count > 1 and known.sequences is None and not shows_several(target, gradient):
        in_time = replace(observed, deadline=observed.deadline.share(ALONE))
        alone = read_by_likelihood(in_time, None, observed.load_prior())
        if alone.settled:
            return alone
    if count > 1 and _has_context_score(observed):
        batch = read_batch(observed, count, decide or (decide_by_steps if observed.as_steps else None))
        if batch is not None:
            return batch
        if noise > NOISY and count <= MOST_UNDER_NOISE:
            return read_batch_by_likelihood(observed, count, observed.load_prior())
    length = known.lengths[0] if known.lengths is not None and len(known.lengths) == 1 else None
    noise = noise if count == 1 else 0.0
    if noise > DROWNED:
        return read_by_likelihood(observed, None, observed.load_prior(), length)
    found = _read_single(observed, length)
    if noise > NOISY and not observed.deadline.passed:
        return read_by_likelihood(observed, found, observed.load_prior(), length)
    return found


def _count(observed: ObservedUpdate, noise: float) -> int:
    """Return the number of sentences, 1 if it is not determined."""
    target, gradient = observed.target, observed.gradient
    if noise > RANK_HIDDEN:
        count = count_noisy_sentences(target, gradient, observed.load_prior(), observed.deadline)
        if count is not None:
            return count
    return count_sentences(target, gradient, observed.protocol, observed.deadline) or 1


def _read_single(observed: ObservedUpdate, length: int | None) -> DefendedReading | None:
    """Read one sentence by the signal of the layers; None if there is none."""
    found = read_sentence(observed, length)
    if found is None:
        return None
    sentence, distance = found
    better = None
    if _has_context_score(observed) and not observed.deadline.passed:
        better = refine_with_contexts(observed, sentence, resize=length is None)
    return better or DefendedReading([list(sentence)], [], distance)


def _has_context_score(observed: ObservedUpdate) -> bool:
    return len(observed.inputs.maps) > 1 and observed.target.task == "classification"


def noise_energy(observed: ObservedUpdate) -> float:
    """Return the fraction of an update's energy that is noise; 0 for a compressed update and for steps of Adam.

    Adam divides the rounding errors of a gradient that is zero, such as that of key biases, by their own size.
    """
    training = observed.protocol.training
    by_adam = training is not None and training.optimizer != "sgd"
    if by_adam or not FeasibleSet(observed.map_gradients).complete:
        return 0.0
    tensors = observed.gradient.values()
    whole = float(sum(tensor.double().square().sum() for tensor in tensors))
    deviation = noise_deviation(observed.target, observed.gradient, observed.inputs.maps[0])
    return deviation**2 * sum(tensor.numel() for tensor in tensors) / max(whole, TINY)
