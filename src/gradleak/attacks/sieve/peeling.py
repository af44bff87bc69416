"""Reading a batch without dropout: one sentence after the other, each subtracted once it is known.

Without dropout a token at a position feeds the first map the same vector in whatever sentence it stands, and pairs of
tokens and positions depend on each other linearly. What the row space still tells exactly is which tokens and which
positions there are. With ê_t = γ ⊙ E_t and p̂_p = γ ⊙ P_p the gradient of a first map is

    dW = Σ_t a_t ê_tᵀ + Σ_p b_p p̂_pᵀ + c βᵀ,     a_t = Σ δ / σ over the occurrences of t,  b_p the same at p,

and since these vectors are independent, a_t and b_p can be read off. Then
1. a token that occurs once puts its a_t into the b_p of its position: a regression of b_p on all a_t finds positions;
2. attention in a first layer is broad, so that the value gradients of one sentence's tokens are alike: the cosine of
   a_t finds tokens of one sentence;
3. the skeletons of sentences that this gives are completed by replacing tokens, one at a time, until the sentence
   passes the test of its contexts (`contexts.py`), which needs nothing but the sentence itself;
4. its gradient is subtracted, with the label and the weight 1 / B that lower the rank, and the rest is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn.functional import normalize

from gradleak.attacks.sieve.contexts import Pairs, Sketch, outside_contexts
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.subspace import ROUNDING, Subspace, row_space
from gradleak.attacks.sieve.verify import gradient_of
from gradleak.exchange import Deadline
from gradleak.targets import Projection, Target

IN_SPAN = 2e-3
"""A pair is possible if less than this share of x(t, p) lies outside the row space."""

NEAR = 1e-4
"""The same as a share of the square, with room for rounding in the scan."""

RIGHT, MOST_OUTSIDE = 1e-4, 0.2
"""A sentence is right if less than this share of each of its contexts lies outside, where wrong ones leave 1e-2; of a
rounded update the second at most, which what a sentence subtracts has to confirm."""

DONE = 1e-5
"""Nothing is left of a gradient that was 1."""

CLOSE = 1e-3
"""A weight that is within this share of a count over a batch size is rounded to it."""

MOST_PAIRS = 6000
"""More pairs than this are no reading: the row space is not one of text, and tables of all pairs would fill memory."""

SCANNED = 2**16
"""So many pairs are looked at in float64 at a time."""

TOGETHER = 16
"""After so many skeletons, what was found is subtracted first."""

BEAM = 8
"""How many sentences a completion keeps."""

NOTHING = 1e-9
"""A sketched loss that no wrong sentence has."""


@dataclass
class PlainReading:
    """Sentences read, their classes, and the share of the gradient that is left."""

    sentences: list[tuple[int, ...]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    left: float = 1.0


def read_plain(
    target: Target,
    inputs: Inputs,
    gradient: Mapping[str, Tensor],
    words: Tensor,
    longest: int,
    starts: int,
    floor: float = 0.0,
    deadline: Deadline | None = None,
) -> PlainReading:
    """Read a batch whose client had dropout switched off.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: what was sent.
        words: ids that may stand inside a text.
        longest: no sentence has more tokens.
        starts: how many beginnings of sentences are tried at most.
        floor: of the first maps' row space.
        deadline: when to end with the sentences found so far.
    """
    deadline = deadline or Deadline()
    layer = target.layers[0]
    parts = (*inputs.maps, layer.query, layer.key, layer.value, layer.attention_output)
    rest = {part.weight: gradient[part.weight].double() for part in parts}
    whole = _norm(rest)
    smallest = max(ROUNDING, 2 * floor)
    floors = {name: smallest * float(torch.linalg.matrix_norm(tensor, 2)) for name, tensor in rest.items()}
    reading = PlainReading()
    while reading.left > DONE and not deadline.passed:
        found = _Round(target, inputs, rest, floors, words, longest, deadline).run(starts)
        if "causal-lm" in target.family.tasks:  # all at once, and a language model's last tokens are still missing
            reading.sentences = found
            break
        fresh = [sentence for sentence in found if _peel(target, rest, floors, sentence, reading)]
        reading.left = _norm(rest) / whole
        if not fresh:
            break
    return reading


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return float(torch.stack([tensor.square().sum() for tensor in tensors.values()]).sum().sqrt())


def _peel(
    target: Target,
    rest: dict[str, Tensor],
    floor: Mapping[str, float],
    sentence: tuple[int, ...],
    reading: PlainReading,
) -> bool:
    """Subtract a sentence's gradient, with the label and weight that fit; return whether any did.

    A part A of a sum G of parts with independent rows and columns satisfies A G⁺ A = A. With A = c · g for the gradient
    g of the sentence, g G⁺ g = g / c: it gives the weight c = 1 / B, and holds for the right sentence only.
    """
    part = target.layers[0].attention_output
    left, values, right = torch.linalg.svd(part.weight_in(rest), full_matrices=False)
    keep = values > 2 * floor[part.weight]
    left, values, right = left[:, keep], values[keep], right[keep]
    best: tuple[float, int, float, dict[str, Tensor]] | None = None
    for label in range(target.num_labels if target.task == "classification" else 1):
        found = {n: t.double() for n, t in gradient_of(target, [sentence], [label], list(rest)).items()}
        own = part.weight_in(found)
        again = ((own @ right.T) / values) @ (left.T @ own)
        weight = float(own.square().sum() / (again * own).sum())
        misfit = float((again * weight - own).norm() / own.norm())
        if weight > 0 and (best is None or misfit < best[0]):
            best = misfit, label, weight, found
    if best is None or best[0] > 0.05:
        return False
    _, label, weight, found = best
    share = _as_fraction(weight)
    for name in rest:
        rest[name] -= found[name] * share
    reading.sentences.append(sentence)
    reading.labels.append(label)
    return True


def _as_fraction(weight: float) -> float:
    """Return the ratio of a count to a batch size that a weight comes close to, or the weight: clipping scales it."""
    for copies in range(1, 5):
        ratio = copies / max(1, round(copies / weight))
        if abs(ratio - weight) < CLOSE * weight:
            return ratio
    return weight


class _Round:
    """One look at a gradient: all sentences that can be read from it."""

    def __init__(
        self,
        target: Target,
        inputs: Inputs,
        rest: Mapping[str, Tensor],
        floor: Mapping[str, float],
        words: Tensor,
        longest: int,
        deadline: Deadline,
    ) -> None:
        self.target, self.inputs, self.rest, self.deadline = target, inputs, rest, deadline
        self.before, self.after = target.special_tokens
        output = target.layers[0].attention_output
        self.space = self._space(inputs.maps, floor)
        self.contexts = self._space((output,), floor)
        tokens, positions = possible_pairs(inputs, self.space, self._allowed(words), longest)
        self.pairs = Pairs.of(target, inputs, tokens, positions)

    def _space(self, parts: Sequence[Projection], floor: Mapping[str, float]) -> Subspace:
        gradients = [part.weight_in(self.rest) for part in parts]
        smallest = max(
            2 * floor[part.weight] / max(float(torch.linalg.matrix_norm(own, 2)), 1e-300)
            for part, own in zip(parts, gradients, strict=True)
        )
        return row_space(gradients, max(ROUNDING, smallest))

    def _allowed(self, words: Tensor) -> Tensor:
        special = torch.tensor([*self.before, *self.after], device=words.device, dtype=words.dtype)
        return torch.cat([words, special])

    def run(self, starts: int) -> list[tuple[int, ...]]:
        """Return the sentences that the rest of the gradient gives away, from so many skeletons at most."""
        if self.pairs.causal:
            return self._prefixes()
        if not len(self.pairs.tokens) or not len(self.pairs.at(0)):
            return []
        self.sketch = Sketch(self.pairs, self.contexts)
        places, alike = self._clues()
        return self._complete(self._skeletons(places, alike), starts)

    # --- clues from the gradient's parts -----------------------------------------------------------------------------

    def _clues(self) -> tuple[Tensor, Tensor]:
        """Return how much of b_p is a_t `[pairs]`, and the cosines of all tokens' value gradients `[pairs, pairs]`."""
        tokens, token_of = self.pairs.tokens.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        positions, position_of = self.pairs.positions.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        scale = self.inputs.scale.double()
        basis = torch.cat(
            [self.inputs.words[tokens].double() * scale, self.inputs.positions[positions].double() * scale]
        )
        basis = torch.cat([basis, self.inputs.shift.double()[None]])
        inverse = torch.linalg.pinv(basis, rtol=1e-9)
        each = [part.weight_in(self.rest) @ inverse for part in self.inputs.maps]  # [outputs, tokens + positions + 1]
        parts = torch.cat([part / part.norm().clamp(min=1e-300) for part in each])
        places = torch.zeros(len(self.pairs.tokens), dtype=torch.float64)
        for number in range(len(positions)):
            there = (position_of == number).nonzero().flatten()
            columns = parts[:, token_of[there]].cpu().numpy()
            places[there.cpu()] = torch.from_numpy(nnls(columns, parts[:, len(tokens) + number].cpu().numpy())[0])
        values = normalize(each[-1][:, : len(tokens)], dim=0)
        cosines = values.T @ values
        return places.to(basis.device), cosines[token_of][:, token_of]

    def _skeletons(self, places: Tensor, alike: Tensor) -> dict[int, Tensor]:
        """Return sentences to start from, as numbers of pairs, by length.

        Around each token whose place is clear: at every position the pair that is most likely there and most alike,
        first to that token, then to all that were found alike.
        """
        pairs, special = self.pairs, torch.tensor([*self.before, *self.after], device=self.pairs.tokens.device)
        inner = (pairs.positions >= len(self.before)) & ~torch.isin(pairs.tokens, special)
        clear = inner & (places > 0.5)
        seeds = (clear if clear.any() else inner).nonzero().flatten()
        likeness = alike[seeds]
        for _ in range(3):
            chosen = self._likeliest(places * likeness.clamp(min=0) + 1e-3 * likeness, inner)
            chosen = torch.where(
                pairs.positions[seeds][:, None] == torch.arange(chosen.shape[1]).to(seeds), seeds[:, None], chosen
            )
            members = clear[chosen] & (likeness.gather(1, chosen) > 0.3) | (chosen == seeds[:, None])
            weights = torch.zeros_like(likeness).scatter_add_(1, chosen, members.to(likeness))
            likeness = weights @ alike
            likeness = likeness / (likeness * weights).sum(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
        whole = distinct(chosen)
        states = {}
        for end in self._ends(whole.shape[1] - 1):
            rows = whole[:, : end + 1].clone()
            if self.after:
                there = pairs.at(end)
                rows[:, end] = there[pairs.tokens[there] == self.after[-1]]
            states[end + 1] = distinct(rows)
        return states

    def _likeliest(self, scores: Tensor, inner: Tensor) -> Tensor:
        """Return the pair of the largest score at each position `[seeds, positions]`; special tokens last."""
        scores = scores - 1e3 * ~inner
        picked = []
        for position in range(int(self.pairs.positions.max()) + 1):
            there = self.pairs.at(position)
            picked.append(there[scores[:, there].argmax(dim=1)])
        return torch.stack(picked, dim=1)

    def _ends(self, last: int) -> list[int]:
        """Return the positions at which a sentence can end."""
        first = len(self.before) + 1
        if not self.after:
            return list(range(first - 1, last + 1))
        ends = self.pairs.positions[self.pairs.tokens == self.after[-1]].tolist()
        return sorted(end for end in ends if first <= end <= last)

    # --- completion --------------------------------------------------------------------------------------------------

    def _complete(self, states: Mapping[int, Tensor], most: int) -> list[tuple[int, ...]]:
        """Replace tokens until a sentence passes the test, the most promising starts first."""
        starts = [
            (float(loss), row)
            for rows in states.values()
            for loss, row in zip(self.sketch.losses(rows), rows, strict=True)
        ]
        starts.sort(key=lambda start: start[0])
        found: list[tuple[int, ...]] = []
        for tried, (_, row) in enumerate(starts[:most]):
            if (found and tried >= TOGETHER) or self.deadline.passed:
                break
            rows = self._descend(row)
            outside = outside_contexts(self.pairs, rows[:1], self.contexts)
            sentence = tuple(self.pairs.tokens[rows[0]].tolist())
            if float(outside) < self._right and sentence not in found:
                found.append(sentence)
        return found

    @property
    def _right(self) -> float:
        """Share of a context that a right sentence may leave outside: as much as rounding turns out of the space."""
        return max(RIGHT, min(3 * self.contexts.error, MOST_OUTSIDE))

    def _descend(self, start: Tensor) -> Tensor:
        """Replace one token after the other, always the one that helps most; keep the best few sentences on the way."""
        beam = start[None]
        losses = self.sketch.losses(beam)
        seen = {tuple(start.tolist())}
        idle = 0
        for _ in range(2 * len(start)):
            fresh = self._neighbours(beam, seen)
            if not len(fresh):
                break
            rows = torch.cat([beam, fresh])
            scores = torch.cat([losses, self.sketch.losses(fresh)])
            order = scores.argsort()[:BEAM]
            idle = 0 if scores[order[0]] < 0.999 * losses[0] else idle + 1
            beam, losses = rows[order], scores[order]
            if idle > 1 or losses[0] < NOTHING or self.deadline.passed:
                break
        return beam

    def _neighbours(self, beam: Tensor, seen: set[tuple[int, ...]]) -> Tensor:
        """Return the sentences that differ in one token from one of the beam, the best few of each, not seen before."""
        tables, columns = [], []
        for position in range(len(self.before), beam.shape[1] - len(self.after)):
            there = self.pairs.at(position)
            tables.append(self.sketch.replacements(beam, position, there))
            columns += [(position, int(pair)) for pair in there]
        best = torch.cat(tables, dim=1).topk(min(BEAM, len(columns)), dim=1, largest=False).indices.tolist()
        fresh = []
        for row, picks in zip(beam.tolist(), best, strict=True):
            for position, pair in (columns[pick] for pick in picks):
                changed = (*row[:position], pair, *row[position + 1 :])
                if changed not in seen:
                    seen.add(changed)
                    fresh.append(changed)
        return torch.tensor(fresh, device=beam.device, dtype=beam.dtype).view(-1, beam.shape[1])

    # --- causal attention: prefix by prefix --------------------------------------------------------------------------

    def _prefixes(self) -> list[tuple[int, ...]]:
        """A context depends on what comes before alone: grow all prefixes whose contexts fit, and take the longest."""
        rows, longest = self._fitting(self.pairs.at(0)[:, None]), []
        while len(rows):
            there = self.pairs.at(rows.shape[1])
            grown = self._grown(rows, there)
            parents = set(map(tuple, grown[:, :-1].tolist()))
            longest += [row for row in rows if tuple(row.tolist()) not in parents]
            rows = grown
        return [tuple(self.pairs.tokens[row].tolist()) for row in longest]

    def _grown(self, rows: Tensor, there: Tensor) -> Tensor:
        """Return the prefixes lengthened by one of some pairs whose contexts fit, a few prefixes at a time."""
        step = max(1, SCANNED // max(1, len(there) * (rows.shape[1] + 1)))
        grown = [rows.new_zeros(0, rows.shape[1] + 1)]
        for part in torch.split(rows, step):
            if self.deadline.passed:
                break
            longer = torch.cat([part.repeat_interleave(len(there), 0), there.repeat(len(part))[:, None]], dim=1)
            grown.append(self._fitting(longer))
        return torch.cat(grown)

    def _fitting(self, rows: Tensor) -> Tensor:
        """Return the prefixes whose last context lies in the row space."""
        parts = torch.split(rows, 4096)
        fits = [self.contexts.outside(self.pairs.contexts(part)[:, -1]) < 10 * self._right for part in parts]
        return rows[torch.cat(fits)]


def possible_pairs(inputs: Inputs, space: Subspace, words: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return tokens and positions of all pairs in a row space, up to the first position that has none.

    None at all if there are more than a text can have: then the row space says nothing about tokens.
    """
    tokens, positions, total = [words[:0]], [words[:0]], 0
    for first in range(0, longest, 16):
        places = torch.arange(first, min(first + 16, longest), device=words.device)
        near = inputs.captured(space.basis, words, places) > 1 - NEAR
        word, place = near.nonzero(as_tuple=True)
        for token, position in zip(torch.split(words[word], SCANNED), torch.split(places[place], SCANNED), strict=True):
            inside = space.outside(inputs(token, position)) < max(IN_SPAN, 3 * space.error)
            tokens.append(token[inside])
            positions.append(position[inside])
            total += int(inside.sum())
            if total > MOST_PAIRS:
                return words[:0], words[:0]
        if len(set(places[place].tolist()) & set(torch.cat(positions).tolist())) < len(places):
            break
    token, position = torch.cat(tokens), torch.cat(positions)
    there = set(position.tolist())
    last = next(p for p in range(longest + 1) if p not in there)
    keep = position < last
    return token[keep], position[keep]


def distinct(rows: Tensor) -> Tensor:
    """Return each row of a matrix once, in order of first appearance."""
    each = list(dict.fromkeys(map(tuple, rows.tolist())))
    return torch.tensor(each, device=rows.device, dtype=rows.dtype).view(-1, rows.shape[1])
