"""Which tokens stand at which positions, from the first layer's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gradleak.attacks.forest.positioned_tokens import REACHES
from gradleak.leakage.layer_inputs import LayerInputs

Sentence = tuple[int, ...]
"""Token ids of a text, special tokens included."""

Frame = tuple[Sentence, Sentence]
"""Ids before and after every text."""

OCCURS = 1e-4
"""A position occurs if its coefficients are above this fraction of the largest; solving leaves 1e-6."""

STEPS, SPARSE = 200, 100
"""Iterations of the sparse solution, and those after which sparsity counts more than size."""

IMPOSSIBLE, CERTAIN = 1e-9, 30.0
"""Weights of pairs that cannot occur, and of those that are known to, relative to the others."""

FINEST = 1e-4
"""Contributions below this fraction of the median coefficients count as zero."""


@dataclass(frozen=True)
class FoundPairs:
    """Tokens, positions, and what each token at each position contributes to the first layer's rows.

    Attributes:
        tokens: the token ids of the batch `[tokens]`.
        contributions: `[tokens, positions, rows]`; sparse, as most tokens do not stand at most positions.
    """

    tokens: Tensor
    contributions: Tensor

    @property
    def length(self) -> int:
        """The number of positions: that of the longest sentence's tokens."""
        return self.contributions.shape[1]

    @property
    def weights(self) -> Tensor:
        """The size of each contribution, as a fraction of the largest at its position `[tokens, positions]`."""
        size = self.contributions.norm(dim=2)
        return size / size.amax(dim=0).clamp(min=1e-300)

    def likeness(self, rows: slice) -> Tensor:
        """Return the cosines of all pairs' contributions to some rows `[tokens · positions, tokens · positions]`.

        Tokens of one sentence have much the same value gradients, as attention in a first layer is broad.
        """
        flat = normalize(self.contributions.flatten(0, 1)[:, rows], dim=1)
        return flat @ flat.T


def solve_pairs(
    inputs: LayerInputs, rows: Tensor, tokens: Tensor, frame: Frame, known: Sequence[Sentence] = ()
) -> FoundPairs:
    """Return what each token at each position contributes to the rows, as few pairs as possible.

    The equations are small, and solved on the CPU: a GPU takes longer for them.

    Args:
        inputs: the tables of x(t, p).
        rows: the first layer's rows `[rows, width]`.
        tokens: the tokens of the batch.
        frame: the ids before and after every text, which stand nowhere else.
        known: sentences whose pairs occur.
    """
    scale, words = inputs.scale.double().cpu(), inputs.words[tokens].double().cpu()
    tokens, rows, places = tokens.cpu(), rows.cpu(), inputs.positions.double().cpu()
    reach = min(max(REACHES), len(places), inputs.width - len(tokens) - 2)
    basis = torch.cat([words * scale, places[:reach] * scale, inputs.shift.double().cpu()[None]])
    solved = torch.linalg.lstsq(basis.T, rows.T).solution  # [tokens + positions + 1, rows]
    by_token, by_position, rest = solved.tensor_split([len(tokens), len(tokens) + reach])
    size = by_position.norm(dim=1)
    length = int((size > OCCURS * size.max()).nonzero().max()) + 1
    deviations = ((words[:, None] + places[None, :length]).square().mean(dim=-1) + inputs.epsilon).sqrt()  # σ(t, p)
    chances = _chances(tokens, length, frame, known)
    return FoundPairs(tokens, _sparse_plan(by_token, by_position[:length], rest, deviations, chances))


def _chances(tokens: Tensor, length: int, frame: Frame, known: Sequence[Sentence]) -> Tensor:
    """Return the weight that each pair starts from, tiny where it cannot occur `[tokens, positions]`."""
    chances = torch.ones(len(tokens), length, dtype=torch.float64, device=tokens.device)
    before, after = frame
    for place, token in enumerate(before):
        chances[:, place] = chances[tokens == token] = IMPOSSIBLE
    for place, token in enumerate(before):
        chances[tokens == token, place] = 1.0
    for token in after:
        chances[tokens == token, : len(before) + 1] = IMPOSSIBLE
    if after:
        chances[tokens != after[-1], length - 1] = IMPOSSIBLE
    for sentence in known:
        for place, token in enumerate(sentence[:length]):
            chances[tokens == token, place] = CERTAIN
    return chances


def _sparse_plan(by_token: Tensor, by_position: Tensor, rest: Tensor, deviations: Tensor, chances: Tensor) -> Tensor:
    """Return contributions whose sums are as given, with as few that are not zero as reweighting finds.

    Iteratively reweighted least squares: the solution of least weighted norm under the linear constraints, a pair's
    weight being the size that it had before.

    Args:
        by_token: sums over positions `[tokens, rows]`.
        by_position: sums over tokens `[positions, rows]`.
        rest: sum over all pairs, each times σ(t, p) `[1, rows]`.
        deviations: σ(t, p) `[tokens, positions]`.
        chances: factors of the pairs' weights `[tokens, positions]`.
    """
    count, length = deviations.shape
    pairs = torch.arange(count * length, device=by_token.device)
    constraints = by_token.new_zeros(count + length + 1, count * length)
    constraints[pairs // length, pairs] = 1
    constraints[count + pairs % length, pairs] = 1
    constraints[-1] = deviations.flatten()
    wanted = torch.cat([by_token, by_position, rest])
    _, values, right = torch.linalg.svd(by_token, full_matrices=False)
    strong = values > 1e-6 * values[0]
    back = right[strong] * values[strong][:, None]
    wanted = wanted @ (right[strong] / values[strong][:, None]).T  # all directions of the contributions count alike
    usual = float(wanted.norm(dim=1).median())
    weight = chances.flatten() / chances.max()
    floor, found = usual, weight
    for step in range(STEPS):
        weighted = constraints * weight
        found = weighted.T @ (torch.linalg.pinv(weighted @ constraints.T, rtol=1e-12, hermitian=True) @ wanted)
        power = 0.5 if step < SPARSE else 0.75
        weight = (found.square().sum(dim=1) + floor**2).pow(power) * chances.flatten()
        weight = weight / weight.max()
        floor = max(0.93 * floor, FINEST * usual)
    return (found @ back).view(count, length, -1)
