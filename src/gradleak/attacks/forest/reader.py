"""Read one update of a decoder: tokens, prefixes, texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from gradleak.attacks.forest.capacity import Capacity
from gradleak.attacks.forest.chain_reader import FLATTENED, MASKED, ChainReader
from gradleak.attacks.forest.chains import ChainSearch
from gradleak.attacks.forest.first_layer import FirstLayer, TokensAt
from gradleak.attacks.forest.growth import (
    ENOUGH,
    PrefixPool,
    grow_by_membership,
    grow_by_pursuit,
    grow_under_noise,
    whole_sites,
)
from gradleak.attacks.forest.inner_ends import InnerEnds
from gradleak.attacks.forest.judge import UpdateJudge
from gradleak.attacks.forest.last_tokens import trailing_sites, with_last_tokens
from gradleak.attacks.forest.prefix_inputs import Prefix, PrefixInputs, is_repeat, longest_prefixes
from gradleak.attacks.forest.reading import ForestReading, ProgressCallback
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.attacks.forest.selection import SolvedForest, significant, solve, without_superfluous
from gradleak.attacks.forest.sites import find_sites, sees_every_token
from gradleak.attacks.forest.text_proof import ROUNDED, TextProver
from gradleak.attacks.forest.text_weights import without_light_texts
from gradleak.attacks.forest.trained_prior import TrainedPrior
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.drift import halfway
from gradleak.targets import Target

COMPLETE = 3e-4
"""Prefixes that were tested one by one are complete if they leave less than this fraction of every site's rows."""

MISSED = 0.05
"""Prefixes of adapters that were tested one by one and leave more than this are dropped, and picked anew."""

MOST_CANDIDATES = 20_000
"""Prefixes that are missing are not looked for among more candidates than this."""

FULL_SITES = 12
"""Sites of a full update that a pursuit takes, about."""

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
        with self._halfway():
            self.sites = find_sites(target, gradient)
        self.noise = RowNoise(target, gradient, protocol)
        self.inputs = PrefixInputs(target, self.sites)
        self.first = [number for number, site in enumerate(self.sites) if site.tokenwise]
        self.deep = [
            number for number, site in enumerate(self.sites) if not site.tokenwise and sees_every_token(target, site)
        ]

    def read(self) -> ForestReading:
        """Return the texts, as far as they can be read."""
        capacity = Capacity.of(self.target, [self.sites[number] for number in self.first])
        tokens, tokens_at = self._first_layer().tokens(self.deadline)
        if not len(tokens) and capacity.dropout and self.noise.exact and not capacity.first_round:
            self.noise = RowNoise(self.target, self.gradient, self.protocol, capacity.dropout)
            tokens, tokens_at = self._first_layer().tokens(self.deadline)
        if not len(tokens):
            return ForestReading(notes=[capacity.line(None)])
        if self.noise.strong:
            return self._chained(tokens, capacity)
        with self._halfway():
            forest = self._grown(tokens, tokens_at)
            texts = self._leaves(forest)
        reading = self._proven(texts, forest)
        explained = forest.explained if self.noise.exact else reading.left < ROUNDED
        reading.notes.insert(0, capacity.line(len(forest.prefixes) if explained else len(tokens)))
        if not explained and not reading.proof.verified:
            reading.notes.append(
                f"the prefixes found leave {100 * max(forest.left, default=1.0):.2g} % of a layer's rows unexplained"
            )
        return reading

    def _halfway(self) -> AbstractContextManager[None]:
        return halfway(self.target, self.gradient, self.protocol)

    def _first_layer(self) -> FirstLayer:
        return FirstLayer(self.target, self.inputs, self.first, self.noise)

    def _residual(self, number: int) -> Residual:
        return self.noise.residual(self.sites[number])

    # --- prefixes ----------------------------------------------------------------------------------------------

    def _grown(self, tokens: Tensor, tokens_at: TokensAt) -> SolvedForest:
        adapted, exact = self.target.adapter is not None, self.noise.exact
        least = len(tokens) if adapted else 0  # a token of a full update may be too weak for deeper layers' ranks
        testable = exact or not adapted  # noise hides too many directions of an adapter's few rows
        whole = whole_sites(self._by_merit(), self._residual, least) if testable else {}
        if len(whole) >= min(ENOUGH, len(self.deep)):
            chosen, rows = list(whole), list(whole.values())
            if exact:
                found = grow_by_membership(self.inputs, rows, chosen, tokens_at, self.deadline)
            else:
                drift = self.noise.drift
                found = grow_under_noise(self.inputs, rows, chosen, tokens_at, self.deadline, drift=drift)
            prefixes = [prefix for prefix in found if not is_repeat(prefix)]
            sites = sorted({*chosen, *trailing_sites(self.sites)})
            sites = [number for number in sites if self.sites[number].reduction is None]
            forest = self._selected(prefixes, {number: self._residual(number) for number in sites})
            if not exact:
                return forest
            if adapted and max(forest.left, default=1.0) > MISSED and not self.deadline.passed:
                return self._pursued(tokens)  # the sites were not whole: what lies in their rows does so by chance
            if not prefixes or not sites or max(forest.left) < COMPLETE or self.deadline.passed:
                return forest
            return self._pursued(tokens, forest.prefixes)
        return self._pursued(tokens)

    def _by_merit(self) -> list[int]:
        """Return the deeper sites in the order in which they are to test prefixes.

        The wider an input, the fewer wrong prefixes lie in its row space by chance: a feed-forward network's inner
        layer is three or four times as wide as the others. Local steps move deeper layers' inputs more than the first
        ones', and their gradients are smaller, so that rounding hides more of them.
        """
        return sorted(self.deep, key=lambda number: -self.sites[number].width) if self.noise.exact else self.deep

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
        kept = significant(prefixes, [residuals[n].rows for n in sites], weighted)
        return solve([prefixes[number] for number in kept], sites, rows, [own[kept] for own in weighted])

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

    def _leaves(self, forest: SolvedForest) -> list[Prefix]:
        """Return the forest's texts: its longest prefixes, those of a language model with their last tokens."""
        texts = [forest.prefixes[number] for number in forest.leaves]
        if self.target.task == "causal-lm" and texts:
            texts = with_last_tokens(self.target, self.sites, forest)
        return texts if self.noise.exact else without_light_texts(self.target, self.gradient, texts)

    def _proven(self, texts: list[Prefix], forest: SolvedForest) -> ForestReading:
        if not texts:
            return ForestReading(notes=["no text found"])
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
