"""LAMP: embeddings by gradient descent, token order by moves that a language model judges, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.attacks.base import Finding, Victim, register
from gradleak.attacks.descent import Descender, Descent, Guess
from gradleak.attacks.dlg import Dlg, History, labels_of
from gradleak.attacks.guesses import pick_starts, trimmed
from gradleak.exchange import Reporter
from gradleak.matching import L2L1, Candidates, Cosine, Distance, Matcher
from gradleak.priors import Prior, load_prior
from gradleak.search import LAMP_MOVES, draw_orders, neighbour_orders, rearrange, shuffle
from gradleak.targets import Target


@register
@dataclass(frozen=True, kw_only=True)
class Lamp(Dlg):
    """LAMP (Balunović et al., NeurIPS 2022), algorithm 1, with the cosine distance.

    Hyperparameters are those of section 5 and appendix D; preset `large` has those for BERT-large. It differs from the
    published code knowingly: the regulariser aims at the target's own mean embedding norm (the code: BERT's, 1.4); a
    move takes what the optimiser remembers of a token along; in a batch a move changes one sequence; and the words that
    were found are put in order at the end by trying every swap and every move of one token until none brings the
    gradient nearer, at most `polish` times (0 for the published way).

    Ablations of table 4: `alpha_lm=0`, `alpha_reg=0`, `discrete=end`, `discrete=none`.
    """

    name: ClassVar[str] = "lamp"
    paper: ClassVar[str] = "Balunović et al. 2022, LAMP: Extracting Text from Gradients with Language Model Priors"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "large": {"steps": 5_000, "steps_per_round": 200, "optimizer": "adamw", "linear": True, "clip": 0.5},
        "fast": {"steps": 400, "steps_per_round": 50, "starts": 100, "permutations": 100, "moves": 100},
    }

    steps: int = 2_000
    lr: float = 0.01
    decay: float = 0.89
    steps_per_round: int = 75
    moves: int = 200
    starts: int = 500
    permutations: int = 500
    alpha_lm: float = 0.2
    alpha_reg: float = 1.0
    prior: str = "embedded"
    discrete: Literal["alternate", "end", "none"] = "alternate"
    polish: int = 10

    def distance(self) -> Distance:
        """The cosine, averaged over tensors."""
        return Cosine()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Algorithm 1: initialise, then descend and rearrange in turn."""
        matcher = self._matcher(target, victims)
        prior = load_prior(self.prior, target) if self.alpha_lm else None
        first, notes = self._first_guess(target, victims)
        guess = self._best_lengths(target, matcher, self._best_start(target, matcher, first, victims))
        descender = Descender(target, matcher, guess, self._descent(self.steps), self._penalty(target))
        history = History(target, len(victims), self.steps, reporter)
        while descender.steps_done < self.steps:
            descender.run(min(self.steps_per_round, self.steps - descender.steps_done), history)
            last = descender.steps_done == self.steps
            if self.discrete == "alternate" or (self.discrete == "end" and last):
                descender.rearrange(self._best_orders(target, matcher, prior, descender.now, victims))
        findings = self._finish(target, matcher, [descender.now, descender.best])
        return [
            replace(finding, history=trail, notes=tuple(note))
            for finding, trail, note in zip(findings, history.trails, notes, strict=True)
        ]

    def _descent(self, steps: int) -> Descent:
        return replace(super()._descent(steps), decay=self.decay)

    def _penalty(self, target: Target) -> Callable[[Tensor, Tensor], Tensor]:
        """Section 4.2: embeddings should be as long on average as those of the vocabulary."""
        wanted = target.word_embeddings.norm(dim=1).mean()

        def penalty(embeddings: Tensor, mask: Tensor) -> Tensor:
            lengths = embeddings.norm(dim=-1) * mask
            mean = lengths.flatten(2).sum(dim=2) / mask.flatten(2).sum(dim=2)
            return self.alpha_reg * (mean - wanted).square().double()

        return penalty

    def _best_lengths(self, target: Target, matcher: Matcher, guess: Guess) -> Guess:
        """Where many lengths are tried, descend briefly with all of them and go on with the best."""
        if guess.losses.shape[1] <= self.lengths_kept:
            return guess
        briefly = max(1, self.steps // 10)
        descender = Descender(target, matcher, guess, self._descent(briefly), self._penalty(target))
        return descender.run(briefly).best_starts(self.lengths_kept)

    def _best_start(self, target: Target, matcher: Matcher, first: Guess, victims: Sequence[Victim]) -> Guess:
        """Section 5: the best of many Gaussian samples, then the best of many permutations of it.

        Where several lengths are tried, they share the samples and permutations among them.
        """
        norm = target.word_embeddings.norm(dim=1).mean()
        width = target.word_embeddings.shape[1]
        lengths = first.losses.shape[1]
        count, permutations = max(1, self.starts // lengths), max(1, self.permutations // lengths)

        def draw(number: int, start: int) -> Tensor:
            mask = first.slots.mask[number, start]  # [B, T]
            tokens = int(mask.any(dim=0).sum())
            drawn = torch.randn(count, len(mask), tokens, width, generator=victims[number].generator)
            whole = torch.zeros(count, *mask.shape, width)
            whole[:, :, :tokens] = drawn / drawn.norm(dim=-1, keepdim=True)
            return whole

        samples = torch.stack([torch.stack([draw(v, s) for s in range(lengths)]) for v in range(len(victims))])
        samples = samples.to(target.device, target.dtype) * norm  # [V, lengths, samples, B, T, width]
        guess = self._pick(target, matcher, first, samples)
        orders = self._draw_orders(guess, victims, permutations, (shuffle,))
        return self._pick(target, matcher, guess, rearrange(_repeat(guess.embeddings, permutations), orders))

    def _pick(self, target: Target, matcher: Matcher, guess: Guess, samples: Tensor) -> Guess:
        """Return the guess with the samples `[V, starts, samples, B, T, width]` of the smallest distance."""
        losses = self._distances(target, matcher, guess, samples)
        chosen = losses.argmin(dim=2)
        best = pick_starts(samples.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view_as(guess.embeddings)
        return replace(guess, embeddings=best)

    def _distances(self, target: Target, matcher: Matcher, guess: Guess, samples: Tensor) -> Tensor:
        """Return the distances `[V, starts, samples]` of embeddings or ids that share a guess's slots and labels."""
        count = samples.shape[2]
        flat = samples.flatten(1, 2)
        slots = type(guess.slots)(*(_repeat(t, count).flatten(1, 2) for t in vars(guess.slots).values()))
        inputs = slots.fill(target, flat) if flat.is_floating_point() else flat
        labels = flat if target.task == "causal-lm" and not flat.is_floating_point() else None
        if labels is None:
            labels = _repeat(guess.candidates(target).labels, count).flatten(1, 2)
        return matcher(Candidates(inputs, slots.mask, labels)).view(samples.shape[:3])

    def _draw_orders(self, guess: Guess, victims: Sequence[Victim], count: int, moves: Any) -> Tensor:  # noqa: ANN401
        """Draw orders `[V, starts, count, B, T]`, the first of each the present one."""
        rows = [
            torch.stack([draw_orders(free, count, moves, victim.generator) for free in starts])
            for victim, starts in zip(victims, guess.slots.free, strict=True)
        ]
        orders = torch.stack(rows)
        orders[:, :, 0] = torch.arange(orders.shape[-1], device=orders.device)
        return orders

    def _best_orders(
        self, target: Target, matcher: Matcher, prior: Prior | None, guess: Guess, victims: Sequence[Victim]
    ) -> Tensor:
        """Section 4.3: the order `[V, starts, B, T]` with the smallest distance + α · negative log-likelihood."""
        orders = self._draw_orders(guess, victims, self.moves, LAMP_MOVES)
        losses = self._distances(target, matcher, guess, rearrange(_repeat(guess.embeddings, self.moves), orders))
        if prior is not None:
            ids = guess.slots.project(target, guess.embeddings)
            losses = losses + self._surprise(prior, rearrange(_repeat(ids, self.moves), orders), guess)
        chosen = losses.argmin(dim=2)
        return pick_starts(orders.flatten(0, 1), chosen.flatten()[:, None])[:, 0].view_as(guess.slots.ids)

    def _surprise(self, prior: Prior, ids: Tensor, guess: Guess) -> Tensor:
        """Return α × the mean over a batch of the negative log-likelihood `[V, starts, samples]`."""
        mask = _repeat(guess.slots.mask, ids.shape[2])
        return self.alpha_lm * prior(ids, mask).mean(dim=-1).double()

    def _finish(self, target: Target, matcher: Matcher, states: Sequence[Guess]) -> list[Finding]:
        """Project to words, take what is nearest for each victim, and put it in order.

        The gradient alone decides here: it knows the order exactly, and a language model's taste would outvote it.
        """
        words = [guess.slots.project(target, guess.embeddings) for guess in states]
        losses = [
            self._distances(target, matcher, guess, ids[:, :, None])[:, :, 0]
            for guess, ids in zip(states, words, strict=True)
        ]
        findings = []
        for victim in range(matcher.victims):
            state = min(range(len(states)), key=lambda number: float(losses[number][victim].min()))
            best = losses[state][victim].argmin().view(1, 1)
            guess = states[state].victim(victim).starts(best)
            ids = pick_starts(words[state][victim : victim + 1], best)
            findings.append(self._polished(target, matcher.victim(victim), guess, ids))
        return findings

    def _polished(self, target: Target, matcher: Matcher, guess: Guess, ids: Tensor) -> Finding:
        """Go to the nearest neighbour of one victim's ids `[1, 1, B, T]` as long as it is nearer than they are."""
        orders = neighbour_orders(guess.slots.free[0, 0])[None, None]  # [1, 1, neighbours, B, T], the present one first
        for _ in range(self.polish):
            tried = rearrange(_repeat(ids, orders.shape[2]), orders)
            nearest = int(self._distances(target, matcher, guess, tried).argmin())
            ids = tried[:, :, nearest]
            if not nearest:
                break
        classes = labels_of(target, guess)
        return Finding(
            token_ids=trimmed(ids[0, 0], guess.slots.mask[0, 0]),
            labels=None if classes is None else classes[0, 0].tolist(),
            loss=float(self._distances(target, matcher, guess, ids[:, :, None])),
        )


@register
@dataclass(frozen=True, kw_only=True)
class LampL2L1(Lamp):
    """LAMP with TAG's distance, L2 + α · L1; its own weights (appendix D)."""

    name: ClassVar[str] = "lamp-l2l1"

    alpha_lm: float = 60.0
    alpha_reg: float = 25.0
    alpha: float = 0.01

    def distance(self) -> Distance:
        """L2 + α · L1."""
        return L2L1(alpha=self.alpha)


def _repeat(tensor: Tensor, count: int) -> Tensor:
    """Return `[V, starts, …]` as `[V, starts, count, …]`."""
    return tensor[:, :, None].expand(*tensor.shape[:2], count, *tensor.shape[2:])
