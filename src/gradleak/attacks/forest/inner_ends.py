"""Texts that end where another one goes on.

The prefix before a text's last token is a leaf of the forest, unless another text has the same prefix and another next
token: "the dog ran ." beside "the dog ran home .". Gradients of the last layer's maps at a place, but for keys and
values, depend on what is predicted there alone: a prefix's coefficients are a sum over the tokens that follow it. What
the tokens known to follow do not explain is compared with the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradleak.attacks.forest.last_tokens import traced
from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.selection import SolvedForest
from gradleak.attacks.forest.sites import InputSite, MapRows
from gradleak.exchange import Deadline
from gradleak.targets import Target

EXPLAINED = 0.02
"""Tokens explain what follows a prefix if they leave less than this fraction of its coefficients."""

MOST_ENDS = 4
"""Texts that may end at one such prefix."""


class InnerEnds:
    """Looks for texts that end inside others.

    Args:
        target: a causal language model.
        sites: the sites of an exact update.
        forest: its prefixes, solved at the last sites.
    """

    def __init__(self, target: Target, sites: Sequence[InputSite], forest: SolvedForest) -> None:
        self.target, self.forest = target, forest
        self._sites: list[InputSite] = []
        self._coefficients: list[Tensor] = []
        for place, number in enumerate(forest.sites):
            kept: list[MapRows] = []
            rows: list[int] = []
            start = 0
            for part in sites[number].maps:
                if predicts_alone(target, part):
                    kept.append(part)
                    rows += range(start, start + len(part.rows))
                start += len(part.rows)
            if kept and forest.coefficients:
                self._sites.append(InputSite(tuple(kept)))
                self._coefficients.append(forest.coefficients[place][:, rows])

    def texts(self, known: Sequence[Prefix], deadline: Deadline) -> list[Prefix]:
        """Return texts beside the known ones that end at a prefix with which a known one goes on."""
        followers: dict[Prefix, set[int]] = {}
        for text in known:
            for length in range(1, len(text)):
                followers.setdefault(text[:length], set()).add(text[length])
        leaves = set(self.forest.leaves)
        found: list[Prefix] = []
        for number, prefix in enumerate(self.forest.prefixes):
            if self._sites and number not in leaves and prefix in followers and not deadline.passed:
                observed = torch.cat([own[number] for own in self._coefficients]).double()
                found += [(*prefix, token) for token in self._ends(prefix, observed, sorted(followers[prefix]))]
        return found

    def _ends(self, prefix: Prefix, observed: Tensor, follow: list[int]) -> list[int]:
        """Return the tokens that follow a prefix beside those known to."""
        hidden, added = traced(self.target, self._sites, prefix)
        head: Any = self.target.model.get_submodule(self.target.classifier)
        table = head.weight.detach()
        with torch.no_grad():
            expected = torch.softmax(head(hidden.detach()).double(), dim=-1).to(table) @ table
        known = self._effects(hidden, added, expected - table[follow]).double()
        left, basis = _without(observed, known)
        if len(follow) >= len(observed) or left.norm() < EXPLAINED * observed.norm():
            return []
        effects = self._effects(hidden, added, torch.eye(len(hidden), device=hidden.device, dtype=hidden.dtype))
        every = (expected - table) @ effects.to(table)  # [vocabulary, equations]
        ends: list[int] = []
        while len(ends) < MOST_ENDS and len(follow) + len(ends) < len(observed) - 1:
            new = every - (every @ basis.to(every)) @ basis.to(every).T
            likeness = cosine_similarity(new, left.to(new)[None], dim=1)
            likeness[[*follow, *ends]] = -1.0
            ends.append(int(likeness.argmax()))
            left, basis = _without(observed, torch.cat([known, every[ends].double()]))
            if left.norm() < EXPLAINED * observed.norm():
                return ends
        return []

    def _effects(self, hidden: Tensor, added: list[Tensor], directions: Tensor) -> Tensor:
        """Return the coefficients that gradients of the last hidden state `[n, width]` make `[n, equations]`."""
        slopes = torch.autograd.grad(hidden, added, directions, is_grads_batched=True, retain_graph=True)
        maps = [part for site in self._sites for part in site.maps]
        return torch.cat(
            [part.coefficients_of(own.reshape(len(own), -1)) for part, own in zip(maps, slopes, strict=True)], dim=1
        )


def predicts_alone(target: Target, part: MapRows) -> bool:
    """Return whether a map's outputs at a place matter for nothing but what is predicted there."""
    layer = target.layers[-1]
    if part.path not in {own.module for own in layer.projections} or part.reduction is not None:
        return False
    shared = part.path in (layer.key.module, layer.value.module)
    return not shared or (part.path == layer.query.module and part.slots == layer.query.rows != slice(None))


def _without(observed: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return what vectors `[n, width]` do not explain of one, and an orthonormal basis of theirs `[width, n]`."""
    basis = torch.linalg.qr((vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-300)).T).Q
    return observed - basis @ (basis.T @ observed), basis
