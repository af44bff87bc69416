"""Starts: the best of many samples, permutations and lengths, before a descent begins. Used by LAMP and GRAB."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.descent import Descender, Descent, Penalty
from gradleak.optimisation.guess import Guess, keep_better
from gradleak.optimisation.reorder import best_orders, draw_guess_orders, order_losses, variants
from gradleak.search import shuffle

# The share of the time left that the search for a start may take.
START_SHARE = 0.25


def best_sample(cohort: Cohort, count: int) -> Guess:
    """Return the guess with the best of many Gaussian samples (LAMP, section 5), scaled to the mean norm of words.

    Where several lengths are tried, they share the samples. A victim's draft counts as a sample of its lengths.
    """
    first = cohort.guess
    lengths = first.losses.shape[1]
    alone = (first.starts(torch.full_like(first.losses[:, :1], start, dtype=torch.long)) for start in range(lengths))
    best = [_best_sample(cohort, guess, max(1, count // lengths)) for guess in alone]
    return _or_drafts(cohort, replace(first, embeddings=torch.cat(best, dim=1)))


def best_permutation(cohort: Cohort, count: int) -> Guess:
    """Return the best of many permutations of the guess, itself included."""
    guess = cohort.guess
    if cohort.deadline.passed:
        return guess
    drawn = max(1, count // guess.losses.shape[1])
    orders = draw_guess_orders(guess, cohort.victims, drawn, (shuffle,))
    return guess.rearranged(best_orders(orders, order_losses(cohort.matcher, guess, orders)))


def best_lengths(cohort: Cohort, kept: int, descent: Descent, penalty: Penalty | None = None) -> Guess:
    """Where more lengths are tried than are kept, descend briefly with all of them and return the best."""
    if cohort.guess.losses.shape[1] <= kept:
        return cohort.guess
    descender = Descender(cohort.target, cohort.matcher, cohort.guess, descent, penalty)
    return descender.run(descent.steps).best_starts(kept)


def _best_sample(cohort: Cohort, guess: Guess, count: int) -> Tensor:
    """Return the embeddings `[V, 1, B, T, width]` of the best of so many samples for a guess with one start."""
    target, best = cohort.target, guess
    if cohort.deadline.passed:
        return guess.embeddings
    norm = target.word_embeddings.norm(dim=1).mean()
    generators = [victim.generator for victim in cohort.victims]
    for part, repeated in variants(guess, count, cohort.deadline):
        drawn = [_draw(guess, place, part.stop - part.start, own) for place, own in enumerate(generators)]
        tried = replace(repeated, embeddings=torch.stack(drawn).to(target.device, target.dtype) * norm)
        tried = replace(tried, losses=cohort.matcher(tried.candidates(target))).best_starts(1)
        best = keep_better(best, tried, tried.losses)
    return best.embeddings


def _or_drafts(cohort: Cohort, guess: Guess) -> Guess:
    """Return the guess with the words of each victim's draft in the starts to which they are nearer."""
    target, embeddings = cohort.target, guess.embeddings.clone()
    for row, victim in enumerate(cohort.victims):
        if victim.draft:
            tokens = target.pad(victim.draft)
            lengths = tokens.mask.sum(dim=1)
            for start in (guess.slots.mask[row].sum(dim=2) == lengths).all(dim=1).nonzero().flatten().tolist():
                embeddings[row, start, :, : tokens.ids.shape[1]] = target.embed(tokens.ids)
    if torch.equal(embeddings, guess.embeddings):
        return guess
    both = [replace(guess, embeddings=each) for each in (guess.embeddings, embeddings)]
    sampled, drafted = (replace(each, losses=cohort.matcher(each.candidates(target))) for each in both)
    return replace(guess, embeddings=keep_better(sampled, drafted, drafted.losses).embeddings)


def _draw(guess: Guess, place: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw embeddings of norm 1 for one victim `[count, B, T, width]`, sample by sample: chunking changes nothing."""
    mask = guess.slots.mask[place, 0]  # [B, T]
    tokens, width = int(mask.any(dim=0).sum()), guess.embeddings.shape[-1]
    drawn = torch.stack([torch.randn(len(mask), tokens, width, generator=generator) for _ in range(count)])
    whole = torch.zeros(count, *mask.shape, width)
    whole[:, :, :tokens] = drawn / drawn.norm(dim=-1, keepdim=True)
    return whole
