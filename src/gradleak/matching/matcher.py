"""Matcher: how far are candidates' gradients from the observed ones?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline
from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.cuda_graphs import GraphCache
from gradleak.matching.distances import Distance
from gradleak.matching.factors import Dense, Factor, compact
from gradleak.matching.low_rank import outer_products
from gradleak.matching.memory import candidates_at_once, candidates_in_a_moment, saved_bytes
from gradleak.matching.reductions import Observed, collect
from gradleak.matching.rule_check import trial_of
from gradleak.matching.trace import trace
from gradleak.targets import Target

T = TypeVar("T")

# A tensor whose norm is below this share of the largest tensor's is rounding noise.
NUMERICALLY_ZERO = 1e-6


class Matcher:
    """Scores and differentiates candidates against observed gradients, many at once.

    Args:
        target: the model.
        observed: each victim's gradient by parameter name; all victims show the same parameters.
        distance: how two gradients are compared.
        parameters: names to compare; all that were observed by default. Key biases are left out: softmax does not
            feel them, so that their gradient is rounding noise.

    Attributes:
        deadline: when to stop; whoever calls in a loop asks it, too. None to speak of unless `until` sets one.
    """

    def __init__(
        self,
        target: Target,
        observed: Sequence[Mapping[str, Tensor]],
        distance: Distance,
        parameters: Sequence[str] | None = None,
    ) -> None:
        names = [n for n in (parameters or observed[0]) if n not in vanishing_parameters(target)]
        missing = [name for name in names if name not in observed[0]]
        if not names or missing:
            raise GradleakError(f"the update has no gradient of {missing[0] if missing else 'any parameter compared'}")
        self.target = target
        self.distance = distance
        self.deadline = Deadline()
        self._trial = trial_of(target)
        self._trusted = self._trial.trusted & set(names)
        self._observed = _observe(target, observed, names)
        if not distance.needs_entries:
            linear = {n: seen for n, seen in self._observed.items() if n in self._trial.linear}
            self._observed |= {n: replace(seen, outer=outer_products(seen.gradient)) for n, seen in linear.items()}
        self._batch: int | None = None
        self._room: dict[tuple[int, ...], int] = {}
        self._graphs = GraphCache()

    @property
    def victims(self) -> int:
        """How many observed gradients there are."""
        return len(next(iter(self._observed.values())).gradient)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that are compared."""
        return list(self._observed)

    @property
    def slow_parameters(self) -> list[str]:
        """Names of those that no layer rule covers, and that autograd computes candidate by candidate."""
        return sorted(set(self._observed) - self._trusted)

    def __call__(self, candidates: Candidates) -> Tensor:
        """Return the distances `[victims, candidates]` in float64; infinity where the deadline came first.

        The first candidate of each victim is always compared: a search puts there what it has.

        They are differentiable where the candidates require a gradient. The graph of all candidates is then alive at
        once; `gradients` keeps one part of them alive at a time.
        """
        score = self._distances if candidates.leaves else self._scores
        if not candidates.shape[1]:
            return candidates.mask.new_empty(candidates.shape[:2], dtype=torch.float64)

        count = candidates.shape[1]
        if count > 1 and self.deadline.passed:
            candidates = candidates.part(slice(None), slice(0, 1))

        def run() -> Tensor:
            found = torch.full((candidates.shape[0], count), torch.inf, dtype=torch.float64, device=self.target.device)
            for v, columns in self._parts(candidates):
                for n in columns:
                    if n.start and self.deadline.passed:
                        break
                    found[v, n] = score(candidates.part(v, n), v)
            return found

        return self._fitting(candidates, run)

    def gradients(self, candidates: Candidates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the distances, and their gradients by every tensor of the candidates that requires one.

        Where the deadline came first, the distance is infinite and the gradient zero.
        """
        distances = torch.empty(candidates.shape[:2], dtype=torch.float64, device=self.target.device)
        gradients = {name: torch.empty_like(leaf) for name, leaf in candidates.leaves.items()}

        def run() -> None:
            for v, columns in self._parts(candidates):
                for n in columns:
                    if (v.start or n.start) and self.deadline.passed:
                        distances[v, n] = torch.inf
                        for gradient in gradients.values():
                            gradient[v, n] = 0.0
                        continue
                    part = candidates.part(v, n).detached()
                    kind = (v.start, v.stop, "slopes")
                    distances[v, n], slopes = self._graphs(kind, partial(self._slopes, victims=v), part)
                    for name, slope in slopes.items():
                        gradients[name][v, n] = slope

        self._fitting(candidates, run)
        return distances, gradients

    def with_fixed_sequences(self, base: Candidates, sequence: int) -> Matcher:
        """Return a matcher for candidates that differ from a base in one sequence of the batch.

        The other sequences' gradient is computed once; the new matcher takes candidates of one sequence each.

        Args:
            base: one candidate for each victim `[victims, 1, B, …]`.
            sequence: which of its sequences will be replaced.
        """
        batch = base.shape[2]
        others = torch.tensor([b for b in range(batch) if b != sequence], device=self.target.device, dtype=torch.long)
        held = self._of_single_sequences(batch)
        if batch > 1:
            with torch.no_grad():
                rest = self._factors(base.sequences(others), weight=1.0 / batch)
            held._observed = {name: replace(seen, fixed=compact(rest[name])) for name, seen in self._observed.items()}
        return held

    def select(self, chosen: Sequence[int]) -> Matcher:
        """Return a matcher for some of the victims."""
        if list(chosen) == list(range(self.victims)):
            return self
        numbers = torch.tensor(chosen, dtype=torch.long, device=self.target.device)
        some = copy(self)
        some._observed = {name: seen.part(numbers) for name, seen in self._observed.items()}
        some._graphs = GraphCache(beside=self._graphs)
        return some

    def judged_by(self, distance: Distance) -> Matcher:
        """Return a matcher of the same gradients by another distance; either both need entries, or none does."""
        if distance.needs_entries != self.distance.needs_entries:
            raise GradleakError("a matcher holds entries or factors: make another one for this distance")
        other = copy(self)
        other.distance, other._room, other._graphs = distance, {}, GraphCache(beside=self._graphs)
        return other

    def until(self, deadline: Deadline) -> Matcher:
        """Return a matcher that compares as many candidates as there is time for."""
        other = copy(self)
        other.deadline = deadline
        return other

    def _of_single_sequences(self, batch: int) -> Matcher:
        """Return a matcher like this whose candidates are single sequences of a batch of that size."""
        held = copy(self)
        held._batch, held._room, held._graphs = batch, {}, GraphCache(beside=self._graphs)
        return held

    def _scores(self, candidates: Candidates, victims: slice) -> Tensor:
        kind = (victims.start, victims.stop, "scores")
        return self._graphs(kind, lambda part: (self._distances(part, victims), {}), candidates)[0]

    def _slopes(self, candidates: Candidates, victims: slice) -> tuple[Tensor, dict[str, Tensor]]:
        found = self._distances(candidates, victims)
        slopes = torch.autograd.grad(found.sum(), list(candidates.leaves.values()))
        return found.detach(), dict(zip(candidates.leaves, slopes, strict=True))

    def _distances(self, candidates: Candidates, victims: slice) -> Tensor:
        weight = 1.0 / (self._batch or candidates.shape[2])
        observed = {name: seen.part(victims) for name, seen in self._observed.items()}
        factors = self._factors(candidates, weight)
        with torch.set_grad_enabled(bool(candidates.leaves)):
            return self.distance(collect(factors, observed, self.distance))

    def _factors(self, candidates: Candidates, weight: float) -> Mapping[str, Sequence[Factor]]:
        slow = self.slow_parameters
        if not candidates.are_tokens and self.target.word_parameters & self._observed.keys():
            raise GradleakError("the word embeddings' gradient needs candidates as token ids")
        cls_token_only = self._trial.cls_token_only
        factors: dict[str, Sequence[Factor]] = {
            **trace(self.target, candidates, self._trusted, weight=weight, cls_token_only=cls_token_only)
        }
        if slow:
            gradients = autograd_gradients(self.target, candidates, slow, weight=weight)
            factors |= {name: [Dense(values)] for name, values in gradients.items()}
        return factors

    def _parts(self, candidates: Candidates) -> Iterator[tuple[slice, list[slice]]]:
        """Yield slices of victims, and for each the slices of candidates, that fit the device."""
        victims, count, _ = candidates.shape
        if victims != self.victims:
            raise GradleakError(f"there are candidates for {victims} victims and gradients of {self.victims}")
        room = self._candidates_at_once(candidates)
        if self.deadline.limited and room > 1:
            room = min(room, candidates_in_a_moment(self.target, candidates.mask.shape[2:].numel()))
        per_victim = min(count, room)
        together = max(1, room // per_victim)
        columns = [slice(n, min(n + per_victim, count)) for n in range(0, count, per_victim)]
        for v in range(0, victims, together):
            yield slice(v, min(v + together, victims)), columns

    def _fitting(self, candidates: Candidates, run: Callable[[], T]) -> T:
        """Run, with fewer candidates at once as long as the device says that it is out of memory."""
        while True:
            try:
                return run()
            except torch.OutOfMemoryError:
                key = _room_key(candidates)
                if self._room.get(key, 1) == 1:
                    raise GradleakError(f"one candidate of {self.target.name} does not fit the device") from None
                self._room[key] //= 2
                self._graphs.clear()
            torch.cuda.empty_cache()

    def _candidates_at_once(self, candidates: Candidates) -> int:
        key = _room_key(candidates)
        if key not in self._room:
            if candidates.mask.shape[:2].numel() == 1 or self._only_one_in_time(candidates):
                return 1
            one = candidates.part(slice(0, 1), slice(0, 1))
            standing = [
                *candidates.tensors,  # `one` is a view of them: its storage is that of all
                *self.target.parameters.values(),
                *(t for seen in self._observed.values() for t in seen.tensors),
            ]
            bytes_each = saved_bytes(lambda: self._distances(one, slice(0, 1)), standing)
            self._room[key] = candidates_at_once(self.target.device, bytes_each, one.mask.numel())
        return self._room[key]

    def _only_one_in_time(self, candidates: Candidates) -> bool:
        """Whether one candidate takes so long that measuring how many fit would take too much of the time."""
        tokens = candidates.mask.shape[2:].numel()
        return self.deadline.limited and candidates_in_a_moment(self.target, tokens) == 1


def _room_key(candidates: Candidates) -> tuple[int, ...]:
    """Candidates of the same shape take the same memory."""
    return (*candidates.mask.shape[2:], len(candidates.leaves))


def vanishing_parameters(target: Target) -> frozenset[str]:
    """Return the parameters whose gradient is zero in theory: biases of keys, where they are stored alone."""
    return frozenset(layer.key.bias for layer in target.layers if layer.key.rows == slice(None))


def select_parameters(target: Target, observed: Mapping[str, Tensor], selection: str) -> list[str]:
    """Return the names that a selection stands for, out of those observed.

    Args:
        target: the model.
        observed: gradients by name.
        selection: `all`; `body` (all but embeddings); `classifier` (the last layer alone, as FET matches);
            `layers:K` (the first K transformer layers).
    """
    if selection == "all":
        return list(observed)
    if selection == "body":
        return [name for name in observed if name not in target.embedding_parameters]
    if selection == "classifier":
        return [name for name in observed if name.startswith(f"{target.classifier}.")]
    kind, _, number = selection.partition(":")
    if kind == "layers" and number.isdigit() and int(number) > 0:
        prefixes = tuple(_layer_prefix(layer.query.module, layer.feed_forward_out.module) for layer in target.layers)
        return [name for name in observed if name.startswith(prefixes[: int(number)])]
    raise GradleakError(f"'{selection}' selects no parameters; use all, body, classifier or layers:K")


def _layer_prefix(*paths: str) -> str:
    """Return the path that modules of one layer have in common."""
    common = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) + "."


def _observe(target: Target, observed: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> dict[str, Observed]:
    seen = {
        name: Observed.of(torch.stack([gradients[name].to(target.device, target.dtype) for gradients in observed]))
        for name in names
    }
    least = torch.stack([one.squared for one in seen.values()]).amax(dim=0) * NUMERICALLY_ZERO**2
    return {name: replace(one, included=(one.squared > least).to(torch.float64)) for name, one in seen.items()}
