"""HeadMatcher: the distance of the last layer's gradient alone, from forward passes alone.

The classifier sees features h and answers with probabilities p, so that the gradient of its weight is Σ (p − y) hᵀ over
the sequences of a batch and that of its bias Σ (p − y). Nothing has to be propagated back, whatever lies below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline
from gradleak.matching.candidates import Candidates
from gradleak.matching.distances import Distance
from gradleak.matching.factors import Dense, Factor, LowRank, dense
from gradleak.matching.forward_cache import Sequences
from gradleak.matching.memory import candidates_at_once, candidates_in_a_moment
from gradleak.matching.reductions import Observed, collect
from gradleak.targets import Target


class HeadMatcher:
    """Scores candidates against the observed gradients of a classifier's last layer, as `Matcher` does.

    What follows the forward pass is computed in float64: near the truth a distance is a small difference of large sums.

    Args:
        target: the model, a classifier.
        observed: each victim's gradient by parameter name.
        distance: how two gradients are compared.

    Attributes:
        deadline: when to stop; whoever calls in a loop asks it, too. None to speak of unless `until` sets one.
    """

    def __init__(self, target: Target, observed: Sequence[Mapping[str, Tensor]], distance: Distance) -> None:
        names = {kind: f"{target.classifier}.{kind}" for kind in ("weight", "bias")}
        self._names = {kind: name for kind, name in names.items() if name in observed[0]}
        if target.task != "classification" or not self._names:
            raise GradleakError(f"there is no classifier gradient of {target.name} to compare")
        self.target = target
        self.distance = distance
        self.deadline = Deadline()
        self._observed = {name: self._observe(observed, name) for name in self._names.values()}
        self._sequences = Sequences(self._run)

    @property
    def victims(self) -> int:
        """How many observed gradients there are."""
        return len(next(iter(self._observed.values())).gradient)

    def __call__(self, candidates: Candidates) -> Tensor:
        """Return the distances `[victims, candidates]` in float64; infinity where the deadline came first."""
        nothing = torch.empty(self.victims, 0, dtype=torch.float64, device=self.target.device)
        found = [
            self._distances(self._factors(part)) for some in self._in_time(candidates) for part in self._parts(some)
        ]
        return _filled(torch.cat([nothing, *found], dim=1), candidates.shape[1], torch.inf)

    def until(self, deadline: Deadline) -> HeadMatcher:
        """Return a matcher that compares as many candidates as there is time for, the first in any case."""
        other = copy(self)
        other.deadline = deadline
        return other

    @property
    def goal(self) -> Tensor:
        """The observed gradients `[victims, entries]`."""
        return torch.cat([seen.gradient.flatten(1) for seen in self._observed.values()], dim=1)

    def compare(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return the distances, and the observed gradients minus the candidates' `[victims, candidates, entries]`.

        Where the deadline came first, a distance is infinite and a difference zero.
        """
        factors = [self._factors(part) for some in self._in_time(candidates) for part in self._parts(some)]
        distances = torch.cat([self._distances(part) for part in factors], dim=1)
        differences = torch.cat([self._differences(part) for part in factors], dim=1)
        count = candidates.shape[1]
        return _filled(distances, count, torch.inf), _filled(differences, count, 0.0)

    def shares(self, candidates: Candidates) -> Tensor:
        """Return what each sequence adds to its candidate's gradient `[victims, candidates, sequences, entries]`."""
        errors, features = self._errors_and_features(candidates)
        rows = {"weight": errors[..., None] * features[..., None, :], "bias": errors[..., None]}
        return torch.cat([rows[kind].flatten(3) for kind in self._names], dim=3)

    def _in_time(self, candidates: Candidates) -> Iterator[Candidates]:
        """Yield all candidates at once; where there is a deadline, some after the other until it has passed."""
        count = candidates.shape[1]
        step = count
        if self.deadline.limited and count > 1:
            tokens = self.victims * candidates.mask.shape[2:].numel()
            step = 1 if self.deadline.passed else candidates_in_a_moment(self.target, tokens)
        for first in range(0, count, max(1, step)):
            if first and self.deadline.passed:
                break
            yield candidates.part(slice(None), slice(first, first + step))

    def _parts(self, candidates: Candidates) -> list[Candidates]:
        """A forward pass keeps next to nothing: what is useful at once is the limit, not memory."""
        if candidates.are_tokens and candidates.shape[1]:  # in passes as large as they can be
            flat = candidates.flat()
            self._sequences(flat.inputs, flat.mask)
        tokens = self.victims * candidates.mask[0].flatten(1).shape[1]
        size = candidates_at_once(self.target.device, 0, tokens)
        return [candidates.part(slice(None), slice(i, i + size)) for i in range(0, candidates.shape[1], size)]

    def _distances(self, factors: Mapping[str, Sequence[Factor]]) -> Tensor:
        return self.distance(collect(factors, self._observed, self.distance))

    def _differences(self, factors: Mapping[str, Sequence[Factor]]) -> Tensor:
        rows = [(seen.gradient[:, None] - dense(factors[name])).flatten(2) for name, seen in self._observed.items()]
        return torch.cat(rows, dim=2)

    def _factors(self, candidates: Candidates) -> dict[str, list[Factor]]:
        errors, features = self._errors_and_features(candidates)
        gradients: dict[str, Factor] = {"weight": LowRank(errors, features), "bias": Dense(errors.sum(dim=2))}
        return {name: [gradients[kind]] for kind, name in self._names.items()}

    def _errors_and_features(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return (p − y) / B `[victims, candidates, sequences, classes]`, and h `[…, width]`."""
        flat = candidates.flat()
        rows = self._sequences(flat.inputs, flat.mask) if flat.are_tokens else self._rows(flat.inputs, flat.mask)
        features, logits = rows.double().tensor_split([rows.shape[1] - self.target.num_labels], dim=1)
        probabilities = torch.softmax(logits, dim=-1)
        truth = flat.labels if flat.labels.is_floating_point() else functional.one_hot(flat.labels, logits.shape[-1])
        errors = (probabilities - truth) / candidates.shape[2]
        return errors.view(*candidates.shape, -1), features.reshape(*candidates.shape, -1)

    def _run(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run sequences that come in order of their length; those of one pass are as long as its longest."""
        size = candidates_at_once(self.target.device, 0, ids.shape[1])
        ends = (mask * torch.arange(1, ids.shape[1] + 1, device=mask.device)).amax(dim=1)
        longest = torch.stack([part.max() for part in torch.split(ends, size)])
        lengths = longest.clamp(min=self.target.min_length).tolist()
        trimmed = zip(torch.split(ids, size), torch.split(mask, size), lengths, strict=True)
        return torch.cat([self._rows(self.target.embed(i[:, :length]), m[:, :length]) for i, m, length in trimmed])

    @torch.no_grad()
    def _rows(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Return what goes into the classifier and what comes out of it `[sequences, width + classes]`."""
        model, seen = self.target.model, []

        def record(_: Any, inputs: tuple[Tensor, ...]) -> None:  # noqa: ANN401
            seen.append(inputs[0])

        handle = model.get_submodule(self.target.classifier).register_forward_pre_hook(record)
        try:
            logits = self.target.family.logits(model, embeddings, mask, self.target.task)
        finally:
            handle.remove()
        return torch.cat([seen[0], logits], dim=1)

    def _observe(self, observed: Sequence[Mapping[str, Tensor]], name: str) -> Observed:
        stacked = torch.stack([gradient[name].to(self.target.device, torch.float64) for gradient in observed])
        return Observed.of(stacked)


def _filled(found: Tensor, count: int, value: float) -> Tensor:
    """Return what was found for the first candidates `[victims, some, …]` with a value for the rest."""
    missing = count - found.shape[1]
    return (
        torch.cat([found, found.new_full((len(found), missing, *found.shape[2:]), value)], dim=1) if missing else found
    )
