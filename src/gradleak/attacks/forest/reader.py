"""Read one update of a decoder: tokens, prefixes, texts, proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.forest.capacity import Capacity
from gradleak.attacks.forest.growth import MOST, PrefixPool, TokensAt, grow_by_membership, grow_by_pursuit
from gradleak.attacks.forest.last_tokens import last_token, trailing_sites
from gradleak.attacks.forest.prefix_inputs import Prefix, PrefixInputs, is_repeat, longest_prefixes
from gradleak.attacks.forest.residual import Noise, Residual
from gradleak.attacks.forest.selection import SolvedForest, without_superfluous
from gradleak.attacks.forest.sites import InputSite, find_sites
from gradleak.attacks.forest.token_pursuit import pursue_tokens, take_back, tokens_in_span
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.proof import Proof, prove_by_whole_gradient
from gradleak.targets import Target

ProgressCallback = Callable[[Sequence[Sequence[int]], float], None]
"""Called with the texts so far and the fraction of the update that they leave."""

ENOUGH = 3
"""Prefixes are tested one by one if at least so many sites show their whole row space."""

TABLE = Noise(vectors=3e-7)
"""The vocabulary's vectors are rounded once; those of deeper layers have gone through many operations."""


@dataclass
class ForestReading:
    """The texts read from one update.

    Attributes:
        texts: token ids of each.
        labels: their classes; None for a language model, or if not determined.
        left: the fraction of the update that is not explained.
        notes: one line for each fact.
        proof: what the update proves.
    """

    texts: list[Prefix] = field(default_factory=list)
    labels: list[int] | None = None
    left: float = 1.0
    notes: list[str] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)


