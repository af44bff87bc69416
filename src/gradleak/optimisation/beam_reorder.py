"""Beam search over the order, words and lengths of a guess: GRAB's discrete optimisation (algorithm 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradleak.exchange import Victim, group_by_key, length_class
from gradleak.matching import Matcher
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.reorder import draw_guess_orders, variants, with_unscored
from gradleak.optimisation.substitutions import SequenceVariants, Substitutions
from gradleak.search import beam_search, shuffle

# Victims of lengths up to each of these are searched together: few groups keep a GPU busy, many limit padding.
LENGTH_LIMITS = (8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384)


@dataclass(frozen=True, kw_only=True)
class BeamReorder:
    """The settings of the search.

    Attributes:
        beams: width of the beam.
        passes: passes over all sequences, at most.
        permutations: random orders that the first pass starts from, shared by the sequences of a batch.
        alternatives: words beside the nearest one that every token may become.
    """

    beams: int
    passes: int
    permutations: int
    alternatives: int

    def __call__(self, cohort: Cohort, guess: Guess, room: Tensor) -> Guess:
        """Return the best words of each victim, searched in groups of similar length to limit padding.

        Args:
            cohort: the victims.
            guess: their embeddings, one start each.
            room: how long sequences may become `[victims, sequences]`.
        """
        substitutions = Substitutions.near(cohort.target, guess, 1 + self.alternatives)
        chosen = torch.full_like(guess.slots.ids[:, 0], -1)  # [victims, sequences, tokens]
        for longest, members in length_groups(room.amax(dim=1)).items():
            group = _Group(
                cohort.matcher.select(members),
                substitutions.select(members).shortened(longest),
                [cohort.victims[place] for place in members],
                room[members],
            )
            chosen[members, :, :longest] = self.best(group)
        found = substitutions.apply(chosen[:, None])
        return replace(found, losses=cohort.matcher(found.candidates(cohort.target)))

    def best(self, group: _Group) -> Tensor:
        """Algorithm 3: pass over the sequences of those victims that the last pass changed."""
        chosen, active = group.present(), list(range(len(group.victims)))
        for number in range(self.passes):
            if group.matcher.deadline.passed:
                break
            shuffles = 0 if number else self.permutations // group.sequences
            some = group.select(active)
            before = found = chosen[active]
            for sequence in range(group.sequences):
                if sequence and group.matcher.deadline.passed:
                    break
                found = self._pass_over(some, found, sequence, shuffles)
            chosen[active] = found
            changed = (found != before).flatten(1).any(dim=1).tolist()
            active = [victim for victim, moved in zip(active, changed, strict=True) if moved]
            if not active:
                break
        return chosen

    def _pass_over(self, group: _Group, chosen: Tensor, sequence: int, shuffles: int) -> Tensor:
        """Algorithm 3, lines 1 and 5: vary one sequence of every batch, place by place, while the others are fixed."""
        matcher = group.fixed_but(chosen, sequence)
        room = group.room[:, sequence]
        longest = int(room.max())  # places that only other sequences have
        alone = group.substitutions.sequence(sequence).shortened(longest)
        tried = SequenceVariants(alone, room, may_end=group.victims[0].knowledge.lengths is None)
        start = chosen[:, sequence, None, :longest]
        if shuffles:
            orders = draw_guess_orders(alone.words, group.victims, 1 + shuffles, (shuffle,))[:, 0, 1:, 0]
            drawn = alone.of_orders(torch.where(alone.words.slots.mask[:, 0], orders, -1))
            start = torch.cat([start, drawn], dim=1)
        score = partial(substitution_losses, matcher, alone)
        beams, _ = beam_search(start, tried.places, tried.at, score, self.beams, deadline=matcher.deadline)
        changed = chosen.clone()
        changed[:, sequence, :longest] = beams[:, 0]
        return changed


@dataclass(frozen=True)
class _Group:
    """Victims of similar length that are searched together."""

    matcher: Matcher
    substitutions: Substitutions
    victims: Sequence[Victim]
    room: Tensor

    @property
    def sequences(self) -> int:
        return self.room.shape[1]

    def present(self) -> Tensor:
        """Return the guess itself as substitutions `[victims, sequences, tokens]`."""
        mask = self.substitutions.words.slots.mask[:, 0]
        places = torch.where(mask, torch.arange(mask.shape[-1], device=mask.device), -1)
        return self.substitutions.of_orders(places)

    def select(self, places: Sequence[int]) -> _Group:
        victims = [self.victims[place] for place in places]
        return _Group(self.matcher.select(places), self.substitutions.select(places), victims, self.room[places])

    def fixed_but(self, chosen: Tensor, sequence: int) -> Matcher:
        """Return a matcher of one sequence, with the others of the batch fixed to what is chosen."""
        if self.sequences == 1:
            return self.matcher
        base = self.substitutions.apply(chosen[:, None]).candidates(self.substitutions.target)
        return self.matcher.with_fixed_sequences(base, sequence)


def substitution_losses(matcher: Matcher, alone: Substitutions, tried: Tensor) -> Tensor:
    """Return the distances `[V, count]` of substitutions in one sequence `[V, count, T]`."""
    parts = (part for part, _ in variants(alone.words, tried.shape[1], matcher.deadline))
    losses = [matcher(alone.apply(tried[:, part, None]).candidates(alone.target)) for part in parts]
    return with_unscored(torch.cat(losses, dim=1), tried.shape[1])


def length_groups(lengths: Tensor) -> dict[int, list[int]]:
    """Group victims of similar length: the longest length of each group, and its victims."""
    groups = group_by_key(length_class(length, LENGTH_LIMITS) for length in lengths.tolist())
    return {int(lengths[members].max()): members for members in groups}
