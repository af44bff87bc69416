"""Base of all attacks, and their registry: an attack maps Target, Update and Knowledge to a Reconstruction."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import (
    Deadline,
    Finding,
    Knowledge,
    Listener,
    Reconstruction,
    Reporter,
    Update,
    Victim,
    group_by_key,
)
from gradleak.exchange.verdict import Verdict, verdict_on
from gradleak.leakage.first_step import as_gradient
from gradleak.matching import free_bytes
from gradleak.settings import check_settings, settings_of
from gradleak.targets import Target
from gradleak.version import __version__

NEEDS: dict[str, Callable[[Target, Update], bool]] = {
    "word-embedding gradients": lambda target, update: target.word_parameters <= update.tensors.keys(),
    "attention gradients": lambda target, update: (
        bool(target.layers) and target.layers[0].query.weight in update.tensors
    ),
    "classifier gradients": lambda target, update: target.classifier_weight in update.tensors,
    "gradients of layers": lambda target, update: bool(update.tensors.keys() - target.embedding_parameters),
}
"""What an attack may need of an update, and the test whether an update has it."""

OUT_OF_TIME = "the time was up before the attack had ended; a larger --budget may find more"


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Base of all attacks. A subclass declares its settings as fields and writes `run`.

    Attributes:
        name: the name that users give.
        paper: the publication.
        needs: what the update must hold, keys of `NEEDS`.
        assumes: what the paper assumes the attacker to know.
        classifiers_only: whether language models are refused.
        presets: named settings. `paper` does what the paper does; `best`, where there is one, adds what gradleak adds
            and is then the default. An attack of gradleak's own needs no `paper`.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    assumes: ClassVar[tuple[str, ...]] = ()
    classifiers_only: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Attack victims whose updates show the same parameters and whose batches are of one size."""

    @classmethod
    def has_setting(cls, name: str) -> bool:
        """Return whether the attack has a setting of that name."""
        return name in settings_of(cls)

    @classmethod
    def default_preset(cls) -> str:
        """Return the preset that is taken where none is named: `best` if the attack has one, else `paper`."""
        return "best" if "best" in cls.presets else "paper"

    @classmethod
    def with_settings(cls, preset: str | None = None, settings: Mapping[str, str] | None = None) -> Self:
        """Build the attack from a preset and settings given as text, as the command line has them."""
        preset = cls.default_preset() if preset is None else preset
        if preset not in cls.presets:
            raise unknown_name(f"preset of {cls.name}", preset, cls.presets)
        known = settings_of(cls)
        chosen = dict(cls.presets[preset])
        for key, text in (settings or {}).items():
            if key not in known:
                raise unknown_name(f"setting of {cls.name}", key, known)
            chosen[key] = known[key].parse(text)
        return cls(**chosen)

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader must know of these settings; shown in the overview and in a result's notes."""
        return ()

    def __call__(
        self,
        target: Target,
        update: Update,
        knowledge: Knowledge | None = None,
        *,
        seed: int = 0,
        listener: Listener | None = None,
        budget: float | None = None,
    ) -> Reconstruction:
        """Reconstruct the private batch behind one update, in `budget` seconds if given."""
        known = knowledge or Knowledge()
        return self.many(target, [update], [known], seed=seed, listener=listener, budget=budget)[0]

    def many(
        self,
        target: Target,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        *,
        seed: int = 0,
        listener: Listener | None = None,
        budget: float | None = None,
    ) -> list[Reconstruction]:
        """Reconstruct the private batches behind several updates, side by side where they are compatible.

        Each update has its own random stream, made from the seed: up to rounding, its result does not depend on which
        others are attacked with it.

        Args:
            target: the model.
            updates: what the clients sent.
            knowledge: what the attacker is told of each.
            seed: seed of everything random in the attack.
            listener: called with a `Progress` from time to time.
            budget: seconds for each update, after which the best found so far is returned; updates attacked side by
                side share the sum. None for no limit.
        """
        for update, known in zip(updates, knowledge, strict=True):
            self.check(target, update, known)
        found: dict[int, Reconstruction] = {}
        drawn = (
            Victim(update.gradient(), known, _stream(seed), update.protocol)
            for update, known in zip(updates, knowledge, strict=True)
        )
        victims = dict(enumerate(drawn))
        groups = self._groups(target, updates, victims)
        if budget is not None and not self._side_by_side(target):
            groups = [[number] for members in groups for number in members]
        for members in groups:
            group = [replace(victims.pop(n), gradient=_ordered(target, updates[n])) for n in members]
            deadline = Deadline(None if budget is None else budget * len(members))
            started = time.perf_counter()
            findings = self.run(target, group, Reporter(listener, deadline=deadline))
            if deadline.hit:
                findings = [f if f.verified else replace(f, notes=(*f.notes, OUT_OF_TIME)) for f in findings]
            seconds = (time.perf_counter() - started) / len(members)
            for number, finding in zip(members, findings, strict=True):
                verdict = verdict_on(self.name, finding, knowledge[number], out_of_time=deadline.hit)
                found[number] = self._reconstruction(target, finding, verdict, seed, seconds)
        return [found[number] for number in range(len(updates))]

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        if self.classifiers_only and target.task != "classification":
            raise GradleakError(f"{self.name} attacks classifiers; {target.name} is a {target.task} model")
        for need in self.needs:
            if not NEEDS[need](target, update):
                why = "this update is one of adapters" if target.adapter else "this update has none (see --embeddings)"
                raise GradleakError(f"{self.name} needs {need}; {why}")
        update.check(target)
        if not any(bool(tensor.any()) for tensor in update.tensors.values()):
            raise GradleakError("the update is zero throughout: it holds nothing to read")
        longest = () if knowledge.longest is None else (knowledge.longest,)
        for length in (*(knowledge.lengths or ()), *longest):
            if not target.min_length <= length <= target.max_length:
                raise GradleakError(f"a length of {length} tokens is not possible for {target.name}")
        for label in knowledge.labels or ():
            if target.task == "classification" and not 0 <= label < target.num_labels:
                raise GradleakError(f"label {label} is not one of {target.num_labels} (0 to num_labels − 1)")

    def applies(self, target: Target, update: Update, knowledge: Knowledge) -> bool:
        """Return whether the attack can work on this update; `check` says why it cannot."""
        try:
            self.check(target, update, knowledge)
        except GradleakError:
            return False
        return True

    def batching_key(self, target: Target, victim: Victim) -> Hashable:
        """Return what victims must share to be attacked together, beside what they sent and what is known of them."""
        return victim.knowledge.longest

    def _groups(self, target: Target, updates: Sequence[Update], victims: Mapping[int, Victim]) -> list[list[int]]:
        """Group victims that can be attacked together: alike tensors and knowledge, and memory for all of them."""

        def key(victim: Victim) -> Hashable:
            known = victim.knowledge
            told = (known.sequences, known.labels is None, known.lengths is None, known.longest is None, known.dropout)
            own = self.batching_key(target, victim)
            return frozenset(victim.gradient), told, known.defenses, own, _size_class(target, known)

        size = max((update.num_values for update in updates), default=1) * target.word_embeddings.element_size()
        # Twice, because the engine stacks the gradients; at most a third, because candidates need memory, too.
        most = max(1, int(free_bytes(target.device) / 3 / (2 * size)))
        return group_by_key(map(key, victims.values()), most)

    def _side_by_side(self, target: Target) -> bool:
        """Whether victims share the time; else they are attacked one by one, each with its own budget."""
        return True

    def _reconstruction(
        self, target: Target, finding: Finding, verdict: Verdict, seed: int, seconds: float
    ) -> Reconstruction:
        return Reconstruction(
            token_ids=tuple(tuple(ids) for ids in finding.token_ids),
            texts=tuple(target.decode(ids) for ids in finding.token_ids),
            labels=None if finding.labels is None else tuple(finding.labels),
            loss=finding.loss,
            seconds=seconds,
            attack=self.name,
            settings=asdict(self),
            seed=seed,
            version=__version__,
            model_hash=target.fingerprint,
            history=finding.history,
            notes=(*self.remarks(), *finding.notes),
            verified=finding.verified,
            complete=finding.complete,
            labels_verified=finding.labels_verified,
            copies=finding.copies or (1,) * len(finding.token_ids),
            verdict=verdict.meaning,
            not_tested=verdict.not_tested,
            next_steps=verdict.next_steps,
            tokenizer=target.tokenizer,
        )


ATTACKS: dict[str, type[Attack]] = {}


def register(attack: type[Attack]) -> type[Attack]:
    """Class decorator: make an attack known by its name."""
    ATTACKS[attack.name] = attack
    return attack


def find_attack(name: str) -> type[Attack]:
    """Return the attack of that name."""
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS)
    return ATTACKS[name]


def _size_class(target: Target, known: Knowledge) -> int:
    """Return a number that batches of similar length share.

    Victims attacked together are padded to the longest. Padding is expensive on a CPU, small groups are on a GPU.
    """
    longest = max(known.lengths) if known.lengths is not None else known.longest
    if target.device.type != "cpu" or longest is None:
        return 0
    return -(-longest // 8)


def _stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ordered(target: Target, update: Update) -> dict[str, Tensor]:
    """Return the gradient in the order of the target's parameters, so that sums round alike for every file."""
    gradient = as_gradient(target, update.to(target.device, target.dtype))
    return {name: gradient[name] for name in target.parameters if name in gradient}