class ForestReader:
    """Reads one update.

    Args:
        target: a decoder.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
        spare: superfluous prefixes that may be picked for each token found.
        deadline: when to return the best found so far.
        progress: called with the texts so far.
    """

    def __init__(
        self,
        target: Target,
        gradient: Mapping[str, Tensor],
        protocol: Protocol,
        spare: float,
        deadline: Deadline,
        progress: ProgressCallback,
    ) -> None:
        self.target, self.gradient, self.protocol = target, gradient, protocol
        self.spare, self.deadline, self.progress = spare, deadline, progress
        self.sites = find_sites(target, gradient)
        self.inputs = PrefixInputs(target, self.sites)
        self.first = [number for number, site in enumerate(self.sites) if site.tokenwise]
        self.deep = [number for number, site in enumerate(self.sites) if not site.tokenwise]
        self.words = torch.arange(len(target.word_embeddings), device=target.device)

    def read(self) -> ForestReading:
        """Return the texts, as far as they can be read."""
        capacity = Capacity.of([self.sites[number] for number in self.first])
        tokens, tokens_at = self._tokens()
        if not len(tokens):
            return ForestReading(notes=[capacity.line(None)])
        forest = self._grown(tokens, tokens_at)
        found = len(forest.prefixes) if forest.explained else None
        reading = self._texts(forest)
        reading.notes.insert(0, capacity.line(found if found is not None else len(tokens)))
        if not forest.explained:
            reading.notes.append(
                f"the prefixes found leave {100 * max(forest.left):.2g} % of a layer's rows unexplained"
            )
        return reading

    # --- tokens ------------------------------------------------------------------------------------------------

    def _residual(self, number: int, noise: Noise | None = None) -> Residual:
        return Residual(self.sites[number].rows, noise)

    def _tokens(self) -> tuple[Tensor, TokensAt]:
        """Return the tokens of the batch, and those that may stand at a position."""
        residuals = [self._residual(number, TABLE) for number in self.first]
        open_ended = any(residual.full for residual in residuals)
        if self.target.family.position_embedding is not None:
            if open_ended:
                return self.words[:0], lambda position: self.words[:0]

            def at(position: int) -> Tensor:
                return tokens_in_span(self._tables(position), residuals)

            return at(0), at
        tables = self._tables(0)
        if open_ended:
            most = min(residual.rows.shape[1] for residual in residuals) - 1
            picked = pursue_tokens(tables, residuals, most, self.deadline)
            if not all(residual.explained for residual in residuals):
                picked = picked if self.deadline.hit else []
            tokens = self.words[torch.tensor(take_back(tables[0], self.sites[self.first[0]].rows, picked), dtype=torch.long)]
        else:
            tokens = tokens_in_span(tables, residuals)
        return tokens, lambda position: tokens

    def _tables(self, position: int) -> list[Tensor]:
        if position >= self.target.max_length:
            return [self.inputs.of_tokens(number, self.words[:0], 0) for number in self.first]
        return [self.inputs.of_tokens(number, self.words, position) for number in self.first]

    # --- prefixes ----------------------------------------------------------------------------------------------

    def _grown(self, tokens: Tensor, tokens_at: TokensAt) -> SolvedForest:
        whole = self._whole_sites()
        if len(whole) >= min(ENOUGH, len(self.deep)):
            chosen = list(whole)
            found = grow_by_membership(self.inputs, list(whole.values()), chosen, tokens_at, self.deadline)
            prefixes = [prefix for prefix in found if not is_repeat(prefix)]
            sites = sorted({*chosen, *trailing_sites(self.sites)})
            sites = [number for number in sites if self.sites[number].reduction is None]
            return self._selected(prefixes, sites, self.inputs.of_prefixes(prefixes, sites))
        residuals = [self._residual(number) for number in self.deep]
        pool = PrefixPool(self.inputs, residuals, self.deep, tokens)
        most = min(int((1 + self.spare) * 2 * len(tokens)) + 8, min(r.rows.shape[1] for r in residuals) - 1)
        grow_by_pursuit(pool, most, self.deadline, lambda found: self.progress(longest_prefixes(found), 1.0))
        picked = torch.tensor(pool.picked, dtype=torch.long, device=tokens.device)
        vectors = [pool.vectors(number)[picked] for number in range(len(self.deep))]
        return self._selected([pool.prefixes[number] for number in pool.picked], self.deep, vectors)

    def _whole_sites(self) -> dict[int, Residual]:
        """Return the first deeper sites that show their whole row space."""
        whole: dict[int, Residual] = {}
        for examined, number in enumerate(self.deep, start=1):
            residual = self._residual(number)
            if not residual.full:
                whole[number] = residual
            if len(whole) == MOST or (examined == 2 * ENOUGH and not whole):
                break
        return whole

    def _selected(self, prefixes: list[Prefix], sites: Sequence[int], vectors: list[Tensor]) -> SolvedForest:
        if not prefixes or not sites:
            return SolvedForest(prefixes, [], [], list(sites))
        return without_superfluous(prefixes, list(sites), [self.sites[number].rows for number in sites], vectors)

    # --- texts -------------------------------------------------------------------------------------------------

    def _texts(self, forest: SolvedForest) -> ForestReading:
        texts = [forest.prefixes[number] for number in forest.leaves]
        left = max(forest.left, default=1.0)
        if not texts:
            return ForestReading(notes=["no text found"])
        labels = None
        if self.target.task == "causal-lm":
            texts = self._with_last_tokens(forest)
        else:
            labels = labels_from_classifier(self.target, self.gradient, texts)
        proof = prove_by_whole_gradient(self.target, self.gradient, texts, labels)
        notes = [f"{len(texts)} texts of {', '.join(map(str, sorted(map(len, texts))))} tokens"]
        return ForestReading(texts, labels, min(left, proof.unexplained), notes, proof)

    def _with_last_tokens(self, forest: SolvedForest) -> list[Prefix]:
        numbers = trailing_sites(self.sites)
        if not numbers or not forest.coefficients:
            return [forest.prefixes[leaf] for leaf in forest.leaves]
        sites: list[InputSite] = [self.sites[number] for number in numbers]
        texts = []
        at = [forest.sites.index(number) for number in numbers]
        for leaf in forest.leaves:
            prefix = forest.prefixes[leaf]
            observed = torch.cat([forest.coefficients[place][leaf] for place in at])
            token, _ = last_token(self.target, sites, prefix, observed)
            texts.append((*prefix, token))
        return texts

