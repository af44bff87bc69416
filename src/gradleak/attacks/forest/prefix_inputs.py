"""What enters a decoder's linear maps at the end of a prefix: with causal attention it depends on the prefix alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.forest.sites import InputSite
from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls

Prefix = tuple[int, ...]
"""Token ids from the beginning of a text."""

REPEATS = 3
"""A text may begin with one token repeated so many times, at most."""

TOGETHER = {"cpu": 512, "cuda": 2048}
"""How many prefixes are computed at a time, about: attention takes their square."""


@dataclass(frozen=True)
class PrefixTree:
    """Prefixes, and the shorter ones that they begin with, as one sequence with attention along the branches.

    Attributes:
        tokens: the last token of each node.
        parents: the node that each extends; −1 for the first token of a text. Parents stand before their children.
        numbers: the node of each prefix.
    """

    tokens: list[int]
    parents: list[int]
    numbers: dict[Prefix, int]

    @classmethod
    def of(cls, prefixes: Sequence[Prefix]) -> PrefixTree:
        """Return the tree of some prefixes."""
        tree = cls([], [], {(): -1})
        for prefix in prefixes:
            known = next(length for length in range(len(prefix), -1, -1) if prefix[:length] in tree.numbers)
            for length in range(known + 1, len(prefix) + 1):
                tree.parents.append(tree.numbers[prefix[: length - 1]])
                tree.numbers[prefix[:length]] = len(tree.tokens)
                tree.tokens.append(prefix[length - 1])
        return tree

    @property
    def positions(self) -> list[int]:
        """The position of each node in its text."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    @property
    def sees(self) -> Tensor:
        """Whether each node sees each other: those on its branch up to itself `[nodes, nodes]`."""
        found = np.zeros((len(self.tokens), len(self.tokens)), dtype=bool)
        for number, parent in enumerate(self.parents):
            if parent >= 0:
                found[number, : parent + 1] = found[parent, : parent + 1]
            found[number, number] = True
        return torch.from_numpy(found)


class PrefixInputs:
    """Computes the inputs of an update's sites for prefixes extended by one token.

    Args:
        target: a decoder.
        sites: the sites, in the order in which a forward pass reaches them.
    """

    def __init__(self, target: Target, sites: Sequence[InputSite]) -> None:
        self.target = target
        self.sites = list(sites)
        self._body: Any = target.model.get_submodule(target.family.body)  # type: ignore[attr-defined]
        self._scale = target.family.embedding_scale(target.config)

    def of_prefixes(self, prefixes: Sequence[Prefix], sites: Sequence[int]) -> list[Tensor]:
        """Return for each of `sites` the input at the end of each prefix `[prefixes, width]`.

        Args:
            prefixes: of any lengths; those that begin alike are computed together, what they share but once.
            sites: indices of sites, in order; the forward pass ends at the last of them.
        """
        step = TOGETHER.get(self.target.device.type, 512)
        parts = [self._of_tree(prefixes[start : start + step], sites) for start in range(0, len(prefixes), step)]
        return [torch.cat([part[number] for part in parts]) for number in range(len(sites))]

    def _of_tree(self, prefixes: Sequence[Prefix], sites: Sequence[int]) -> list[Tensor]:
        tree, device = PrefixTree.of(prefixes), self.target.device
        ids, positions = (torch.tensor([own], device=device) for own in (tree.tokens, tree.positions))
        options = {"use_cache": False, "position_ids": positions, "attention_mask": self._masks(tree, positions[0])}
        found = self._captured(ids, sites, options)
        ends = torch.tensor([tree.numbers[prefix] for prefix in prefixes], device=device)
        return [own[0, ends] for own in found]

    def of_tokens(self, site: int, tokens: Tensor, position: int = 0) -> Tensor:
        """Return the input of a token-wise site for tokens at a position `[tokens, width]`."""
        parts = []
        for chunk in torch.split(tokens, 4096):
            places = torch.full((len(chunk), 1), position, device=chunk.device)
            parts.append(self._captured(chunk[:, None], [site], {"use_cache": False, "position_ids": places})[0][:, -1])
        return torch.cat(parts)

    def _masks(self, tree: PrefixTree, positions: Tensor) -> Any:  # noqa: ANN401 - one mask, or one for each type of layer
        """Return what to add to the attention scores of a tree: those of a text, along the branches alone."""
        embeddings, sees = self.target.word_embeddings, tree.sees.to(positions.device)
        one_text = torch.ones(1, int(positions.max()) + 1, dtype=torch.bool, device=positions.device)
        masks = self.target.family.attention_masks(self.target.config, embeddings, one_text)  # type: ignore[attr-defined]

        def along_branches(mask: Tensor) -> Tensor:
            return mask[:, :, positions][..., positions].masked_fill(~sees, torch.finfo(mask.dtype).min)

        return (
            {kind: along_branches(m) for kind, m in masks.items()} if isinstance(masks, dict) else along_branches(masks)
        )

    @torch.no_grad()
    def _captured(self, ids: Tensor, sites: Sequence[int], options: dict[str, Any]) -> list[Tensor]:
        """Return for each of `sites` the inputs of some sequences `[sequences, tokens, width]`."""
        paths = [self.sites[number].path for number in sites]
        embeddings = self.target.embed(ids)
        embeddings = embeddings if self._scale == 1.0 else embeddings * self._scale
        wanted = set(paths)
        with captured_calls(self.target, list(wanted), stop=lambda calls: len(calls) == len(wanted)) as calls:
            self._body(inputs_embeds=embeddings, **options)
        found = {call.path: call.inputs for call in calls}
        return [self.sites[number].reduced(found[path]) for number, path in zip(sites, paths, strict=True)]


def is_repeat(prefix: Prefix) -> bool:
    """Return whether a prefix is one token repeated.

    Attention over equal tokens is their common value, wherever they stand: with rotary positions such a prefix has the
    inputs of the single token, and leaves no row of its own.
    """
    return len(prefix) > 1 and len(set(prefix)) == 1


def longest_prefixes(prefixes: Sequence[Prefix]) -> list[Prefix]:
    """Return the prefixes that no other extends, in order."""
    inner = {prefix[:length] for prefix in prefixes for length in range(len(prefix))}
    return [prefix for prefix in dict.fromkeys(prefixes) if prefix not in inner]
