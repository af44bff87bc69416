"""Read texts token by token where noise is strong: chains of tokens, judged by all layers and by the target itself.

Adapters' dropout multiplies every input by a mask, and several steps of Adam leave little more than signs. No prefix
lies in the rows then, and picking prefixes one by one (`growth.py`) collects many that only resemble the right ones.
A beam of chains does not: a chain competes with others of its length, each by what its own prefixes explain of all
layers' rows, and by how likely the target, moved by the update, finds its tokens one after the other
(`trained_prior.py`). The likeliest tokens are tried beside those that the first layer proposes. Where a chain ends, and
which words are exchanged at the end, the whole update decides (`judge.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix, PrefixInputs
from gradleak.attacks.forest.residual import Dictionary, Residual, stacked
from gradleak.attacks.forest.trained_prior import TrainedPrior
from gradleak.exchange import Deadline

BEAM = 6
"""Chains of one length that are kept."""

PROPOSED = 12
"""Tokens that the target itself proposes after each chain."""

PRIOR, UNLIKELY = 0.3, -12.0
"""Weight of the log probability beside the layers' evidence, and the least log probability that counts."""

CONTINUED = 4
"""Tokens by which the best chain is ended, of the likeliest and of those that the update makes likelier by most: a
text's last token leaves no row."""

CLEARLY, PATIENCE = 0.5, 3
"""A token that adds at least this fraction of the median gain continues the text. Others may be its end: the update
judges, until so many more tokens have not come nearer to it."""

LONGEST = 128
"""Tokens of a text, at most."""

RIVAL, MOST_EDITS = 0.3, 100
"""Tokens whose gain is at most this fraction below the best one's are tried in its place at the end, and how many texts
are compared then."""

GAIN = 1e-4
"""Smaller gains of a distance are noise."""

Distance = Callable[[Prefix], float]
"""Returns how far a text, beside those found before, is from the update."""


@dataclass(frozen=True)
class Chain:
    """The beginning of a text.

    Attributes:
        tokens: its tokens.
        score: evidence and log probability of all of them.
        vectors: the inputs at the end of each of its prefixes `[sites, tokens, width]`.
    """

    tokens: Prefix
    score: float
    vectors: Tensor


