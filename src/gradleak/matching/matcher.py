"""`Matcher`: distances of candidates' gradients from observed ones, the objective of every search."""

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
from gradleak.matching.memory import candidates_at_once, candidates_in_quick_pass, saved_bytes
from gradleak.matching.reductions import Observed, collect
from gradleak.matching.rule_check import check_rules
from gradleak.matching.trace import trace
from gradleak.targets import Target

T = TypeVar("T")

NUMERICALLY_ZERO = 1e-6  # a tensor of a smaller norm, relative to the largest tensor's, is rounding noise


class Matcher:
    """Scores and differentiates candidates against observed gradients, many at once.

    Args:
        target: the model.
        observed: each victim's gradient by parameter name; the names are the same for all victims.
        distance: how two gradients are compared.
        parameters: names to compare; all observed ones by default. `vanishing_parameters` are always left out, such as
            key biases: softmax is invariant to them, so their gradient is rounding noise.

    Attributes:
        deadline: when to stop, for loops around the matcher to check as well; unlimited unless `until` sets one.
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
        self._check = check_rules(target)
        self._trusted = self._check.trusted & set(names)
        self._observed = _observe(target, observed, names)
        if not distance.needs_entries:
            linear = {n: seen for n, seen in self._observed.items() if n in self._check.linear}
            self._observed |= {n: replace(seen, outer=outer_products(seen.gradient)) for n, seen in linear.items()}
        self._batch: int | None = None
        self._capacity: dict[tuple[int, ...], int] = {}
        self._graphs = GraphCache()

    @property
    def victims(self) -> int:
        """Number of observed gradients."""
        return len(next(iter(self._observed.values())).gradient)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that are compared."""
        return list(self._observed)

    @property
    def slow_parameters(self) -> list[str]:
        """Names of compared parameters without a trusted rule; autograd computes them candidate by candidate."""
        return sorted(set(self._observed) - self._trusted)

    def __call__(self, candidates: Candidates) -> Tensor:
        """Return the distances `[victims, candidates]` in float64; infinity for those the deadline left no time for.

        The first candidate of each victim, a search's best so far, is always compared.

        Distances are differentiable where the candidates require a gradient. The graph of all candidates is then in
        memory at once; `gradients` keeps that of one part at a time.
        """
        score = self._distances if candidates.leaves else self._scores
        if not candidates.shape[1]:
            return candidates.mask.new_empty(candidates.shape[:2], dtype=torch.float64)

        count = candidates.shape[1]
        if count > 1 and self.deadline.passed:
            candidates = candidates.select(slice(None), slice(0, 1))

        def run() -> Tensor:
            found = torch.full((candidates.shape[0], count), torch.inf, dtype=torch.float64, device=self.target.device)
            for v, columns in self._parts(candidates):
                for n in columns:
                    if n.start and self.deadline.passed:
                        break
                    found[v, n] = score(candidates.select(v, n), v)
            return found

        return self._with_less_at_once(candidates, run)

    def gradients(self, candidates: Candidates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the distances, and their gradients by every tensor of the candidates that requires one.

        For candidates that the deadline left no time for, the distance is infinite and the gradient zero.
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
                    part = candidates.select(v, n).detached()
                    kind = (v.start, v.stop, "gradients")
                    distances[v, n], found = self._graphs(kind, partial(self._differentiate, victims=v), part)
                    for name, gradient in found.items():
                        gradients[name][v, n] = gradient

        self._with_less_at_once(candidates, run)
        return distances, gradients

    def with_fixed_sequences(self, base: Candidates, *replaced: int) -> Matcher:
        """Return a matcher for candidates that differ from a base in one sequence of the batch, or a few.

        The other sequences' gradient is computed once; the new matcher takes candidates of as many sequences as are
        replaced.

        Args:
            base: one candidate for each victim `[victims, 1, B, …]`.
            replaced: indices of the sequences that will be replaced.
        """
        batch = base.shape[2]
        kept = [b for b in range(batch) if b not in replaced]
        others = torch.tensor(kept, device=self.target.device, dtype=torch.long)
        held = self._of_single_sequences(batch)
        if kept:
            with torch.no_grad():
                rest = self._factors(base.select_sequences(others), weight=1.0 / batch)
            held._observed = {name: replace(seen, fixed=compact(rest[name])) for name, seen in self._observed.items()}
        return held

    def select(self, indices: Sequence[int]) -> Matcher:
        """Return a matcher for some of the victims."""
        if list(indices) == list(range(self.victims)):
            return self
        numbers = torch.tensor(indices, dtype=torch.long, device=self.target.device)
        some = copy(self)
        some._observed = {name: seen.select(numbers) for name, seen in self._observed.items()}
        some._graphs = GraphCache(shares_pool_with=self._graphs)
        return some

    def with_distance(self, distance: Distance) -> Matcher:
        """Return a matcher of the same gradients by another distance; both must need entries, or neither."""
        if distance.needs_entries != self.distance.needs_entries:
            raise GradleakError("a matcher holds entries or factors: make another one for this distance")
        other = copy(self)
        other.distance, other._capacity, other._graphs = distance, {}, GraphCache(shares_pool_with=self._graphs)
        return other

    def until(self, deadline: Deadline) -> Matcher:
        """Return a matcher that compares only as many candidates as a deadline leaves time for."""
        other = copy(self)
        other.deadline = deadline
        return other

    def _of_single_sequences(self, batch: int) -> Matcher:
        """Return a matcher whose candidates are some sequences out of a batch of that size."""
        held = copy(self)
        held._batch, held._capacity, held._graphs = batch, {}, GraphCache(shares_pool_with=self._graphs)
        return held

    def _scores(self, candidates: Candidates, victims: slice) -> Tensor:
        kind = (victims.start, victims.stop, "scores")
        return self._graphs(kind, lambda part: (self._distances(part, victims), {}), candidates)[0]

    def _differentiate(self, candidates: Candidates, victims: slice) -> tuple[Tensor, dict[str, Tensor]]:
        distances = self._distances(candidates, victims)
        gradients = torch.autograd.grad(distances.sum(), list(candidates.leaves.values()))
        return distances.detach(), dict(zip(candidates.leaves, gradients, strict=True))

    def _distances(self, candidates: Candidates, victims: slice) -> Tensor:
        weight = 1.0 / (self._batch or candidates.shape[2])
        observed = {name: seen.select(victims) for name, seen in self._observed.items()}
        factors = self._factors(candidates, weight)
        with torch.set_grad_enabled(bool(candidates.leaves)):
            return self.distance(collect(factors, observed, self.distance))

    def _factors(self, candidates: Candidates, weight: float) -> Mapping[str, Sequence[Factor]]:
        slow = self.slow_parameters
        if not candidates.are_tokens and self.target.word_parameters & self._observed.keys():
            raise GradleakError("the word embeddings' gradient needs candidates as token ids")
        cls_token_only = self._check.cls_token_only
        factors: dict[str, Sequence[Factor]] = {
            **trace(self.target, candidates, self._trusted, weight=weight, cls_token_only=cls_token_only)
        }
        if slow:
            gradients = autograd_gradients(self.target, candidates, slow, weight=weight)
            factors |= {name: [Dense(values)] for name, values in gradients.items()}
        return factors

    def _parts(self, candidates: Candidates) -> Iterator[tuple[slice, list[slice]]]:
        """Yield slices of victims, each with slices of candidates; a pass over them fits device and deadline."""
        victims, count, _ = candidates.shape
        if victims != self.victims:
            raise GradleakError(f"there are candidates for {victims} victims and gradients of {self.victims}")
        capacity = self._candidates_at_once(candidates)
        if self.deadline.limited and capacity > 1:
            capacity = min(capacity, candidates_in_quick_pass(self.target, candidates.mask.shape[2:].numel()))
        per_victim = min(count, capacity)
        victims_at_once = max(1, capacity // per_victim)
        columns = [slice(n, min(n + per_victim, count)) for n in range(0, count, per_victim)]
        for v in range(0, victims, victims_at_once):
            yield slice(v, min(v + victims_at_once, victims)), columns

    def _with_less_at_once(self, candidates: Candidates, run: Callable[[], T]) -> T:
        """Run; while the device is out of memory, halve the number of candidates at once and run again."""
        while True:
            try:
                return run()
            except torch.OutOfMemoryError:
                key = _capacity_key(candidates)
                if self._capacity.get(key, 1) == 1:
                    raise GradleakError(f"one candidate of {self.target.name} does not fit the device") from None
                self._capacity[key] //= 2
                self._graphs.clear()
            torch.cuda.empty_cache()

    def _candidates_at_once(self, candidates: Candidates) -> int:
        key = _capacity_key(candidates)
        if key not in self._capacity:
            if candidates.mask.shape[:2].numel() == 1 or self._one_fills_a_quick_pass(candidates):
                return 1
            one = candidates.select(slice(0, 1), slice(0, 1))
            resident = [
                *candidates.tensors,  # `one` is a view of them: its storage is that of all
                *self.target.parameters.values(),
                *(t for seen in self._observed.values() for t in seen.tensors),
            ]
            bytes_each = saved_bytes(lambda: self._distances(one, slice(0, 1)), resident)
            self._capacity[key] = candidates_at_once(self.target.device, bytes_each, one.mask.numel())
        return self._capacity[key]

    def _one_fills_a_quick_pass(self, candidates: Candidates) -> bool:
        """Return whether one candidate takes so long that there is no time under a deadline to measure memory."""
        tokens = candidates.mask.shape[2:].numel()
        return self.deadline.limited and candidates_in_quick_pass(self.target, tokens) == 1


def _capacity_key(candidates: Candidates) -> tuple[int, ...]:
    """Return the key under which capacity is stored: candidates of the same shape take the same memory."""
    return (*candidates.mask.shape[2:], len(candidates.leaves))


def vanishing_parameters(target: Target) -> frozenset[str]:
    """Return the parameters whose exact gradient is zero.

    Key biases, where they are parameters by themselves, and the A of an adapter whose B is zero, as in a first round.
    Rotated keys (RoPE) are the exception: what the bias adds to a score then depends on the key's position.
    """
    biases = {layer.key.bias for layer in target.layers if layer.key.rows == slice(None) and not target.family.rotary}
    return frozenset(
        biases | {module.a for module in target.adapters if not bool(module.b_in(target.parameters).any())}
    )


def select_parameters(target: Target, observed: Mapping[str, Tensor], selection: str) -> list[str]:
    """Return the observed parameter names that a selection stands for.

    Args:
        target: the model.
        observed: gradients by name.
        selection: `all`, or `classifier` (the last layer alone, as FET matches).
    """
    if selection == "all":
        return list(observed)
    if selection == "classifier":
        return [name for name in observed if name in (target.classifier_weight, target.classifier_bias)]
    raise GradleakError(f"'{selection}' selects no parameters; use all or classifier")


def _observe(target: Target, observed: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> dict[str, Observed]:
    seen = {
        name: Observed.of(torch.stack([gradients[name].to(target.device, target.dtype) for gradients in observed]))
        for name in names
    }
    threshold = torch.stack([one.squared for one in seen.values()]).amax(dim=0) * NUMERICALLY_ZERO**2
    return {name: replace(one, included=(one.squared > threshold).to(torch.float64)) for name, one in seen.items()}
