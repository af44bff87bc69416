"""Reading an update that noise, pruning or sign compression has changed.

The row space of such a gradient is no longer exact: every singular value is there, and those of the text stand out
above the edge that noise alone would reach (Marchenko & Pastur 1967). Instead of asking whether x(t, p) lies in the row
space, this asks how much of what stands out the tokens of a sentence explain, in the inputs of several maps at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.sieve.inputs import Inputs
from gradleak.search import neighbour_orders
from gradleak.targets import Projection, Target

ABOVE_EDGE = 1.02
FAINT = 0.05
"""Singular values below this share of the largest never count: pruning leaves a tail that no noise explains."""

LONGEST = 64
"""Sentences of more tokens are not looked for."""

LIKELIEST = 200
"""How many tokens of each position are looked at."""

LENGTHS = 3
"""How many places of the end of a sentence are tried."""

REPLACEMENTS = 10
"""How many other tokens are tried at each place."""

FARTHEST = 4
"""How far a token is swapped or moved: the row space tells positions nearly."""

JUDGED = 64
"""How many changes of a sentence are judged by all spaces, of those that the first judges best."""


@dataclass(frozen=True)
class Spikes:
    """What stands out of a gradient: S Vᵀ of the singular values above the noise `[spikes, width]`, of norm 1."""

    factor: Tensor

    def explained(self, rows: Tensor) -> Tensor:
        """Return the share that the span of rows explains: `[…, rows, width]` gives `[…]`."""
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        shown = rows @ self.factor.T.to(rows)  # [..., rows, spikes]
        gram = rows @ rows.mT
        gram = gram + 1e-6 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return (
            (torch.linalg.solve_triangular(torch.linalg.cholesky(gram), shown, upper=False)).square().sum(dim=(-2, -1))
        )


def spikes(gradients: Sequence[Tensor]) -> Spikes | None:
    """Return what stands out of gradients of maps that were fed the same vectors; None if nothing does.

    Each is first scaled to the same noise, that of its median singular value, and each spike is shrunk by what noise
    has added to it.
    """
    scaled = []
    for gradient in gradients:
        values = torch.linalg.svdvals(gradient.double())
        floor = torch.maximum(values.median(), 1e-3 * values[0])  # compression may leave no noise at all
        scaled.append(gradient.double() / floor.clamp(min=torch.finfo(torch.float64).tiny))
    rows = torch.cat(scaled)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    edge = values.median() * _edge_by_median(min(rows.shape) / max(rows.shape))
    edge = torch.maximum(edge, FAINT * values[0])
    clear = values > ABOVE_EDGE * edge
    if not clear.any():
        return None
    strength = (values[clear].square() - edge.square()).sqrt()
    return Spikes(strength[:, None] * vectors[clear] / strength.norm())


@lru_cache
def _edge_by_median(ratio: float) -> float:
    """Return the largest singular value of pure noise, in units of its median; `ratio` of columns to rows."""
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    at = np.linspace(low, high, 20_001)[1:]
    density = np.sqrt(np.maximum((high - at) * (at - low), 0)) / at
    total = np.cumsum(density)
    return float((high / at[np.searchsorted(total, total[-1] / 2)]) ** 0.5)


class Judge:
    """How much of the spikes of several maps a sentence explains.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
    """

    def __init__(self, target: Target, inputs: Inputs, gradient: Mapping[str, Tensor]) -> None:
        self.target, self.inputs = target, inputs
        self.first = spikes([part.weight_in(gradient) for part in inputs.maps])
        self.later: dict[str, Spikes] = {}
        for parts in _later_maps(target):
            if all(part.weight in gradient for part in parts):
                found = spikes([part.weight_in(gradient) for part in parts])
                if found is not None:
                    self.later[parts[0].module] = found

    def alone(self, ids: Tensor) -> Tensor:
        """Return the share of the first maps' spikes `[sentences]` that sentences `[sentences, tokens]` explain."""
        assert self.first is not None
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.first.explained(self.inputs(ids, positions))

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the mean share that sentences explain, the first maps counting twice."""
        total = 2 * self.alone(ids)
        if self.later:
            fed = captured_inputs(self.target, ids, list(self.later))
            total = total + sum(found.explained(fed[path].double()) for path, found in self.later.items())
        return total / (2 + len(self.later))  # [sentences]


def read_noisy(
    target: Target, inputs: Inputs, gradient: Mapping[str, Tensor], words: Tensor, longest: int, length: int | None
) -> tuple[tuple[int, ...], float] | None:
    """Read one sentence from a changed update; return it and the share of the spikes that it leaves unexplained."""
    judge = Judge(target, inputs, gradient)
    if judge.first is None:
        return None
    longest = min(longest, LONGEST, inputs.positions.shape[0])
    common = _common_rows(target, inputs, words)
    table = _likeliest(inputs, judge.first, words, longest, common)
    lengths = _lengths(target, inputs, judge.first, longest, common) if length is None else [length]
    scored: dict[int, tuple[float, Tensor]] = {}
    for tokens in lengths:
        start = _pursue(target, inputs, judge.first, table, tokens)
        sentence, score = _descend(target, inputs, judge, table, start)
        scored[tokens] = score - tokens / inputs.width, sentence  # what a wrong row would explain by chance
    best = max(scored, key=lambda tokens: scored[tokens][0])
    sentence = scored[best][1]
    rows = inputs(sentence, torch.arange(best, device=words.device))
    missed = _likeliest(inputs, judge.first, words, best, rows)[:, : LIKELIEST // 2]
    sentence, _ = _descend(target, inputs, judge, torch.cat([table[:best], missed], dim=1), sentence)
    return tuple(sentence.tolist()), 1 - float(judge(sentence[None])[0])


def _later_maps(target: Target) -> list[tuple[Projection, ...]]:
    """Return the maps that take what becomes of a sentence next, those together that take the same."""
    first, *others = target.layers
    maps: list[tuple[Projection, ...]] = [(first.attention_output,), (first.feed_forward_in,)]
    return maps + [(layer.query, layer.key, layer.value) for layer in others[:1]]


def _common_rows(target: Target, inputs: Inputs, words: Tensor) -> Tensor:
    """Return what nearly all rows share: the vocabulary's mean at a few positions, and the start of a sentence."""
    some = words[:: max(1, len(words) // 2000)]
    places = torch.tensor([1, 6, 12], device=words.device).clamp(max=inputs.positions.shape[0] - 1)
    means = [inputs(some, place.expand(len(some))).mean(dim=0) for place in places]
    start = torch.tensor(target.special_tokens[0][:1], device=words.device, dtype=torch.long)
    return torch.cat([torch.stack(means), inputs(start, torch.zeros_like(start))])


def _gains(inputs: Inputs, found: Spikes, words: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Return how much of the spikes tokens explain at positions beside given rows `[tokens, positions]`.

    All rows share a large part: what counts is what a token adds to it.
    """
    basis = torch.linalg.qr(rows.T)[0]
    factor = found.factor - (found.factor @ basis) @ basis.T
    own = 1.0 - inputs.captured(basis, words, places)
    return inputs.captured(factor.T, words, places) / own.clamp(min=1e-3)


def _likeliest(inputs: Inputs, found: Spikes, words: Tensor, longest: int, rows: Tensor) -> Tensor:
    """Return the tokens of each position that explain most beside given rows `[positions, tokens]`."""
    places = torch.arange(longest, device=words.device)
    gain = _gains(inputs, found, words, places, rows)
    return words[gain.topk(min(LIKELIEST, len(words)), dim=0).indices].T


def _lengths(target: Target, inputs: Inputs, found: Spikes, longest: int, rows: Tensor) -> list[int]:
    """Return the likeliest numbers of tokens: where the end of a sentence explains most."""
    after = target.special_tokens[1]
    if not after:
        return list(range(target.min_length, min(longest, target.min_length + 8 * LENGTHS)))
    places = torch.arange(target.min_length - 1, longest, device=inputs.words.device)
    end = torch.tensor(after[-1:], device=places.device)
    order = _gains(inputs, found, end, places, rows)[0].argsort(descending=True)[:LENGTHS]
    return [int(place) + 1 for place in places[order]]


def _pursue(target: Target, inputs: Inputs, found: Spikes, table: Tensor, length: int) -> Tensor:
    """Orthogonal matching pursuit, one token a position: take the token that explains most of what is left."""
    before, after = target.special_tokens
    device = table.device
    sentence = torch.full((length,), -1, device=device, dtype=torch.long)
    sentence[: len(before)] = torch.tensor(before, device=device, dtype=torch.long)
    if after:
        sentence[length - len(after) :] = torch.tensor(after, device=device, dtype=torch.long)
    places = torch.arange(length, device=device)
    vectors = inputs(table[:length], places[:, None].expand(-1, table.shape[1]))  # [length, tokens, width]
    factor = found.factor.clone()
    done = sentence >= 0
    for row in inputs(sentence[done], places[done]):
        vectors, factor = _without(vectors, factor, row)
    while (sentence < 0).any():
        gain = (vectors @ factor.T).square().sum(dim=-1) / vectors.square().sum(dim=-1).clamp(min=1e-9)
        gain[sentence >= 0] = -1.0
        place, choice = divmod(int(gain.argmax()), gain.shape[1])
        sentence[place] = table[place, choice]
        vectors, factor = _without(vectors, factor, vectors[place, choice].clone())
    return sentence


def _without(vectors: Tensor, factor: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors and factor with their parts along a row taken away."""
    row = row / row.norm().clamp(min=1e-9)
    return vectors - (vectors @ row)[..., None] * row, factor - (factor @ row)[:, None] * row


def _descend(
    target: Target, inputs: Inputs, judge: Judge, table: Tensor, start: Tensor, steps: int = 20
) -> tuple[Tensor, float]:
    """Change one token, swap two or move one, whatever explains most, as long as something explains more."""
    sentence, score = start, float(judge(start[None])[0])
    before, after = target.special_tokens
    free = torch.zeros(1, len(start), dtype=torch.bool, device=start.device)
    free[:, len(before) : len(start) - len(after)] = True
    orders = neighbour_orders(free)[1:, 0]  # [neighbours, tokens]
    far = (orders - torch.arange(len(start), device=start.device)).abs().amax(dim=1)
    orders = orders[far <= FARTHEST]
    for _ in range(steps):
        tried = torch.cat([sentence[orders], _replaced(inputs, judge, table, sentence, free[0])])
        tried = tried[judge.alone(tried).topk(min(JUDGED, len(tried))).indices]
        scores = judge(tried)
        if float(scores.max()) <= score + 1e-9:
            break
        sentence, score = tried[scores.argmax()], float(scores.max())
    return sentence, score


def _replaced(inputs: Inputs, judge: Judge, table: Tensor, sentence: Tensor, free: Tensor) -> Tensor:
    """Return the sentence with one token replaced by each of those that explain most beside the others."""
    assert judge.first is not None
    places = torch.arange(len(sentence), device=sentence.device)
    rows = inputs(sentence, places)
    changed = []
    for place in free.nonzero().flatten().tolist():
        vectors, factor = inputs(table[place], places[place].expand(table.shape[1])), judge.first.factor
        others = torch.linalg.qr(rows[places != place].T)[0]
        vectors = vectors - (vectors @ others) @ others.T
        factor = factor - (factor @ others) @ others.T
        gain = (vectors @ factor.T).square().sum(dim=-1) / vectors.square().sum(dim=-1).clamp(min=1e-9)
        best = table[place][gain.topk(min(REPLACEMENTS, len(gain))).indices]
        tried = sentence.repeat(len(best), 1)
        tried[:, place] = best
        changed.append(tried)
    return torch.cat(changed) if changed else sentence[None]


class _Enough(Exception):  # noqa: N818 - no error, a way out
    """Raised to leave a forward pass."""


@torch.no_grad()
def captured_inputs(target: Target, ids: Tensor, modules: Sequence[str]) -> dict[str, Tensor]:
    """Return what modules are fed `[sentences, tokens, width]`; the forward pass stops at the last of them."""
    fed: dict[str, Tensor] = {}
    with _listening(target, modules, fed), suppress(_Enough):
        mask = torch.ones_like(ids, dtype=torch.bool)
        target.family.logits(target.model, target.embed(ids), mask, target.task)
    return fed


@contextmanager
def _listening(target: Target, modules: Sequence[str], fed: dict[str, Tensor]) -> Iterator[None]:
    def hook(path: str) -> Any:  # noqa: ANN401
        def listen(_: object, inputs: tuple[Tensor, ...]) -> None:
            fed.setdefault(path, inputs[0])
            if len(fed) == len(modules):
                raise _Enough

        return listen

    handles = [target.model.get_submodule(path).register_forward_pre_hook(hook(path)) for path in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
