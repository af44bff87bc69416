"""Read one update of a decoder: tokens, prefixes, texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.capacity import Capacity
from gradleak.attacks.forest.chain_reader import FLATTENED, MASKED, ChainReader
from gradleak.attacks.forest.chains import ChainSearch
from gradleak.attacks.forest.growth import (
    ENOUGH,
    PrefixPool,
    TokensAt,
    grow_by_membership,
    grow_by_pursuit,
    whole_sites,
)
from gradleak.attacks.forest.inner_ends import InnerEnds
from gradleak.attacks.forest.judge import UpdateJudge
from gradleak.attacks.forest.last_tokens import trailing_sites, with_last_tokens
from gradleak.attacks.forest.positioned_tokens import pursue_positioned_tokens
from gradleak.attacks.forest.prefix_inputs import Prefix, PrefixInputs, is_repeat, longest_prefixes
from gradleak.attacks.forest.reading import ForestReading, ProgressCallback
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.attacks.forest.selection import SolvedForest, solve, without_superfluous
from gradleak.attacks.forest.sites import find_sites, sees_every_token
from gradleak.attacks.forest.text_proof import ROUNDED, TextProver
from gradleak.attacks.forest.token_pursuit import pursue_tokens, take_back, tokens_in_span
from gradleak.attacks.forest.trained_prior import TrainedPrior
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target

COMPLETE = 3e-4
"""Prefixes that were tested one by one are complete if they leave less than this fraction of every site's rows."""

MISSED = 0.05
"""Prefixes of adapters that were tested one by one and leave more than this are dropped, and picked anew."""

MOST_CANDIDATES = 20_000
"""Prefixes that are missing are not looked for among more candidates than this."""

FULL_SITES = 12
"""Sites of a full update that a pursuit takes, about."""

MOST_PROPOSED = 96
"""Tokens that the first layer proposes under strong noise, at most."""

