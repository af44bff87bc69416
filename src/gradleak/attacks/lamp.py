"""LAMP: embeddings by gradient descent, token order by moves that a language model judges, in turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.attacks.base import register
from gradleak.attacks.dlg import History
from gradleak.attacks.hybrid import ORDERED, Hybrid, are_solved, best_orders, findings, with_unknown
from gradleak.exchange import Deadline, Finding, Reporter, Victim
from gradleak.matching import L2L1, Cosine, Distance, Matcher, allow_tf32
from gradleak.optimisation.descent import Descender, Guess, Penalty, keep_better
from gradleak.priors import Prior, load_prior
from gradleak.search import LAMP_MOVES
from gradleak.targets import Target

# Whoever is solved leaves, but not one by one: it takes a copy of the others' gradients, and new recordings on a GPU.
LEAVE_TOGETHER = 4
# Rounds that change no word, after which none is expected to, where words are put in order early.
ARRIVED = 3
# Tokens that the prior judges at once where there is a deadline.
JUDGED_AT_ONCE = 2_048

# The words of a batch, sequence by sequence, whatever their order.
Bag = tuple[tuple[int, ...], ...]


@register
@dataclass(frozen=True, kw_only=True)
class Lamp(Hybrid):
    """LAMP (Balunović et al., NeurIPS 2022), algorithm 1, with the cosine distance.

    Hyperparameters are those of section 5 and appendix D; preset `large` has those for BERT-large. It differs from the
    published code knowingly: the regulariser aims at the target's own mean embedding norm (the code: BERT's, 1.4); a
    move takes what the optimiser remembers of a token along; in a batch a move changes one sequence; and of the rounds'
    words the nearest are returned (the paper: the last; the code: those of the embeddings with the smallest loss).

    Presets `best` and `fast` are not the paper's: there the words that were found are put in order at the end by trying
    every swap and every move of one token until none brings the gradient nearer, at most `polish` times, with
    `order_early` also as soon as a round has not changed them; and when three rounds keep to the same words, the
    descent is at its end.

    Ablations of table 4: `alpha_lm=0`, `alpha_reg=0`, `discrete=end`, `discrete=none`.
    """

    name: ClassVar[str] = "lamp"
    paper: ClassVar[str] = "Balunović et al. 2022, LAMP: Extracting Text from Gradients with Language Model Priors"
    least: ClassVar[Mapping[str, float]] = {
        **Hybrid.least,
        **{"steps_per_round": 1, "moves": 1, "alpha_lm": 0, "alpha_reg": 0},
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "best": ORDERED,
        "large": {"steps": 5_000, "steps_per_round": 200, "optimizer": "adamw", "linear": True, "clip": 0.5},
        "fast": {
            **{"steps": 480, "lr": 0.02, "linear": True, "steps_per_round": 50},
            **{"starts": 100, "permutations": 100, "moves": 100, "order_early": True, **ORDERED},
        },
    }

    steps_per_round: int = 75
    moves: int = 200
    alpha_lm: float = 0.2
    alpha_reg: float = 1.0
    prior: str = "embedded"
    discrete: Literal["alternate", "end", "none"] = "alternate"
    order_early: bool = False

    def distance(self) -> Distance:
        """The cosine, averaged over tensors."""
        return Cosine()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Algorithm 1: initialise, then descend and rearrange in turn."""
        matcher = self._matcher(target, victims).until(reporter.deadline)
        prior = load_prior(self.prior, target) if self.alpha_lm else None
        guess, notes = self._first_guess(target, victims)
        early = self._for_a_start(matcher)
        guess = self._best_start(target, early, guess, victims)
        guess = self._best_permutation(target, early, guess, victims)
        guess = self._best_lengths(target, early, guess)
        first = matcher(guess.candidates(target))
        descender = Descender(target, matcher, guess, self._descent(self.steps), self._penalty(target))
        nearest = self._nearest_words(target, matcher, guess)
        running = _Running(list(range(len(victims))), matcher, first, nearest, descender)
        history = History(target, len(victims), self.steps, reporter)
        found: dict[int, Finding] = {}
        while running.numbers and running.descender.steps_done < self.steps and not reporter.deadline.passed:
            self._round(target, prior, running, [victims[number] for number in running.numbers], history)
            if self.order_early and not reporter.deadline.passed:
                self._order_settled(target, running)
            arrived = running.arrived()
            # Who keeps to wrong words must not wait: it would find others or not, depending on who is beside it.
            if LEAVE_TOGETHER * sum(arrived) >= len(arrived) or (self.order_early and any(arrived)):
                out = running.only(arrived)
                found |= zip(out.numbers, self._ordered(target, out), strict=True)
                running = running.only([not done for done in arrived])
        if running.numbers:
            found |= zip(running.numbers, self._ordered(target, running), strict=True)
        return [
            replace(found[number], history=trail, notes=tuple(note))
            for number, (trail, note) in enumerate(zip(history.trails, notes, strict=True))
        ]

    def _round(
        self, target: Target, prior: Prior | None, running: _Running, victims: Sequence[Victim], history: History
    ) -> None:
        """Algorithm 1, lines 4 to 18: descend, take the best of random moves, and keep the nearest words."""
        descender = running.descender
        with allow_tf32():
            steps = min(self.steps_per_round, self.steps - descender.steps_done)
            descender.run(steps, history.part(0, running.numbers))
            for _ in range(self._rearrangements(descender.steps_done)):
                if running.matcher.deadline.passed:
                    break
                descender.rearrange(self._best_moves(target, running.matcher, prior, descender.now, victims))
        late = running.matcher.deadline.passed
        for state in (descender.best,) if late else (descender.now, descender.best):
            words = self._nearest_words(target, running.matcher, state)
            running.nearest = keep_better(running.nearest, words, words.losses)

    def _rearrangements(self, steps_done: int) -> int:
        """Return how often tokens are rearranged now: once a round, or as often in all when the last step is done."""
        if self.discrete == "alternate":
            return 1
        last = steps_done == self.steps
        return ceil(self.steps / self.steps_per_round) if self.discrete == "end" and last else 0

    def _order_settled(self, target: Target, running: _Running) -> None:
        """Put words in order that the last round did not change.

        Often the words are there long before their order is; then nothing is left to descend for.
        """
        words = self._nearest_words(target, running.matcher, running.descender.now)
        chosen = words.losses.argmin(dim=1, keepdim=True)
        words = words.starts(chosen)
        settled = running.end_round(_bags(target, words))
        if settled:
            ordered = self._in_order(target, running.matcher.select(settled), words.select(settled))
            nearest = running.nearest.select(settled).starts(chosen[settled])
            better = keep_better(nearest, ordered, ordered.losses)
            running.nearest = running.nearest.put(settled, chosen[settled], better)

    def _ordered(self, target: Target, running: _Running) -> list[Finding]:
        """Put words in order. Right words in a wrong order may be far: of several states the best end is taken."""
        states = (running.descender.now, running.descender.best)
        words = [running.nearest, *(self._nearest_words(target, running.matcher, state) for state in states)]
        ordered = [[finding] for finding in findings(target, running.nearest.best_starts(1))]
        if self.polish and running.matcher.deadline.passed:
            return [finding for (finding,) in ordered]
        solved = are_solved(running.nearest, running.first)
        for state, some in enumerate(guess.best_starts(1) for guess in words):
            places = [place for place, done in enumerate(solved) if not (state and done)]
            if self.order_early:
                places = running.not_ordered(_bags(target, some), places)
            if places:
                polished = self._polished(target, running.matcher.select(places), some.select(places))
                for place, finding in zip(places, polished, strict=True):
                    ordered[place].append(finding)
        return [min(of_victim, key=lambda finding: finding.loss) for of_victim in ordered]

    def _penalty(self, target: Target) -> Penalty:
        """Section 4.2: embeddings should be as long on average as those of the vocabulary."""
        wanted = target.word_embeddings.norm(dim=1).mean()

        def penalty(embeddings: Tensor, mask: Tensor) -> Tensor:
            lengths = embeddings.norm(dim=-1) * mask
            mean = lengths.flatten(2).sum(dim=2) / mask.flatten(2).sum(dim=2)
            return self.alpha_reg * (mean - wanted).square().double()

        return penalty

    def _best_moves(
        self, target: Target, matcher: Matcher, prior: Prior | None, guess: Guess, victims: Sequence[Victim]
    ) -> Tensor:
        """Section 4.3: the order `[V, starts, B, T]` with the smallest distance + α · negative log-likelihood."""
        orders = self._draw_orders(guess, victims, self.moves, LAMP_MOVES)
        losses = self._order_losses(target, matcher, guess, orders)
        if prior is not None:
            ids = guess.slots.project(target, guess.embeddings)[:, :, None].expand_as(orders).gather(-1, orders)
            mask = guess.slots.mask[:, :, None].expand_as(orders)
            losses = losses + self.alpha_lm * self._judged(prior, ids, mask, matcher.deadline)
        return best_orders(orders, losses)

    def _judged(self, prior: Prior, ids: Tensor, mask: Tensor, deadline: Deadline) -> Tensor:
        """Return how unlikely words `[V, starts, count, B, T]` are `[V, starts, count]`; infinite if time is up."""
        count = ids.shape[2]
        step = max(1, JUDGED_AT_ONCE * count // ids.numel()) if deadline.limited else count
        parts = []
        for first in range(0, count, step):
            if deadline.passed:
                break
            part = slice(first, first + step)
            parts.append(prior(ids[:, :, part], mask[:, :, part]).mean(dim=-1).double())
        return with_unknown(torch.cat([ids.new_empty(*ids.shape[:2], 0, dtype=torch.float64), *parts], dim=2), count)


@dataclass
class _Running:
    """The victims that are still attacked, and where each is.

    Attributes:
        numbers: which of all victims these are.
        matcher: compares with their gradients.
        first: the distances `[V, starts]` that they started from.
        nearest: the nearest words so far.
        descender: the descent.
        ends: the words, whatever their order, that each victim's rounds ended with.
        ordered: those that were put in order.
    """

    numbers: list[int]
    matcher: Matcher
    first: Tensor
    nearest: Guess
    descender: Descender
    ends: dict[int, list[Bag]] = field(default_factory=lambda: defaultdict(list))
    ordered: dict[int, set[Bag]] = field(default_factory=lambda: defaultdict(set))

    def end_round(self, bags: Sequence[Bag]) -> list[int]:
        """Take note of the words that a round ended with; return whose it did not change and are to be ordered."""
        for number, bag in zip(self.numbers, bags, strict=True):
            self.ends[number].append(bag)
        return self.not_ordered(bags, [place for place in range(len(bags)) if self._stayed(place, 1)])

    def not_ordered(self, bags: Sequence[Bag], places: Sequence[int]) -> list[int]:
        """Return those of some victims whose words were never put in order, and remember that they are now."""
        chosen = [place for place in places if bags[place] not in self.ordered[self.numbers[place]]]
        for place in chosen:
            self.ordered[self.numbers[place]].add(bags[place])
        return chosen

    def arrived(self) -> list[bool]:
        """Tell who is solved, or has kept to words that were put in order."""
        solved = are_solved(self.nearest, self.first)
        return [done or self._stayed(place, ARRIVED) for place, done in enumerate(solved)]

    def _stayed(self, place: int, rounds: int) -> bool:
        """Tell whether a victim's last rounds, as many as given, have not changed its words."""
        last = self.ends[self.numbers[place]][-1 - rounds :]
        return len(last) > rounds and len(set(last)) == 1

    def only(self, chosen: Sequence[bool]) -> _Running:
        """Return some of them alone."""
        places = [place for place, take in enumerate(chosen) if take]
        matcher = self.matcher.select(places)
        return _Running(
            [self.numbers[place] for place in places],
            matcher,
            self.first[places],
            self.nearest.select(places),
            self.descender.select(places, matcher),
            self.ends,
            self.ordered,
        )


def _bags(target: Target, words: Guess) -> list[Bag]:
    """Return each victim's words, of its one start."""
    ids = words.slots.project(target, words.embeddings)[:, 0]
    return [tuple(map(tuple, batch)) for batch in ids.sort(dim=-1).values.tolist()]


@register
@dataclass(frozen=True, kw_only=True)
class LampL2L1(Lamp):
    """LAMP with TAG's distance, L2 + α · L1; its own weights (appendix D)."""

    name: ClassVar[str] = "lamp-l2l1"
    least: ClassVar[Mapping[str, float]] = {**Lamp.least, "alpha": 0}

    alpha_lm: float = 60.0
    alpha_reg: float = 25.0
    alpha: float = 0.01

    def distance(self) -> Distance:
        """L2 + α · L1."""
        return L2L1(alpha=self.alpha)
