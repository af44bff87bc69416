"""GRAB: embeddings and dropout masks by gradient descent, token order by beam search, in turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.attacks.base import register
from gradleak.attacks.dlg import History
from gradleak.attacks.hybrid import ORDERED, Hybrid, with_unknown
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Reporter, Victim
from gradleak.leakage.labels import told_clipped
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.perturbation import looks_noisy, looks_pruned
from gradleak.matching import L2L1, Cosine, Distance, Matcher, allow_tf32
from gradleak.optimisation.descent import Descender, Descent, Guess, Watcher
from gradleak.optimisation.substitutions import Choices
from gradleak.search import beam_search, shuffle
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_sites

# Victims of lengths up to each of these are searched together: few groups keep a GPU busy, many leave out padding.
TOGETHER = (8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384)

FURTHER: dict[str, Any] = {**ORDERED, "first_masks": "mean", "stop": "settled", "alternatives": 3, "rounds": 3}


@register
@dataclass(frozen=True, kw_only=True)
class Grab(Hybrid):
    """GRAB (Feng et al., CCS 2024), algorithms 1 to 3.

    Hyperparameters are those of section 5.1; preset `large` has the tuned ones of section 5.4.1. Where the client uses
    dropout, or may use it, its masks are searched with the embeddings (`learn_dropout`); labels that are not known are
    searched, too; where only the longest length is known, beam search ends sequences earlier. An update that was pruned
    is compared where it is not zero (`pruning_mask`), one with noise in it is compared in direction only
    (`normalise`); both are seen in the update itself.

    It differs from the paper knowingly: what was learnt of a token's dropout goes with the token when tokens are put in
    another order; in a batch the beams run through one sequence at a time while the others stay at their best, which
    lets the engine reuse their gradients; and the nearest words of all rounds are taken, continuous or discrete.

    Preset `best` is not the paper's: there the words are put in order at the end as LAMP's are (`polish`). Presets
    `fast` and `thorough` differ further: masks start at their mean, which is no dropout, the beams may also put the
    next nearest words of every token (`alternatives`), and rounds end when one comes back to the words that it started
    from. In `fast` the distance is LAMP's cosine, and masks take larger steps than embeddings (`mask_speed`).
    """

    name: ClassVar[str] = "grab"
    paper: ClassVar[str] = "Feng et al. 2024, Uncovering Gradient Inversion Risks in Practical Language Model Training"
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths", "dropout")
    least: ClassVar[Mapping[str, float]] = {
        **Hybrid.least,
        **{"rounds": 1, "passes": 1, "beams": 1, "alternatives": 0, "alpha": 0},
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "best": ORDERED,
        "large": {"linear": True, "clip": 0.5},
        "thorough": {**FURTHER, "steps": 700, "passes": 2},
        "fast": {
            **FURTHER,
            **{"cosine": True, "mask_speed": 3.0},
            **{"steps": 300, "starts": 100, "permutations": 100, "passes": 3, "polish": 2},
        },
    }

    optimizer: Literal["adam", "adamw"] = "adamw"
    starts: int = 2_000
    permutations: int = 2_000
    rounds: int = 5
    passes: int = 5
    beams: int = 4
    alternatives: int = 0
    alpha: float = 0.01
    squared: bool = True
    cosine: bool = False
    learn_dropout: bool = True
    first_masks: Literal["bernoulli", "mean"] = "bernoulli"
    mask_speed: float = 1.0
    pruning_mask: bool = True
    normalise: bool = True
    stop: Literal["no-gain", "settled"] = "no-gain"
    lengths_kept: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mask_speed > 0:
            raise GradleakError(f"mask_speed must be above 0, not {self.mask_speed:g}")

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Algorithm 1: descend and search in turn, until everyone has arrived."""
        matcher = whole = self._matcher(target, victims).until(reporter.deadline)
        guess, notes = self._first_guess(target, victims)
        guess = self._with_masks(target, guess, victims)
        early = self._for_a_start(matcher)
        guess = self._best_start(target, early, guess, victims)
        guess = self._best_lengths(target, early, guess)
        room = guess.slots.mask[:, 0].sum(dim=2)  # [victims, sequences]: how long sequences may become
        history = History(target, len(victims), self.rounds * self.steps, reporter)
        nearest: dict[int, Guess] = {}
        going = list(range(len(victims)))
        for number in range(self.rounds):
            members, some = going, [victims[victim] for victim in going]
            watch = history.part(number * self.steps, members)
            descended = self._continuous(target, matcher, guess, some, watch)
            words = self._nearest_words(target, matcher, descended)
            late = reporter.deadline.passed
            searched = words if late else self._discrete(target, matcher, descended, some, room[members])
            for place, victim in enumerate(members):
                if victim not in nearest or searched.losses[place] < nearest[victim].losses[0]:
                    nearest[victim] = searched.select([place])
            moving = [place for place, moves in enumerate(self._go_on(guess, words, searched)) if moves]
            if not moving or reporter.deadline.passed:
                break
            going = [members[place] for place in moving]
            guess = searched.select(moving)
            matcher = whole.select(going)
        words = Guess.joined([nearest[victim] for victim in range(len(victims))])
        found = self._polished(target, whole, words)
        return [
            replace(finding, history=trail, notes=tuple(note))
            for finding, trail, note in zip(found, history.trails, notes, strict=True)
        ]

    def _go_on(self, before: Guess, words: Guess, searched: Guess) -> list[bool]:
        """Tell who has not arrived: as published, whose search gained; or whose last round found other words."""
        if self.stop == "no-gain":
            return (searched.losses < words.losses).flatten().tolist()
        other = (searched.embeddings != before.embeddings).any(dim=-1) & searched.slots.mask
        return (other | (searched.slots.mask != before.slots.mask)).flatten(1).any(dim=1).tolist()

    def _kind(self, target: Target, victim: Victim) -> Hashable:
        return super()._kind(target, victim), self._is_pruned(target, victim), self._is_scaled(target, victim)

    def _is_pruned(self, target: Target, victim: Victim) -> bool:
        return self.pruning_mask and looks_pruned(target, victim.gradient)

    def _is_scaled(self, target: Target, victim: Victim) -> bool:
        return self.normalise and (told_clipped(victim.knowledge) or looks_noisy(target, victim.gradient))

    def _matcher(self, target: Target, victims: Sequence[Victim]) -> Matcher:
        """Sections 4.2 and 5.5: L2 + α · L1, of what pruning left, and of one norm where it was clipped or is noisy."""
        names = [name for name in victims[0].gradient if name not in target.word_parameters]
        distance = replace(
            self.distance(),
            kept_only=self._is_pruned(target, victims[0]),
            normalised=self._is_scaled(target, victims[0]),
        )
        return Matcher(target, [victim.gradient for victim in victims], distance, names)

    def _descent(self, steps: int) -> Descent:
        return replace(super()._descent(steps), mask_speed=self.mask_speed)

    def distance(self) -> Distance:
        """L2 + α · L1, or the cosine."""
        return Cosine() if self.cosine else L2L1(alpha=self.alpha, squared=self.squared)

    def _lengths_to_try(self, target: Target, victim: Victim) -> tuple[list[list[int]], str | None]:
        """Section 5.4.3: where the longest length is known, all sequences start with it and may become shorter."""
        known = victim.knowledge
        longest = known.longest or longest_length(target, victim.gradient)
        if known.lengths is not None or longest is None:
            return super()._lengths_to_try(target, victim)
        return [[longest] * (known.sequences or 1)], f"lengths searched, at most {longest}"

    def _with_masks(self, target: Target, guess: Guess, victims: Sequence[Victim]) -> Guess:
        """Algorithm 1, line 1: a mask for every dropout, drawn from each victim's own stream or at its mean."""
        if not self.learn_dropout or any(victim.knowledge.dropout == 0 for victim in victims):
            return guess
        batch, tokens = guess.slots.mask.shape[:3], guess.slots.mask.shape[3]
        sites = dropout_sites(target, tokens)
        masks = {
            name: torch.full((*batch, *site.shape), 1 - site.rate, dtype=target.dtype) for name, site in sites.items()
        }
        for number, victim in enumerate(victims if self.first_masks == "bernoulli" else ()):
            own = int(guess.slots.mask[number].sum(dim=-1).max())
            for name, site in sites.items():
                shape = [own if dim in site.token_dims else size for dim, size in enumerate(site.shape)]
                kept = torch.rand(*batch[1:], *shape, generator=victim.generator) >= site.rate
                part: tuple[slice, ...] = (slice(None), slice(None), *(slice(size) for size in shape))
                masks[name][number][part] = kept.to(target.dtype)
        return replace(guess, dropout={name: mask.to(target.device) for name, mask in masks.items()}, sites=sites)

    def _continuous(
        self, target: Target, matcher: Matcher, guess: Guess, victims: Sequence[Victim], watch: Watcher
    ) -> Guess:
        """Algorithm 2: from the best permutation, descend by embeddings, labels and dropout masks."""
        guess = self._best_permutation(target, self._for_a_start(matcher), guess, victims)
        with allow_tf32():
            return Descender(target, matcher, guess, self._descent(self.steps)).run(self.steps, watch)

    def _discrete(
        self, target: Target, matcher: Matcher, guess: Guess, victims: Sequence[Victim], room: Tensor
    ) -> Guess:
        """Algorithm 3, for victims of about the same length together: the others' places are none of theirs."""
        choices = Choices.near(target, guess, 1 + self.alternatives)
        chosen = torch.full_like(guess.slots.ids[:, 0], -1)  # [victims, sequences, tokens]
        for longest, members in _alike(room.amax(dim=1)).items():
            some, own = choices.select(members).shortened(longest), [victims[victim] for victim in members]
            chosen[members, :, :longest] = self._best_choice(matcher.select(members), some, own, room[members])
        found = choices.put(chosen[:, None])
        return replace(found, losses=matcher(found.candidates(target)))

    def _best_choice(self, matcher: Matcher, choices: Choices, victims: Sequence[Victim], room: Tensor) -> Tensor:
        """Algorithm 3: passes of beam search over every sequence of those victims whom the last pass changed."""
        mask = choices.words.slots.mask[:, 0]
        chosen = choices.of_orders(torch.where(mask, torch.arange(mask.shape[-1], device=mask.device), -1))
        going = list(range(len(victims)))
        for number in range(self.passes):
            if matcher.deadline.passed:
                break
            shuffles = 0 if number else self.permutations // room.shape[1]
            some, own, held = choices.select(going), [victims[victim] for victim in going], matcher.select(going)
            before = found = chosen[going]
            for sequence in range(room.shape[1]):
                if sequence and matcher.deadline.passed:
                    break
                found = self._search(held, some, found, sequence, own, shuffles, room[going])
            chosen[going] = found
            changed = (found != before).flatten(1).any(dim=1).tolist()
            going = [victim for victim, moved in zip(going, changed, strict=True) if moved]
            if not going:
                break
        return chosen

    def _search(
        self,
        matcher: Matcher,
        choices: Choices,
        chosen: Tensor,
        sequence: int,
        victims: Sequence[Victim],
        shuffles: int,
        room: Tensor,
    ) -> Tensor:
        """Algorithm 3, lines 1 and 5, for one sequence of every batch: the best order of its own words."""
        held = matcher
        if room.shape[1] > 1:
            held = matcher.with_fixed_sequences(choices.put(chosen[:, None]).candidates(choices.target), sequence)
        longest = int(room[:, sequence].max())  # the others' further places are none of its own
        alone = choices.sequence(sequence).shortened(longest)
        frame = _Frame(alone, room[:, sequence], may_end=victims[0].knowledge.lengths is None)
        start = chosen[:, sequence, None, :longest]
        if shuffles:
            orders = self._draw_orders(alone.words, victims, 1 + shuffles, (shuffle,))[:, 0, 1:, 0]
            drawn = alone.of_orders(torch.where(alone.words.slots.mask[:, 0], orders, -1))
            start = torch.cat([start, drawn], dim=1)
        score = partial(self._choice_losses, held, alone)
        beams, _ = beam_search(start, frame.places, frame.substitute, score, self.beams, deadline=matcher.deadline)
        changed = chosen.clone()
        changed[:, sequence, :longest] = beams[:, 0]
        return changed

    def _choice_losses(self, matcher: Matcher, alone: Choices, tried: Tensor) -> Tensor:
        """Return the distances `[V, count]` of what may stand in one sequence `[V, count, T]`."""
        parts = (part for part, _ in self._variants(alone.words, tried.shape[1], matcher.deadline))
        losses = [matcher(alone.put(tried[:, part, None]).candidates(alone.target)) for part in parts]
        return with_unknown(torch.cat(losses, dim=1), tried.shape[1])


