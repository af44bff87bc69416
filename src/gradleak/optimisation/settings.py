"""Settings that descent attacks share: the schedule of the descent, the lengths tried, the start, the last order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from gradleak.exchange import Victim
from gradleak.leakage.assumptions import Assumptions, Lengths, assume
from gradleak.leakage.lengths import lengths_to_try
from gradleak.optimisation.descent import Descent
from gradleak.settings import setting
from gradleak.targets import Target

# What gradleak adds to the papers' attacks at their end.
REORDERED = {"polish": 10}


@dataclass(frozen=True, kw_only=True)
class DescentSettings:
    """The descent on embeddings, and the lengths that it is tried with; defaults are those of DLG and TAG."""

    steps: int = setting(2_500, "steps of the descent", least=1, paper="LAMP, appendix D")
    lr: float = setting(0.1, "learning rate", above=0, paper="LAMP, appendix D")
    optimizer: Literal["adam", "adamw"] = setting("adam", "the optimiser", paper="LAMP, appendix D")
    linear: bool = setting(False, "decay the learning rate linearly to zero", paper="LAMP, appendix D: BERT-large")
    clip: float = setting(
        0.0, "largest norm of one guess's gradient; 0 for no limit", least=0, paper="LAMP, appendix D: BERT-large"
    )
    longest_tried: int = setting(
        24, "longest length to try where nothing tells the lengths", unit="tokens", least=1, paper="not in the paper"
    )
    lengths_kept: int = setting(
        3,
        "lengths that are kept after a tenth of the steps, where lengths are tried",
        least=1,
        paper="not in the paper",
    )

    def descent(self, steps: int) -> Descent:
        """Return the schedule of a descent of so many steps."""
        return Descent(steps=steps, lr=self.lr, optimizer=self.optimizer, linear=self.linear, clip=self.clip)

    def lengths(self, target: Target, victim: Victim) -> Lengths:
        """Return the lengths to start from, and a note where they were not known."""
        return lengths_to_try(target, victim, self.longest_tried)

    def assumptions(self, target: Target, victim: Victim) -> Assumptions:
        """Return the lengths and labels that the guess at a victim starts from."""
        return assume(target, victim, self.lengths)

    def batching_key(self, target: Target, victim: Victim) -> Hashable:
        """Return what victims must share to be optimised as one tensor."""
        return self.assumptions(target, victim).batching_key


@dataclass(frozen=True, kw_only=True)
class HybridSettings(DescentSettings):
    """The same, a start that is the best of many, and a last order; defaults are those of LAMP."""

    steps: int = setting(2_000, "steps of the descent, in all", least=1, paper="LAMP, section 5; GRAB, 5.1: a round")
    lr: float = setting(0.01, "learning rate", above=0, paper="LAMP, section 5; GRAB, section 5.1")
    decay: float = setting(0.89, "factor of the learning rate every 50 steps", least=0, paper="LAMP, appendix D")
    starts: int = setting(500, "random embeddings, of which the best is the start", least=1, paper="LAMP, section 5")
    permutations: int = setting(500, "permutations of it, of which the best is taken", least=1, paper="LAMP, section 5")
    polish: int = setting(
        0,
        "times at most that the words found are put in the nearest order of all swaps and moves of one token",
        least=0,
        paper="not in the paper",
    )

    def descent(self, steps: int) -> Descent:
        """Return the schedule of a descent of so many steps."""
        return Descent(
            steps=steps,
            lr=self.lr,
            optimizer=self.optimizer,
            decay=self.decay,
            linear=self.linear,
            clip=self.clip,
        )