SHALLOW = 4
"""Sites that judge prefixes at first, for each time that the tokens exceed a layer's rows."""


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
        self.noise = RowNoise(target, gradient, protocol)
        self.inputs = PrefixInputs(target, self.sites)
        self.first = [number for number, site in enumerate(self.sites) if site.tokenwise]
        self.deep = [
            number for number, site in enumerate(self.sites) if not site.tokenwise and sees_every_token(target, site)
        ]
        self.words = torch.arange(len(target.word_embeddings), device=target.device)

    def read(self) -> ForestReading:
        """Return the texts, as far as they can be read."""
        capacity = Capacity.of(self.target, [self.sites[number] for number in self.first])
        tokens, tokens_at = self._tokens()
        if not len(tokens) and capacity.dropout and self.noise.exact and not capacity.first_round:
            self.noise = RowNoise(self.target, self.gradient, self.protocol, capacity.dropout)
            tokens, tokens_at = self._tokens()
        if not len(tokens):
            return ForestReading(notes=[capacity.line(None)])
        if self.noise.strong:
            return self._chained(tokens, capacity)
        forest = self._grown(tokens, tokens_at)
        reading = self._texts(forest)
        explained = forest.explained if self.noise.exact else reading.left < ROUNDED
        reading.notes.insert(0, capacity.line(len(forest.prefixes) if explained else len(tokens)))
        if not explained and not reading.proof.verified:
            reading.notes.append(
                f"the prefixes found leave {100 * max(forest.left, default=1.0):.2g} % of a layer's rows unexplained"
            )
        return reading

    # --- tokens ------------------------------------------------------------------------------------------------

    def _residual(self, number: int) -> Residual:
        return self.noise.residual(self.sites[number])

    def _tokens(self) -> tuple[Tensor, TokensAt]:
        """Return the tokens of the batch, and those that may stand at a position."""
        residuals = [self._residual(number) for number in self.first]
        noisy = not self.noise.exact
        open_ended = noisy or any(residual.full for residual in residuals)
        if self.target.family.position_embedding is not None:
            if open_ended:
                found = self._positioned_tokens(residuals[0])
                return found, lambda position: found

            def at(position: int) -> Tensor:
                return tokens_in_span(self._tables(position), residuals)

            return at(0), at
        tables = self._tables(0)
        members = [] if open_ended else tokens_in_span(tables, residuals).tolist()
        most = min(residual.rows.shape[1] for residual in residuals) - 1
        if self.noise.strong:
            most = min(most, MOST_PROPOSED)
        elif any(module.dropout for module in self.target.adapters):  # masked inputs explain nothing, however many
            most = min(most, max(MOST_PROPOSED, 4 * residuals[0].rank))
        # a token whose coefficients are tiny does not quite lie in the span; without the others it stands out
        picked = pursue_tokens(tables, residuals, most, self.deadline, noisy=noisy, given=members)
        if not noisy and self.sites[self.first[0]].reduction is None:
            all_found = all(residual.explained for residual in residuals)
            kept = take_back(tables[0], self.sites[self.first[0]].rows, picked)
            picked = kept if all_found or members or self.deadline.hit else []
        tokens = self.words[torch.tensor(picked, dtype=torch.long, device=self.words.device)]
        return tokens, lambda position: tokens

    def _positioned_tokens(self, first: Residual) -> Tensor:
        """Return the tokens of a model with a table of positions, none if they cannot be told."""
        if self.target.adapter is None or self.sites[self.first[0]].reduction is not None:
            return self.words[:0]
        noisy = not self.noise.exact
        picked, whole = pursue_positioned_tokens(first_layer_inputs(self.target), first, self.deadline, noisy=noisy)
        # noise is never quite explained, and deeper layers tell which of these tokens occur
        picked = picked if whole or noisy else []
        return self.words[torch.tensor(picked, dtype=torch.long, device=self.words.device)]

    def _tables(self, position: int) -> list[Tensor]:
        if position >= self.target.max_length:
            return [self.inputs.of_tokens(number, self.words[:0], 0) for number in self.first]
        return [self.inputs.of_tokens(number, self.words, position) for number in self.first]

    # --- prefixes ----------------------------------------------------------------------------------------------

    def _grown(self, tokens: Tensor, tokens_at: TokensAt) -> SolvedForest:
        adapted = self.target.adapter is not None
        least = len(tokens) if adapted else 0  # a token of a full update may be too weak for deeper layers' ranks
        whole = whole_sites(self.sites, self.deep, self._residual, least) if self.noise.exact else {}
        if len(whole) >= min(ENOUGH, len(self.deep)):
            chosen = list(whole)
            found = grow_by_membership(self.inputs, list(whole.values()), chosen, tokens_at, self.deadline)
            prefixes = [prefix for prefix in found if not is_repeat(prefix)]
            sites = sorted({*chosen, *trailing_sites(self.sites)})
            sites = [number for number in sites if self.sites[number].reduction is None]
            forest = self._selected(prefixes, {number: self._residual(number) for number in sites})
            if adapted and max(forest.left, default=1.0) > MISSED and not self.deadline.passed:
                return self._pursued(tokens)  # the sites were not whole: what lies in their rows does so by chance
            if not prefixes or not sites or max(forest.left) < COMPLETE or self.deadline.passed:
                return forest
            return self._pursued(tokens, forest.prefixes)
        return self._pursued(tokens)

    def _pursued(self, tokens: Tensor, given: Sequence[Prefix] = ()) -> SolvedForest:
        """Pick prefixes one by one, beside those that are given, by a few sites first, then by more of them."""
        sites = self._pursuit_sites()
        for count in self._depths(len(tokens), sites):
            pool = self._picked(tokens, given, sites[:count])
            if (pool.explained and self.noise.exact) or self.deadline.passed:
                break
        judging = sorted({*pool.sites, *trailing_sites(self.sites)} & {*sites})
        return self._selected(pool.found, {number: self._residual(number) for number in judging})

    def _depths(self, tokens: int, sites: Sequence[int]) -> list[int]:
        """Return how many sites judge prefixes, first few, as deeper ones take longer to compute, at last all.

        The more tokens there are for each row, the more sites it takes; noise needs all.
        """
        if not self.noise.exact or self.target.adapter is None:
            return [len(sites)]
        rows = min(self.sites[number].height for number in sites)
        first = SHALLOW * -(-tokens // rows)
        return [count for count in (first, 3 * first) if count < len(sites)] + [len(sites)]

    def _picked(self, tokens: Tensor, given: Sequence[Prefix], sites: Sequence[int]) -> PrefixPool:
        """Return a pool of prefixes that were picked one by one, beside those that are given.

        Those given have left prefixes out whose rows are weak or hidden behind others.
        """
        residuals = [self._residual(number) for number in sites]
        pool = PrefixPool(self.inputs, residuals, sites, tokens)
        if given:
            pool.start_from(given)
        most = min(int((1 + self.spare) * 2 * len(tokens)) + 8, min(r.rows.shape[1] for r in residuals) - 1)
        noisy = not self.noise.exact

        def report(found: list[Prefix]) -> None:
            self.progress(longest_prefixes(found), pool.left)

        leaves = longest_prefixes(given)  # what is missing mostly continues a text
        for roots in [leaves, [prefix for prefix in [(), *given] if prefix not in set(leaves)]]:
            few = len(roots) * len(tokens) <= MOST_CANDIDATES
            if roots and few and not pool.explained and not self.deadline.passed:
                pool.extend(roots)
                grow_by_pursuit(pool, most - len(given), self.deadline, report, noisy=noisy)
        return pool

    def _pursuit_sites(self) -> list[int]:
        """Return all deeper sites of adapters; of a full update, whose sites have many rows each, some."""
        if self.target.adapter is not None:
            return self.deep
        step = max(1, len(self.deep) // FULL_SITES)
        return sorted({*self.deep[::step], *trailing_sites(self.sites)})

    def _selected(self, prefixes: list[Prefix], residuals: Mapping[int, Residual]) -> SolvedForest:
        sites = list(residuals)
        if not prefixes or not sites:
            return SolvedForest(prefixes, [], [], sites)
        vectors = self.inputs.of_prefixes(prefixes, sites)
        weighted = [residuals[n].weighted(own.double()) for n, own in zip(sites, vectors, strict=True)]
        rows = [residuals[n].weighted(self.sites[n].rows) for n in sites]
        if self.noise.exact:
            return without_superfluous(prefixes, sites, rows, weighted)
        return solve(prefixes, sites, rows, weighted)

    # --- strong noise ------------------------------------------------------------------------------------------

    def _chained(self, tokens: Tensor, capacity: Capacity) -> ForestReading:
        """Read text by text, each as a chain that the whole update judges."""
        sites = [n for n in (*self.first, *self.deep) if self.sites[n].width == self.sites[self.first[0]].width]
        prior = TrainedPrior(self.target, self.gradient, self.protocol)
        search = ChainSearch(self.inputs, [self._residual(n) for n in sites], sites, tokens, prior, self.deadline)
        prover, judge = self._prover(), UpdateJudge(self.target, self.gradient, self.protocol)
        reader = ChainReader(search, judge, self.noise, prover.reading_of, self.progress)
        texts = reader.texts(self.deadline)
        if not texts:
            return ForestReading(notes=[capacity.line(len(tokens)), "no text found"])
        reading = prover.reading_of(self._ended(texts, judge))
        reading.notes[:0] = [capacity.line(sum(map(len, texts)))]
        reading.notes.append(MASKED if self.noise.dropout else FLATTENED)
        return reading

    def _ended(self, texts: list[Prefix], judge: UpdateJudge) -> list[Prefix]:
        """Return texts with the last tokens that their coefficients tell, if these are nearer to the update."""
        sites = trailing_sites(self.sites)
        if self.target.task != "causal-lm" or self.noise.signs or not sites:
            return texts
        prefixes = [text[:length] for text in texts for length in range(1, len(text))]
        solved = self._selected(list(dict.fromkeys(prefixes)), {number: self._residual(number) for number in sites})
        ended = with_last_tokens(self.target, self.sites, solved) if solved.prefixes else texts
        return min([texts, ended], key=judge)

    # --- texts -------------------------------------------------------------------------------------------------

    def _texts(self, forest: SolvedForest) -> ForestReading:
        texts = [forest.prefixes[number] for number in forest.leaves]
        if not texts:
            return ForestReading(notes=["no text found"])
        if self.target.task == "causal-lm":
            texts = with_last_tokens(self.target, self.sites, forest)
        prover = self._prover()
        reading = prover.reading_of(texts)
        if reading.proof.verified or self.target.task != "causal-lm" or not self._may_lack_ends(forest):
            return reading
        inner = InnerEnds(self.target, self.sites, forest).texts(texts, self.deadline)
        likely = prover.likely_ended([*texts, *inner], ends_read=bool(trailing_sites(self.sites)))
        tried = [reading, *(prover.reading_of(own) for own in ([*texts, *inner], likely) if own != texts)]
        return min(tried, key=lambda one: (not one.proof.verified, one.left))

    def _may_lack_ends(self, forest: SolvedForest) -> bool:
        """Whether the prefixes are right as far as can be told, so that nothing but ends of texts may be missing."""
        fewer = len(forest.prefixes) < self.sites[self.first[0]].width - 1  # as many as dimensions explain anything
        return self.noise.exact and fewer and (forest.explained or not forest.sites)

    def _prover(self) -> TextProver:
        return TextProver(self.target, self.gradient, self.protocol, self.noise.exact, self.deadline)