class ChainSearch:
    """Finds the text that explains most of the rows beside others.

    Args:
        inputs: computes the inputs.
        residuals: the rows of each of `sites`, all of one width.
        sites: indices of the sites.
        tokens: the tokens that the first layer proposes.
        prior: the log probabilities of tokens after prefixes.
        deadline: when to stop.
    """

    def __init__(
        self,
        inputs: PrefixInputs,
        residuals: Sequence[Residual],
        sites: Sequence[int],
        tokens: Tensor,
        prior: TrainedPrior,
        deadline: Deadline,
    ) -> None:
        self.inputs, self.sites, self.tokens, self.prior = inputs, list(sites), tokens, prior
        self.deadline = deadline
        self._rows = stacked(residuals)
        self._rivals: dict[Prefix, tuple[int, ...]] = {}

    def best(self, distance: Distance, most: int) -> tuple[Prefix, float]:
        """Return the text of at most so many tokens that is nearest to the update, and its distance."""
        empty = self._rows.rows.new_zeros(len(self.sites), 0, self._rows.rows.shape[-1])
        beam = [Chain((), 0.0, empty)]
        nearest: tuple[float, Prefix] = (2.0, ())
        gains: list[float] = []
        idle = 0
        while len(gains) < min(most, LONGEST) and idle < PATIENCE and not self.deadline.passed:
            before, beam = beam, self._grown(beam)
            gains.append(beam[0].score - before[0].score)
            if gains[-1] > CLEARLY * sorted(gains)[len(gains) // 2] and len(gains) > 1:
                continue
            found = min((distance(text), text) for text in self._ended(before[0].tokens, beam))
            idle = 0 if found[0] < nearest[0] - GAIN else idle + 1
            nearest = min(nearest, found)
        if not nearest[1]:
            nearest = distance(beam[0].tokens), beam[0].tokens
        return nearest[1], nearest[0]

    def remove(self, text: Prefix) -> None:
        """Project the inputs of a text out of every site's rows."""
        self._rows.pick_all(self._vectors([text[:length] for length in range(1, len(text))]))

    def _vectors(self, prefixes: Sequence[Prefix]) -> Tensor:
        return self._rows.weighted(torch.stack(self.inputs.of_prefixes(prefixes, self.sites)))

    def _children(self, likely: Tensor) -> list[int]:
        """Return the tokens to try after a chain: those of the first layer, and the likeliest `[vocabulary]`."""
        return list(dict.fromkeys([*self.tokens.tolist(), *likely.topk(min(PROPOSED, len(likely))).indices.tolist()]))

    def _grown(self, beam: Sequence[Chain]) -> list[Chain]:
        likely = self.prior([chain.tokens for chain in beam])
        children = [self._children(own) for own in likely]
        grown = [(*chain.tokens, token) for chain, own in zip(beam, children, strict=True) for token in own]
        vectors = torch.split(self._vectors(grown), [len(own) for own in children], dim=1)
        found: list[tuple[float, Chain, int, Tensor]] = []
        for chain, own, tokens, prior in zip(beam, vectors, children, likely, strict=True):
            total = chain.score + self.evidence(chain.vectors, own) + PRIOR * prior[tokens].clamp(min=UNLIKELY)
            best = total.topk(min(BEAM, len(total))).indices.tolist()
            least = chain.score + (1 - RIVAL) * (float(total[best[0]]) - chain.score)
            near = [number for number in best if float(total[number]) >= min(least, float(total[best[0]]) - 1)]
            self._rivals[chain.tokens] = tuple(tokens[number] for number in near)
            found += [(float(total[number]), chain, tokens[number], own[:, number : number + 1]) for number in best]
        found.sort(key=lambda one: -one[0])
        return [
            Chain((*chain.tokens, token), score, torch.cat([chain.vectors.to(own), own], dim=1))
            for score, chain, token, own in found[:BEAM]
        ]

    def evidence(self, before: Tensor, vectors: Tensor) -> Tensor:
        """Return how much of each vector lies in the rows of all sites, beside those before `[vectors]`.

        Args:
            before: a chain's inputs `[sites, tokens, width]`.
            vectors: those of its extensions `[sites, vectors, width]`.
        """
        rows = self._rows.copy()
        if before.shape[1]:
            rows.pick_all(before)
        return Dictionary(rows, vectors).scores().sum(dim=0)

    def _ended(self, best: Prefix, grown: Sequence[Chain]) -> list[Prefix]:
        """Return texts that end about here: the best chain with a likely last token, and longer chains."""
        longer = [chain.tokens for chain in grown[:2]]
        if not best or self.inputs.target.task != "causal-lm":
            return longer
        sizes = self.prior([best])[0], self.prior.rises(best)
        likely = [token for size in sizes for token in size.topk(min(CONTINUED, len(size))).indices.tolist()]
        return [*((*best, token) for token in dict.fromkeys(likely)), *longer]

    def exchanged(self, text: Prefix, distance: Distance) -> tuple[Prefix, float]:
        """Exchange, add and leave out single tokens where others fit about as well, while that comes nearer.

        Returns the text and its distance.
        """
        nearest = distance(text)
        rivals = [self._rivals.get(text[:place], ()) for place in range(len(text))]
        gained, tried = True, 0
        while gained:
            gained = False
            for edit, places in _edits(text, rivals):
                if self.deadline.passed or tried == MOST_EDITS:
                    break
                found, tried = distance(edit), tried + 1
                if found < nearest - GAIN:
                    text, rivals, nearest, gained = edit, places, found, True
                    break
        return text, nearest


def _edits(text: Prefix, rivals: list[tuple[int, ...]]) -> list[tuple[Prefix, list[tuple[int, ...]]]]:
    """Return texts that differ in one place that has rivals, each with the rivals of its places."""
    found = []
    for place, tokens in enumerate(rivals):
        before, here, after = text[:place], text[place : place + 1], text[place + 1 :]
        around = rivals[:place], [tokens], rivals[place + 1 :]
        for token in tokens:
            if (token,) != here:
                found.append(((*before, token, *after), rivals))
                found.append(((*before, token, *here, *after), [*around[0], (), *around[1], *around[2]]))
        if len(tokens) > 1 and len(text) > 2:
            found.append(((*before, *after), [*around[0], *around[2]]))
    return found