def _alike(lengths: Tensor) -> dict[int, list[int]]:
    """Return which victims to search together: the longest length among them, and their numbers."""
    groups: dict[int, list[int]] = {}
    for victim, length in enumerate(lengths.tolist()):
        groups.setdefault(bisect_left(TOGETHER, length), []).append(victim)
    return {int(lengths[members].max()): members for members in groups.values()}


class _Frame:
    """Where one sequence's tokens may stand: beam search puts any choice, or the sequence's end, at any place.

    Args:
        choices: for one sequence of each victim.
        room: how long it may become `[victims]`.
        may_end: whether its length is searched, too.
    """

    def __init__(self, choices: Choices, room: Tensor, *, may_end: bool) -> None:
        before, after = choices.target.special_tokens
        slots = choices.words.slots
        mask, self.free = slots.mask[:, 0, 0], slots.free[:, 0, 0]  # [victims, tokens]
        self.closing = len(after)
        self.end = mask.sum(dim=1) - self.closing  # of the tokens that the guess has, where the special ones follow
        self.room = room - self.closing
        self.may_end = may_end
        self.places = range(len(before), mask.shape[1] - self.closing)
        self.kinds = choices.kinds

    def substitute(self, chosen: Tensor, place: int) -> Tensor:
        """Return `[V, beams, T]` with every choice for a place `[V, beams × choices, T]`, itself included."""
        first, last = self.places.start * self.kinds, self.places.stop * self.kinds
        choices = torch.arange(first, last, device=chosen.device)
        ends = (chosen >= 0).sum(dim=2)[..., None] - self.closing  # [V, beams, 1]
        longer = (ends == place) & (place < self.room[:, None, None]) if self.may_end else torch.zeros_like(ends).bool()
        put = chosen[:, :, None].repeat(1, 1, len(choices), 1)
        put[..., place] = choices
        fits = self.free[:, None, choices // self.kinds] & ((place < ends) | longer)
        variants = [torch.where(fits[..., None], self._closed(put, ends + longer.long()), chosen[:, :, None])]
        if self.may_end and place > self.places.start:
            shorter = self._closed(chosen[:, :, None], torch.full_like(ends, place))
            variants.append(torch.where((place < ends)[..., None], shorter, chosen[:, :, None]))
        if self.may_end:  # it may have ended here, or before
            variants.append(chosen[:, :, None])
        return torch.cat(variants, dim=2).flatten(1, 2)

    def _closed(self, chosen: Tensor, ends: Tensor) -> Tensor:
        """Let `[V, beams, choices, T]` end at `[V, beams, 1]`: special tokens there, and padding after them."""
        behind = torch.arange(chosen.shape[-1], device=chosen.device) - ends[..., None]
        special = (self.end[:, None, None, None] + behind) * self.kinds
        return torch.where(behind < 0, chosen, torch.where(behind < self.closing, special, -1))
