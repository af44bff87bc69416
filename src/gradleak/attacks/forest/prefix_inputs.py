"""What enters a decoder's linear maps at the end of a prefix: with causal attention it depends on the prefix alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.forest.sites import InputSite
from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls

Prefix = tuple[int, ...]
"""Token ids from the beginning of a text."""

REPEATS = 3
"""A text may begin with one token repeated so many times, at most."""

TEXTS = 16
"""How many whole texts are computed at a time."""

ROWS = 512
"""How many extended prefixes are computed at a time."""


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

    def extended(self, prefixes: Sequence[Prefix], tokens: Tensor, sites: Sequence[int]) -> list[Tensor]:
        """Return for each of `sites` the inputs of all prefixes extended by all tokens `[prefixes · tokens, width]`.

        Args:
            prefixes: of any lengths.
            tokens: token ids.
            sites: indices of sites, in order; the forward pass ends at the last of them.
        """
        step = max(1, ROWS // len(tokens))
        parts = [
            self._extend(prefixes[start : start + step], chunk, sites)
            for start in range(0, len(prefixes), step)
            for chunk in torch.split(tokens, ROWS)
        ]
        return [torch.cat([part[number] for part in parts]) for number in range(len(sites))]

    def of_prefixes(self, prefixes: Sequence[Prefix], sites: Sequence[int]) -> list[Tensor]:
        """Return for each of `sites` the input at the end of each prefix `[prefixes, width]`."""
        places: dict[Prefix, tuple[int, int]] = {}
        texts = longest_prefixes(prefixes)
        for number, text in enumerate(texts):
            places |= {text[:length]: (number, length - 1) for length in range(1, len(text) + 1)}
        found: list[list[Tensor]] = []
        for start in range(0, len(texts), TEXTS):
            # padding on the right needs no mask: with causal attention no token sees it
            ids = self.target.pad(texts[start : start + TEXTS]).ids
            found.append(self._captured(ids, sites, {"use_cache": False}, whole=True))
        where = [places[prefix] for prefix in prefixes]
        return [
            torch.stack([found[text // TEXTS][number][text % TEXTS, place] for text, place in where])
            for number in range(len(sites))
        ]

    def of_tokens(self, site: int, tokens: Tensor, position: int = 0) -> Tensor:
        """Return the input of a token-wise site for tokens at a position `[tokens, width]`."""
        parts = []
        for chunk in torch.split(tokens, 4096):
            places = torch.full((len(chunk), 1), position, device=chunk.device)
            parts.append(self._captured(chunk[:, None], [site], {"use_cache": False, "position_ids": places})[0])
        return torch.cat(parts)

    def _extend(self, prefixes: Sequence[Prefix], tokens: Tensor, sites: Sequence[int]) -> list[Tensor]:
        """Run each prefix once, followed by all tokens side by side, which see the prefix and not one another."""
        device, count = tokens.device, len(tokens)
        longest = max(map(len, prefixes))
        filler = int(tokens[0])
        known = torch.tensor([[*p, *[filler] * (longest - len(p))] for p in prefixes], device=device, dtype=torch.long)
        ids = torch.cat([known, tokens.expand(len(prefixes), -1)], dim=1)
        lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)
        places = torch.arange(longest, device=device)
        sees = torch.eye(longest + count, dtype=torch.bool, device=device).repeat(len(prefixes), 1, 1)
        sees[:, :longest, :longest] = (places[:, None] >= places)[None]
        sees[:, longest:, :longest] = (places < lengths[:, None])[:, None]
        positions = torch.cat([places.expand(len(prefixes), -1), lengths[:, None].expand(-1, count)], dim=1)
        options = {"use_cache": False, "position_ids": positions}
        found = self._captured(ids, sites, options, whole=True, sees=sees)
        return [own[:, longest:].flatten(0, 1) for own in found]

    def _masks(self, embeddings: Tensor) -> Any:  # noqa: ANN401 - one mask, or one for each type of layer
        ones = torch.ones(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
        return self.target.family.attention_masks(self.target.config, embeddings, ones)  # type: ignore[attr-defined]

    @torch.no_grad()
    def _captured(
        self,
        ids: Tensor,
        sites: Sequence[int],
        options: dict[str, Any],
        *,
        whole: bool = False,
        sees: Tensor | None = None,
    ) -> list[Tensor]:
        paths = [self.sites[number].path for number in sites]
        embeddings = self.target.embed(ids)
        embeddings = embeddings if self._scale == 1.0 else embeddings * self._scale
        if sees is not None:
            hidden = torch.zeros(sees.shape, dtype=embeddings.dtype, device=ids.device)
            mask = hidden.masked_fill(~sees, torch.finfo(embeddings.dtype).min)[:, None]
            own = self._masks(embeddings)
            options = {**options, "attention_mask": dict.fromkeys(own, mask) if isinstance(own, dict) else mask}
        wanted = set(paths)
        with captured_calls(self.target, list(wanted), stop=lambda calls: len(calls) == len(wanted)) as calls:
            self._body(inputs_embeds=embeddings, **options)
        found = {call.path: call.inputs if whole else call.inputs[:, -1] for call in calls}
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
