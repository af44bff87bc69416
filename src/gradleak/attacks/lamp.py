"""LAMP: embeddings by gradient descent, token order by moves that a language model scores, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal

from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.exchange import Finding, Reporter, Victim
from gradleak.matching import L2L1, Cosine, Distance, allow_tf32
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.descent import Penalty
from gradleak.optimisation.reorder import best_orders, draw_guess_orders, order_losses, prior_losses
from gradleak.optimisation.settings import REORDERED, HybridSettings
from gradleak.optimisation.start import START_SHARE, best_lengths, best_permutation, best_sample
from gradleak.optimisation.word_order import WordOrder
from gradleak.priors import Prior, load_prior
from gradleak.search import LAMP_MOVES
from gradleak.settings import setting
from gradleak.targets import Target


@register
@dataclass(frozen=True, kw_only=True)
class Lamp(HybridSettings, Attack):
    """LAMP (Balunović et al., NeurIPS 2022), algorithm 1, with the cosine distance.

    Hyperparameters are those of section 5 and appendix D; preset `large` has those for BERT-large. Presets `best` and
    `fast` are not the paper's: there the words found are put in order at the end (`polish`), and in `fast` as soon as a
    round has not changed them (`order_early`). Ablations of table 4: `alpha_lm=0`, `alpha_reg=0`, `discrete=end`,
    `discrete=none`.
    """

    name: ClassVar[str] = "lamp"
    paper: ClassVar[str] = "Balunović et al. 2022, LAMP: Extracting Text from Gradients with Language Model Priors"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "best": REORDERED,
        "large": {"steps": 5_000, "steps_per_round": 200, "optimizer": "adamw", "linear": True, "clip": 0.5},
        "fast": {
            **{"steps": 480, "lr": 0.02, "linear": True, "steps_per_round": 50},
            **{"starts": 100, "permutations": 100, "moves": 100, "order_early": True, **REORDERED},
        },
    }

    steps_per_round: int = setting(75, "steps between two rounds of moves", least=1, paper="section 5")
    moves: int = setting(200, "random moves in a round, of which the best is taken", least=1, paper="section 5")
    alpha_lm: float = setting(0.2, "weight of the language model's loss", least=0, paper="section 5")
    alpha_reg: float = setting(1.0, "weight of the penalty on embedding norms", least=0, paper="section 5")
    prior: str = setting("embedded", "the language model: embedded, or a directory or hub id", paper="GPT-2")
    discrete: Literal["alternate", "end", "none"] = setting(
        "alternate", "when moves are tried: after each round, all after the last, or never", paper="table 4"
    )
    order_early: bool = setting(
        False, "put words in order as soon as a round has not changed them", paper="not in the paper"
    )

    def distance(self) -> Distance:
        """The cosine, averaged over tensors."""
        return Cosine()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Algorithm 1, until every victim is solved or the steps are done."""
        cohort = self.cohort(target, victims, reporter)
        cohort.history.total = self.steps
        prior = load_prior(self.prior, target) if self.alpha_lm else None
        penalty, order = self.norm_penalty(target), WordOrder(self.polish, early=self.order_early)
        with cohort.limited_to(START_SHARE):  # lines 1 and 2; section 5 adds permutations
            cohort.guess = best_sample(cohort, self.starts)
            cohort.guess = best_permutation(cohort, self.permutations)
            cohort.guess = best_lengths(cohort, self.lengths_kept, self.descent(max(1, self.steps // 10)), penalty)
        cohort.measure_start()
        cohort.begin(self.descent(self.steps), penalty)
        found: dict[int, Finding] = {}
        while cohort.numbers and cohort.descender.steps_done < self.steps and not cohort.deadline.passed:
            with allow_tf32():
                cohort.descend(min(self.steps_per_round, self.steps - cohort.descender.steps_done))  # lines 4 to 6
                for _ in range(self._rearrangements(cohort.descender.steps_done)):
                    if not cohort.deadline.passed:
                        # A move takes the optimiser's moments of a token along; in the published code they stay.
                        cohort.descender.rearrange(self.best_moves(cohort, prior))  # lines 7 to 18
            self._keep_words(cohort)
            order.after_round(cohort)
            found |= order.finish(cohort.retire(order.done(cohort)))
        return cohort.results(found | order.finish(cohort))

    def cohort(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> Cohort:
        """Return the victims with their first guesses."""
        assumptions = [self.assumptions(target, victim) for victim in victims]
        return Cohort(target, victims, assumptions, self.distance(), reporter)

    def norm_penalty(self, target: Target) -> Penalty:
        """Section 4.2: embeddings should be as long on average as those of the vocabulary."""
        wanted = target.word_embeddings.norm(dim=1).mean()  # the published code: BERT's, 1.4, for every model

        def penalty(embeddings: Tensor, mask: Tensor) -> Tensor:
            norms = embeddings.norm(dim=-1) * mask
            mean = norms.flatten(2).sum(dim=2) / mask.flatten(2).sum(dim=2)
            return self.alpha_reg * (mean - wanted).square().double()

        return penalty

    def best_moves(self, cohort: Cohort, prior: Prior | None) -> Tensor:
        """Section 4.3: the order `[V, starts, B, T]` with the smallest distance + α · negative log-likelihood.

        In a batch a move changes one sequence; the paper does not say.
        """
        guess = cohort.descender.now
        orders = draw_guess_orders(guess, cohort.victims, self.moves, LAMP_MOVES)
        losses = order_losses(cohort.matcher, guess, orders)
        if prior is not None:
            ids = guess.slots.project(cohort.target, guess.embeddings)[:, :, None].expand_as(orders).gather(-1, orders)
            mask = guess.slots.mask[:, :, None].expand_as(orders)
            losses = losses + self.alpha_lm * prior_losses(prior, ids, mask, cohort.deadline)
        return best_orders(orders, losses)

    def _rearrangements(self, steps_done: int) -> int:
        """Return how often tokens are rearranged now: once a round, or as often in all after the last step."""
        if self.discrete == "alternate":
            return 1
        last = steps_done == self.steps
        return ceil(self.steps / self.steps_per_round) if self.discrete == "end" and last else 0

    def _keep_words(self, cohort: Cohort) -> None:
        """Keep the nearest words of all rounds; the paper returns the last, the code those of the smallest loss."""
        states = (cohort.descender.now, cohort.descender.best)
        for state in states[cohort.deadline.passed :]:
            cohort.keep_words(cohort.nearest_words(state))


@register
@dataclass(frozen=True, kw_only=True)
class LampL2L1(Lamp):
    """LAMP with TAG's distance, L2 + α · L1; its own weights (appendix D)."""

    name: ClassVar[str] = "lamp-l2l1"

    alpha_lm: float = setting(60.0, "weight of the language model's loss", least=0, paper="appendix D")
    alpha_reg: float = setting(25.0, "weight of the penalty on embedding norms", least=0, paper="appendix D")
    alpha: float = setting(0.01, "weight of the L1 term", least=0, paper="appendix D")

    def distance(self) -> Distance:
        """L2 + α · L1."""
        return L2L1(alpha=self.alpha)
