"""Read the texts of several steps of Adam, step by step.

What is read from all steps at once is right for most of them (`defended/batch_search.py`). The client's training is
then repeated on it, which gives the gradient of every step at the weights of that step, right for the steps whose
texts are right. Each step in turn is taken for unknown: its gradient follows from the observed update and the
gradients of the others (`moments.py`), and is read like one of a batch with few texts (`rounded/`). New texts are
kept if the update of the whole training comes closer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.batch_distance import BatchDistance, batch_distance
from gradleak.attacks.sieve.defended.batch_search import decide_by_distance, decide_by_scores
from gradleak.attacks.sieve.defended.context_search import ContextSearch
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.attacks.sieve.rounded.reader import read_rounded
from gradleak.attacks.sieve.rounded.reading import Guesses
from gradleak.attacks.sieve.rounded.weight_fit import WeightFit
from gradleak.attacks.sieve.steps.moments import MomentModel, mean_decay, solutions, solve_step
from gradleak.attacks.sieve.steps.peeling import likely_right, read_again, read_rest
from gradleak.exchange import FedAvg, Protocol
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.proof import REPLAYED_WHOLE
from gradleak.leakage.replay import Text, can_replay, replay_difference, replayed_steps
from gradleak.leakage.restoration import complete_groups, stacked, unstacked
from gradleak.simulation.training import step_batches
from gradleak.targets import Projection, Target

EFFORTS = ((0.01, False), (0.003, False), (0.003, True))
"""How well the steps are known as a function of one gradient, the first while other steps may be wrong, and whether
texts are sought thoroughly."""

LAYERS = 3
"""How many layers' contexts are solved for: what they show is nearly exact once the other steps are. Until then the
last of them tells right sentences from others."""

ROUNDS = 4
"""How often each step is read again at most."""

BETTER = 0.99
"""Steps are read again if the replay's difference from the update fell below this fraction of what it was."""

MORE_TOKENS, SPARE_TOKENS = 2, 24
"""The greatest rank of a step's gradient: so many times the tokens read of it so far, and some. Others that are not
quite right leave traces in it."""

FITS = 0.1
"""A text with a misfit below this is right, or will be read again when the other steps are."""

READ_AGAIN = 3
"""How many of the texts that are taken for right, those that fit worst, are read again beside the others."""

STARTS = 60
"""Skeletons that are completed at most where a step is read."""


def decide_by_steps(search: ContextSearch, sentences: Sequence[Tensor]) -> DefendedReading:
    """Decide on sentences that were read from all steps at once."""
    observed = search.observed
    distance = batch_distance(observed)
    sentences = search.each_alone(sentences)  # a step is read the better, the more of the others is right
    reader = StepReader.of(search, distance, distance.labelled([ids.tolist() for ids in sentences]))
    if reader is None:
        return decide_by_distance(search, search.without_doubles(sentences))
    for effort in EFFORTS:
        while not reader.run(*effort) and reader.peel():
            effort = EFFORTS[0]
        if reader.ended:
            return reader.batch
        reader.take(distance.labelled([ids.tolist() for ids in search.without_doubles(reader.sentences)]))
    reader.take(decide_by_scores(search, reader.sentences))
    reader.run(*EFFORTS[-1])
    return reader.batch


