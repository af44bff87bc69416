"""DLG: gradient descent on embeddings until their gradient matches the observed one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, register
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Reporter, Snapshot, Victim
from gradleak.leakage.labels import known_labels
from gradleak.leakage.lengths import lengths_to_try
from gradleak.matching import Candidates, Distance, Matcher, SquaredL2
from gradleak.optimisation.descent import Descent, Guess, Watcher, descend, random_guess
from gradleak.optimisation.guess import Slots, trimmed
from gradleak.targets import Target

SNAPSHOTS = 10


@register
@dataclass(frozen=True, kw_only=True)
class Dlg(Attack):
    """Deep Leakage from Gradients (Zhu, Liu and Han, NeurIPS 2019), as LAMP's paper describes and tunes it.

    LAMP, section 5 and appendix D: Adam with learning rate 0.1 and no decay, 2,500 steps (10,000 with AdamW, linear
    decay and clipping at 1.0 for BERT-large: preset `large`), from unscaled Gaussian embeddings; special tokens are
    fixed, and the result is projected to the nearest words by cosine. Labels that are not known are optimised with the
    embeddings, as DLG does; lengths that are not known are tried. Where the published code takes the last step, this
    takes the one with the smallest distance.
    """

    name: ClassVar[str] = "dlg"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    least: ClassVar[Mapping[str, float]] = {"steps": 1, "clip": 0, "longest_tried": 1, "lengths_kept": 1}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "large": {"steps": 10_000, "optimizer": "adamw", "linear": True, "clip": 1.0},
        "fast": {"steps": 600},
    }

    steps: int = 2_500
    lr: float = 0.1
    optimizer: Literal["adam", "adamw"] = "adam"
    linear: bool = False
    clip: float = 0.0
    longest_tried: int = 24
    lengths_kept: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr > 0:
            raise GradleakError(f"lr must be above 0, not {self.lr:g}")

    def distance(self) -> Distance:
        """Return the distance that is minimised."""
        return SquaredL2()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Optimise from noise; if lengths are tried, all of them briefly and the best of them to the end."""
        matcher = self._matcher(target, victims).until(reporter.deadline)
        guess, notes = self._first_guess(target, victims)
        briefly = self.steps // 10 if guess.losses.shape[1] > self.lengths_kept else 0
        history = History(target, len(victims), briefly + self.steps, reporter)
        if briefly:
            guess = descend(target, matcher, guess, self._descent(briefly), history).best_starts(self.lengths_kept)
        guess = descend(target, matcher, guess, self._descent(self.steps), lambda s, g: history(briefly + s, g))
        findings = self._findings(target, matcher, guess)
        return [
            replace(finding, history=trail, notes=tuple(note))
            for finding, trail, note in zip(findings, history.trails, notes, strict=True)
        ]

    def _descent(self, steps: int) -> Descent:
        return Descent(steps=steps, lr=self.lr, optimizer=self.optimizer, linear=self.linear, clip=self.clip)

    def _matcher(self, target: Target, victims: Sequence[Victim]) -> Matcher:
        names = [name for name in victims[0].gradient if name not in target.word_parameters]
        return Matcher(target, [victim.gradient for victim in victims], self.distance(), names)

    def _kind(self, target: Target, victim: Victim) -> Hashable:
        """Those attacked together have as many lengths to try, and labels that all are known or all are searched."""
        lengths, _ = self._lengths_to_try(target, victim)
        labels, _ = known_labels(target, victim, any_order=True)
        return len(lengths), labels is None

    def _lengths_to_try(self, target: Target, victim: Victim) -> tuple[list[list[int]], str | None]:
        return lengths_to_try(target, victim, self.longest_tried)

    def _first_guess(self, target: Target, victims: Sequence[Victim]) -> tuple[Guess, list[list[str]]]:
        lengths = [self._lengths_to_try(target, victim) for victim in victims]
        labels = [known_labels(target, victim, any_order=True) for victim in victims]
        slots = Slots.of(target, [starts for starts, _ in lengths])
        told = [classes for classes, _ in labels]
        classes: Tensor | None = None
        if told[0] is not None:
            rows = torch.tensor(told, device=target.device)  # [victims, sequences]
            classes = rows[:, None].expand(-1, slots.ids.shape[1], -1).contiguous()
        guess = random_guess(target, slots, classes, [victim.generator for victim in victims])
        notes = [
            [note for note in (_batch_note(victim), a[1], b[1]) if note]
            for victim, a, b in zip(victims, lengths, labels, strict=True)
        ]
        return guess, notes

    def _findings(self, target: Target, matcher: Matcher, guess: Guess) -> list[Finding]:
        """Project all starts to words and take for each victim the one whose gradient is nearest."""
        ids = guess.slots.project(target, guess.embeddings)
        classes = labels_of(target, guess)
        losses = matcher(Candidates(ids, guess.slots.mask, ids if classes is None else classes))
        return [
            Finding(
                token_ids=trimmed(ids[victim, start], guess.slots.mask[victim, start]),
                labels=None if classes is None else classes[victim, start].tolist(),
                loss=float(losses[victim, start]),
            )
            for victim, start in enumerate(losses.argmin(dim=1).tolist())
        ]


class History:
    """Watches a descent: tells the reporter, and keeps a few snapshots of each victim.

    Args:
        target: the model.
        victims: how many there are.
        total: how many steps there will be.
        reporter: told at every step.
    """

    def __init__(self, target: Target, victims: int, total: int, reporter: Reporter) -> None:
        self.trails: list[tuple[Snapshot, ...]] = [() for _ in range(victims)]
        self._target, self._total, self._reporter = target, total, reporter

    def part(self, done: int, members: Sequence[int]) -> Watcher:
        """Return a watcher of a later descent: so many steps are done, and these victims are still in it."""
        return lambda step, best: self(done + step, best, members)

    def __call__(self, step: int, best: Guess, members: Sequence[int] | None = None) -> None:
        """Take note of a step; texts are looked at only now and then.

        Args:
            step: its number.
            best: where the descent was at its best.
            members: the numbers of the victims that are still in it; all of them by default.
        """
        self._reporter(step, self._total, lambda: look(self._target, best)[0])
        if step % max(1, self._total // SNAPSHOTS) == 0:
            for victim, view in zip(members or range(len(self.trails)), look(self._target, best), strict=True):
                trail = self.trails[victim]
                # A descent that starts again is further away at first than the last one was at its end.
                seen = Snapshot(step, *view) if not trail or view[0] < trail[-1].loss else replace(trail[-1], step=step)
                self.trails[victim] = (*trail, seen)


def labels_of(target: Target, guess: Guess) -> Tensor | None:
    """Return a guess's classes `[V, starts, B]`, the likeliest where they are searched; None for a language model."""
    if target.task == "causal-lm":
        return None
    return guess.labels.argmax(dim=-1) if guess.labels.is_floating_point() else guess.labels


def look(target: Target, guess: Guess) -> list[tuple[float, tuple[str, ...]]]:
    """Return for each victim its best start's loss and text."""
    best = guess.best_starts(1)
    ids = best.slots.project(target, best.embeddings)
    return [
        (float(best.losses[v, 0]), tuple(target.decode(row) for row in trimmed(ids[v, 0], best.slots.mask[v, 0])))
        for v in range(len(ids))
    ]


def _batch_note(victim: Victim) -> str | None:
    return None if victim.knowledge.sequences else "batch size not told: 1 assumed"
