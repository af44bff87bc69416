"""Read what some known texts leave of several steps of Adam.

A step divides each entry by its own size, so texts hide each other more than in a gradient. If some texts are right,
their part of every step is known but for that size, which follows nearly as well from the usual size of the others'
gradients (`moments.unknown_part`). Without that part the texts that are left stand out of the layers as those of a
smaller batch do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.batch_search import decide_by_contexts, read_batch, refine_with_contexts
from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.defended.context_search import DOUBLE, ContextSearch
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.attacks.sieve.steps.moments import mean_decay, unknown_part
from gradleak.exchange import FedAvg, Protocol
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.replay import Text, replayed_steps
from gradleak.leakage.restoration import complete_groups, stacked, unstacked

ASSUMPTIONS = 3
"""How many assumptions on which texts are right are tried at most."""


def likely_right(score: ContextScore, sentences: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of the sentences that are right, under a few assumptions, the likeliest first.

    Right sentences have higher scores than others, unless those are made of right ones; how high depends on the batch.

    Args:
        score: the score of a sentence by itself.
        sentences: some right, some wrong.
    """
    scores, order = score.each(sentences).tolist(), list[int]()
    for number in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
        better = score.with_fixed_sequences([sentences[other] for other in order])
        if float(better(sentences[number][None])) > DOUBLE * scores[number]:
            order.append(number)
    gaps = [scores[one] - scores[other] for one, other in pairwise(order)]
    counts = [place + 1 for place in sorted(range(len(gaps)), key=gaps.__getitem__, reverse=True)]
    if len(order) < len(sentences):  # those made of others are wrong
        counts.insert(1, len(order))
    for count in counts[:ASSUMPTIONS]:
        yield order[:count]


def read_rest(
    observed: ObservedUpdate,
    training: FedAvg,
    texts: Sequence[Text],
    rows: Sequence[Sequence[int]],
    known: Collection[int],
) -> list[list[int]]:
    """Return sentences of which the known ones are kept and the others read anew.

    Args:
        observed: the update.
        training: the protocol, of several steps of Adam.
        texts: all texts with their classes, in the client's order.
        rows: the texts of each step, as numbers.
        known: the numbers of the texts that are taken for right.
    """
    rest = rest_of_steps(observed, training, texts, rows, known)
    fixed = [torch.tensor(texts[number][0], device=observed.words.device) for number in known]

    def decide(found: ContextSearch, sentences: Sequence[Tensor]) -> DefendedReading:
        alone = found.each_alone(found.one_beside_others(sentences, fixed))
        return DefendedReading([ids.tolist() for ids in alone], [], 2.0)

    missing = [number for number in range(len(texts)) if number not in known]
    read = read_batch(rest, len(missing), decide)
    old = [list(ids) for ids, _ in texts]
    fresh = [ids for ids in read.sentences if ids not in old] if read is not None else []
    for number, ids in zip(missing, fresh, strict=False):
        old[number] = ids
    return old


def read_again(
    observed: ObservedUpdate,
    training: FedAvg,
    texts: Sequence[Text],
    rows: Sequence[Sequence[int]],
    known: Collection[int],
    number: int,
) -> list[int]:
    """Return a sentence that is nearly right, edited by what others leave of the steps.

    Args:
        observed: the update.
        training: the protocol, of several steps of Adam.
        texts: all texts with their classes, in the client's order.
        rows: the texts of each step, as numbers.
        known: the numbers of the texts that are taken for right.
        number: that of the sentence.
    """
    rest = rest_of_steps(observed, training, texts, rows, [other for other in known if other != number])
    read = refine_with_contexts(rest, texts[number][0], decide_by_contexts)
    return list(texts[number][0]) if read is None else read.sentences[0]


def rest_of_steps(
    observed: ObservedUpdate,
    training: FedAvg,
    texts: Sequence[Text],
    rows: Sequence[Sequence[int]],
    known: Collection[int],
) -> ObservedUpdate:
    """Return what known texts leave of the steps, as an update of its own of the maps that sentences are read from.

    Args:
        observed: the update.
        training: the protocol, of several steps of Adam.
        texts: all texts with their classes, in the client's order; those that are not known may be wrong.
        rows: the texts of each step, as numbers.
        known: the numbers of the texts that are known, some but not all.
    """
    target = observed.target
    contexts = [(layer.attention_output,) for layer in target.layers[: len(observed.context_weights)]]
    groups = complete_groups((observed.inputs.maps, *contexts), observed.gradient)
    names = list(dict.fromkeys(part.weight for group in groups for part in group))
    replay = replayed_steps(target, texts, (list(observed.gradient), names), observed.protocol, 0)
    parts: list[dict[str, Tensor]] = []
    for own, step in zip(rows, replay.gradients, strict=True):
        there = [number for number in own if number in known]
        if len(there) == len(own) or not there:
            parts.append({name: step[name] if there else torch.zeros_like(step[name]) for name in names})
            continue
        alone, whole = (_gradient(observed, [texts[number] for number in some], names) for some in (there, own))
        size = {name: float(step[name].norm() / whole[name].norm().clamp(min=1e-30)) for name in names}  # clipping
        parts.append({name: len(there) / len(own) * size[name] * alone[name] for name in names})
    shares = [sum(number not in known for number in own) / len(own) for own in rows]
    found = dict(observed.gradient)
    for group in groups:
        each = [stacked(group, part) for part in parts]
        weight, steps = stacked(group, target.parameters), stacked(group, observed.as_sent)
        variances = _variances(each, shares, [len(own) for own in rows])
        matrix = unknown_part(training, each, variances, shares, steps - mean_decay(training, len(rows), weight))
        found |= unstacked(group, matrix, found)
    gradient = {name: found[name] for name in names}
    return replace(
        observed,
        gradient=gradient,
        sent=gradient,
        floors={},
        protocol=Protocol(),
        part_of_steps=True,
        progress=None,
    )


def _gradient(observed: ObservedUpdate, texts: Sequence[Text], names: Sequence[str]) -> dict[str, Tensor]:
    return batch_gradient(observed.target, [ids for ids, _ in texts], [label for _, label in texts], names)


def _variances(parts: Sequence[Tensor], shares: Sequence[float], texts: Sequence[int]) -> list[Tensor]:
    """Return the variance of the entries of each step's unknown part: that of the known texts, by row and column."""
    shown = [
        count / (1 - share) * part.square()
        for part, share, count in zip(parts, shares, texts, strict=True)
        if share < 1
    ]
    one = torch.stack(shown).mean(dim=0)
    usual = one.mean(dim=1, keepdim=True) * one.mean(dim=0) / one.mean().clamp(min=1e-30)
    return [share / count * usual for share, count in zip(shares, texts, strict=True)]
