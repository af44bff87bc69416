"""Several defenses in a row, and the random stream that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory
from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.randomness import SystemStream


def examples_needed(defenses: Iterable[Defense]) -> bool:
    """Tell whether the defenses start from the update of each example (`defend_examples`) or of the batch (`defend`).

    Raises:
        GradleakError: if a defense that needs the update of each example is not the first.
    """
    chosen = list(defenses)
    late = next((defense for defense in chosen[1:] if defense.per_example), None)
    if late is not None:
        raise GradleakError(f"defense {late.name} needs the update of each example: it must come first, and only once")
    return bool(chosen) and chosen[0].per_example


def defend(
    update: Update, defenses: Iterable[Defense], generator: torch.Generator, memory: Memory | None = None
) -> Update:
    """Return the update of a batch after all defenses, in the order given.

    Args:
        update: what the client would send.
        defenses: none of them may need the update of each example, see `examples_needed`.
        generator: the random stream, see `defense_stream`.
        memory: a dictionary that the client keeps over its rounds, empty at first; None to remember nothing.
    """
    chosen = list(defenses)
    if examples_needed(chosen):
        raise GradleakError(f"defense {chosen[0].name} needs the update of each example, not that of the batch")
    return _in_order(update, chosen, 0, generator, memory)


def defend_examples(
    updates: Iterable[Update], defenses: Sequence[Defense], generator: torch.Generator, memory: Memory | None = None
) -> Update:
    """Return the update of a batch after all defenses, of which the first needs the update of each example.

    Args:
        updates: what the client would send for each example alone; an iterator does.
        defenses: the first one `per_example`, the others not.
        generator: see `defend`, like `memory`.
        memory: see `defend`.
    """
    if not examples_needed(defenses):
        raise GradleakError("these defenses change the update of a batch, not those of its examples")
    first = defenses[0]
    update = first.apply_examples(updates, generator, _part(memory, 0, first))
    return _in_order(update, defenses[1:], 1, generator, memory)


def defend_each(
    tensors: Mapping[str, Tensor], defenses: Iterable[Defense], generator: torch.Generator
) -> dict[str, Tensor]:
    """Return what many clients with one example each send after all defenses, each as if it were alone.

    Args:
        tensors: what they would send, by name `[clients, *shape]`.
        defenses: in order.
        generator: on any device; the numbers drawn are others than those that `defend` would draw one by one.
    """
    sent = dict(tensors)
    for defense in defenses:
        sent = defense.apply_each(sent, generator)
    return sent


def defense_stream(seed: int | None) -> torch.Generator:
    """Return the random stream of the defenses of a run.

    Client and attack have streams made from the same seed; equal seeds would give the attack's first guess the very
    numbers that were added to the update.

    Args:
        seed: whoever knows or guesses it can draw the same noise and take it off again; None for noise from the
            system's entropy, which nobody can.
    """
    if seed is None:
        return SystemStream()
    digest = hashlib.sha256(f"defenses {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _in_order(
    update: Update, defenses: Sequence[Defense], start: int, generator: torch.Generator, memory: Memory | None
) -> Update:
    for position, defense in enumerate(defenses, start):
        update = defense.apply(update, generator, _part(memory, position, defense))
    return update


def _part(memory: Memory | None, position: int, defense: Defense) -> Memory | None:
    """Return the part of a client's memory that belongs to one defense: two of a kind must not share theirs."""
    return None if memory is None else memory.setdefault(f"{position} {defense}", {})
