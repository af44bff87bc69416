"""`ClassifierMatcher`: distances of the classifier's gradient alone, from forward passes alone; FET searches with it.

The classifier maps features h to probabilities p, so the gradient of its weight is Σ (p − y) hᵀ over the sequences of a
batch and that of its bias Σ (p − y). No backward pass is needed, whatever lies below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline
from gradleak.matching.candidates import Candidates
from gradleak.matching.distances import Distance
from gradleak.matching.factors import Dense, Factor, LowRank, dense
from gradleak.matching.forward_cache import ForwardCache
from gradleak.matching.memory import candidates_at_once, candidates_in_quick_pass
from gradleak.matching.reductions import Observed, collect
from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls


class ClassifierMatcher:
    """Scores candidates against the observed gradients of a classifier's last layer, as `Matcher` does.

    After the forward pass everything is float64, because near the truth a distance is a small difference of large sums.

    Args:
        target: the model, a classifier.
        observed: each victim's gradient by parameter name.
        distance: how two gradients are compared.

    Attributes:
        deadline: when to stop, for loops around the matcher to check as well; unlimited unless `until` sets one.
    """

    def __init__(self, target: Target, observed: Sequence[Mapping[str, Tensor]], distance: Distance) -> None:
        names = {"weight": target.classifier_weight, "bias": target.classifier_bias}
        self._names = {kind: name for kind, name in names.items() if name in observed[0]}
        if target.task != "classification" or not self._names:
            raise GradleakError(f"there is no classifier gradient of {target.name} to compare")
        self.target = target
        self.distance = distance
        self.deadline = Deadline()
        self._observed = {name: self._observe(observed, name) for name in self._names.values()}
        self._cache = ForwardCache(self._run)

    @property
    def victims(self) -> int:
        """Number of observed gradients."""
        return len(next(iter(self._observed.values())).gradient)

    def __call__(self, candidates: Candidates) -> Tensor:
        """Return the distances `[victims, candidates]` in float64; infinity for those the deadline left no time for."""
        nothing = torch.empty(self.victims, 0, dtype=torch.float64, device=self.target.device)
        found = [
            self._distances(self._factors(part)) for some in self._in_time(candidates) for part in self._parts(some)
        ]
        return _filled(torch.cat([nothing, *found], dim=1), candidates.shape[1], torch.inf)

    def until(self, deadline: Deadline) -> ClassifierMatcher:
        """Return a matcher that stops at a deadline; it always compares the first candidate."""
        other = copy(self)
        other.deadline = deadline
        return other

    @property
    def goal(self) -> Tensor:
        """The observed gradients `[victims, entries]`."""
        return torch.cat([seen.gradient.flatten(1) for seen in self._observed.values()], dim=1)

    def compare(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return the distances, and the observed gradients minus the candidates' `[victims, candidates, entries]`.

        For candidates that the deadline left no time for, the distance is infinite and the difference zero.
        """
        factors = [self._factors(part) for some in self._in_time(candidates) for part in self._parts(some)]
        distances = torch.cat([self._distances(part) for part in factors], dim=1)
        differences = torch.cat([self._differences(part) for part in factors], dim=1)
        count = candidates.shape[1]
        return _filled(distances, count, torch.inf), _filled(differences, count, 0.0)

    def per_sequence_gradients(self, candidates: Candidates) -> Tensor:
        """Return each sequence's term of its candidate's gradient `[victims, candidates, sequences, entries]`."""
        errors, features = self._errors_and_features(candidates)
        rows = {"weight": errors[..., None] * features[..., None, :], "bias": errors[..., None]}
        return torch.cat([rows[kind].flatten(3) for kind in self._names], dim=3)

    def _in_time(self, candidates: Candidates) -> Iterator[Candidates]:
        """Yield all candidates at once, or under a deadline one small batch after the other until it has passed."""
        count = candidates.shape[1]
        step = count
        if self.deadline.limited and count > 1:
            tokens = self.victims * candidates.mask.shape[2:].numel()
            step = 1 if self.deadline.passed else candidates_in_quick_pass(self.target, tokens)
        for first in range(0, count, max(1, step)):
            if first and self.deadline.passed:
                break
            yield candidates.select(slice(None), slice(first, first + step))

    def _parts(self, candidates: Candidates) -> list[Candidates]:
        """Split candidates into parts; forward passes save nothing, so speed is the limit and not memory."""
        if candidates.are_tokens and candidates.shape[1]:  # fill the cache in passes as large as possible
            flat = candidates.flat()
            self._cache(flat.inputs, flat.mask)
        tokens = self.victims * candidates.mask[0].flatten(1).shape[1]
        size = candidates_at_once(self.target.device, 0, tokens)
        return [candidates.select(slice(None), slice(i, i + size)) for i in range(0, candidates.shape[1], size)]

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
        rows = self._cache(flat.inputs, flat.mask) if flat.are_tokens else self._rows(flat.inputs, flat.mask)
        features, logits = rows.double().tensor_split([rows.shape[1] - self.target.num_labels], dim=1)
        probabilities = torch.softmax(logits, dim=-1)
        truth = flat.labels if flat.labels.is_floating_point() else functional.one_hot(flat.labels, logits.shape[-1])
        errors = (probabilities - truth) / candidates.shape[2]
        return errors.view(*candidates.shape, -1), features.reshape(*candidates.shape, -1)

    def _run(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run sequences that come in order of length, each pass trimmed to its longest sequence."""
        size = candidates_at_once(self.target.device, 0, ids.shape[1])
        ends = (mask * torch.arange(1, ids.shape[1] + 1, device=mask.device)).amax(dim=1)
        longest = torch.stack([part.max() for part in torch.split(ends, size)])
        lengths = longest.clamp(min=self.target.min_length).tolist()
        trimmed = zip(torch.split(ids, size), torch.split(mask, size), lengths, strict=True)
        return torch.cat([self._rows(self.target.embed(i[:, :length]), m[:, :length]) for i, m, length in trimmed])

    @torch.no_grad()
    def _rows(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Return the classifier's input and output `[sequences, width + classes]`."""
        with captured_calls(self.target, [self.target.classifier]) as calls:
            logits = self.target.logits(embeddings, mask)
        return torch.cat([calls[0].inputs, logits], dim=1)

    def _observe(self, observed: Sequence[Mapping[str, Tensor]], name: str) -> Observed:
        stacked = torch.stack([gradient[name].to(self.target.device, torch.float64) for gradient in observed])
        return Observed.of(stacked)


def _filled(found: Tensor, count: int, value: float) -> Tensor:
    """Return the results of the first candidates `[victims, some, …]`, filled up to `count` candidates with a value."""
    missing = count - found.shape[1]
    return (
        torch.cat([found, found.new_full((len(found), missing, *found.shape[2:]), value)], dim=1) if missing else found
    )