class StepReader:
    """Reads one step after the other.

    Args:
        search: holds the update, of several steps of Adam, and words that may occur.
        distance: finds the classes and the order of texts.
        batch: what was read so far, in the client's order.
        training: the protocol.
        rows: the texts of each step, as numbers of the batch; no text is in two steps.
    """

    def __init__(
        self,
        search: ContextSearch,
        distance: BatchDistance,
        batch: DefendedReading,
        training: FedAvg,
        rows: list[list[int]],
    ) -> None:
        self._search, self._observed, self._training, self._rows = search, search.observed, training, rows
        self.batch, observed = batch, search.observed
        target = observed.target
        contexts = [(layer.attention_output,) for layer in target.layers[:LAYERS]]
        self._groups = complete_groups((observed.inputs.maps, *contexts), observed.gradient)
        head = [target.classifier_weight, target.classifier_bias]
        self._head = [name for name in head if name in observed.gradient]
        self._words = torch.cat([search.words.found, *map(torch.tensor, batch.sentences)])
        self._distance = distance
        self._difference = self._replayed(batch)

    @classmethod
    def of(cls, search: ContextSearch, distance: BatchDistance, batch: DefendedReading) -> StepReader | None:
        """Return a reader; None if the client cannot be replayed, or a text is in several steps."""
        protocol = search.observed.protocol
        training, count = protocol.training, len(batch.sentences)
        if training is None or not can_replay(protocol) or len(batch.labels) != count:
            return None
        decays = training.optimizer == "adam" and training.weight_decay  # the decay then is a part of the gradient
        if decays or (training.batch is not None and training.batch > count):
            return None
        steps = step_batches(training, count, torch.Generator().manual_seed(0))
        rows = [[row for micro in batches for row in micro.tolist()] for batches in steps]
        if sorted(row for step in rows for row in step) != list(range(count)):
            return None
        return cls(search, distance, batch, training, rows)

    @property
    def sentences(self) -> list[Tensor]:
        """The texts so far."""
        return [torch.tensor(ids, device=self._observed.words.device) for ids in self.batch.sentences]

    def take(self, batch: DefendedReading) -> None:
        """Continue from other texts if they explain the update better."""
        difference = self._replayed(batch)
        if difference < self._difference:
            self.batch, self._difference = batch, difference
            self._words = torch.unique(torch.cat([self._words, *map(torch.tensor, batch.sentences)]))
            self._observed.report(self.sentences, difference)

    def peel(self) -> bool:
        """Read wrong texts from what the right ones leave, and return whether the update is explained better.

        Which are right is not known: other assumptions are tried until one leads to better texts.
        """
        before = self._difference
        for known in likely_right(self._search.score, self.sentences):
            if self.ended or self._difference < before:
                break
            for number in known[:0:-1][:READ_AGAIN]:
                self._read_again(known, number)
            found = read_rest(self._observed, self._training, self._texts(self.batch), self._rows, known)
            self.take(self._distance.labelled(found))
        return self._difference < before

    def _read_again(self, known: Sequence[int], number: int) -> None:
        """Edit a text that may be nearly right beside right ones, and keep it if it explains the update better."""
        texts = self._texts(self.batch)
        ids = read_again(self._observed, self._training, texts, self._rows, known, number)
        if ids != self.batch.sentences[number] and not self.ended:
            sentences = [*self.batch.sentences[:number], ids, *self.batch.sentences[number + 1 :]]
            self.take(DefendedReading(sentences, self.batch.labels, self.batch.distance))

    def run(self, tolerance: float, thorough: bool) -> bool:
        """Read all steps until that helps no more, and return whether the client, replayed, sends this very update.

        Args:
            tolerance: how well the steps are known as a function of one gradient.
            thorough: whether texts are sought where the quick ways find none.
        """
        for _ in range(ROUNDS):
            before = self._difference
            for step in range(len(self._rows)):  # a wrong step spoils later ones more than those before it
                if self.ended:
                    break
                self._improve(step, tolerance, thorough)
            if self.ended or self._difference > BETTER * before:
                break
        return self._difference < REPLAYED_WHOLE

    @property
    def ended(self) -> bool:
        """Whether the update is explained, or the time is up."""
        return self._difference < REPLAYED_WHOLE or self._observed.deadline.passed

    def _improve(self, step: int, tolerance: float, thorough: bool) -> None:
        """Read one step again unless its texts fit, and keep what is read if it explains the update better."""
        if self._fits(step, tolerance):
            return
        texts, labels = self._read(step, tolerance, thorough)
        if len(texts) != len(self._rows[step]):
            return
        sentences, classes = list(self.batch.sentences), list(self.batch.labels)
        for row, ids, label in zip(self._rows[step], texts, labels, strict=True):
            sentences[row], classes[row] = list(ids), label
        if sentences != self.batch.sentences or classes != self.batch.labels:
            self.take(DefendedReading(sentences, classes, self.batch.distance))

    def _fits(self, step: int, tolerance: float) -> bool:
        """Return whether all texts of a step fit its gradient in the first layer's contexts."""
        contexts = [group for group in self._groups if group[0] == self._observed.target.layers[0].attention_output]
        fit = WeightFit(self._alone(step, tolerance, contexts), Remainder({}, {}, {}))
        return all(fit.misfit(tuple(self.batch.sentences[row])) < FITS for row in self._rows[step])

    def _replayed(self, batch: DefendedReading) -> float:
        observed = self._observed
        return replay_difference(observed.target, observed.as_sent, self._texts(batch), observed.protocol)

    def _texts(self, batch: DefendedReading) -> list[Text]:
        return list(zip(batch.sentences, batch.labels, strict=True))

    def _read(self, step: int, tolerance: float, thorough: bool) -> tuple[list[tuple[int, ...]], list[int]]:
        """Return the texts and classes of one step."""
        alone = self._alone(step, tolerance, self._groups)
        count = len(self._rows[step])
        guesses = [tuple(self.batch.sentences[row]) for row in self._rows[step]]
        found = read_rounded(alone, count, alone.longest, STARTS, Guesses(guesses, self._words), thorough=thorough)
        texts = found.sentences[:count]
        return texts, labels_from_classifier(alone.target, alone.gradient, texts) or found.labels[:count]

    def _alone(self, step: int, tolerance: float, groups: Sequence[Sequence[Projection]]) -> ObservedUpdate:
        """Return the gradient of one step as an update of its own, of some maps and the classifier."""
        observed = self._observed
        wanted = list(dict.fromkeys([*(part.weight for group in groups for part in group), *self._head]))
        names = list(observed.gradient), wanted
        replay = replayed_steps(observed.target, self._texts(self.batch), names, observed.protocol, step)
        gradients = replay.gradients
        most = MORE_TOKENS * sum(len(self.batch.sentences[row]) for row in self._rows[step]) + SPARE_TOKENS
        found = {name: torch.zeros_like(observed.gradient[name]) for name in wanted}
        floors: dict[str, NoiseFloor] = {}
        for group in groups:
            parts = [stacked(group, each) for each in gradients]
            model = MomentModel.of(self._training, parts, step)
            steps = stacked(group, observed.as_sent) - mean_decay(
                self._training, len(self._rows), stacked(group, observed.target.parameters)
            )
            fit = solve_step(model, steps, _usual_size(parts, step), tolerance, most, observed.deadline)
            floors[group[0].module] = fit.floor
            found |= unstacked(group, fit.matrix, found)
        for name in self._head:
            model = MomentModel.of(self._training, [each[name] for each in gradients], step)
            size = torch.stack([each[name] for each in gradients]).square().mean(dim=0).sqrt().clamp(min=1e-12)
            steps = observed.as_sent[name] - mean_decay(
                self._training, len(self._rows), observed.target.parameters[name]
            )
            found[name] = solutions(model, steps, size, tolerance)[0]
        return replace(
            observed,
            target=self._with(replay.weights),
            gradient=found,
            sent=found,
            floors=floors,
            protocol=Protocol(),
            part_of_steps=True,
            progress=None,
        )

    def _with(self, weights: Mapping[str, Tensor]) -> Target:
        """Return the model with other weights."""
        target = self._observed.target
        moved = target.with_model(copy.deepcopy(target.model), target.adapter)
        with torch.no_grad():
            for name, weight in weights.items():
                moved.parameters[name].copy_(weight)
        return moved


def _usual_size(gradients: Sequence[Tensor], step: int) -> Tensor:
    """Return the size that entries of one step's gradient have, from the rows and columns of the others."""
    squares = torch.stack([own for number, own in enumerate(gradients) if number != step]).square().mean(dim=0)
    rows, columns = squares.mean(dim=1, keepdim=True).sqrt(), squares.mean(dim=0).sqrt()
    return (rows * columns / squares.mean().sqrt().clamp(min=1e-30)).clamp(min=1e-12)
