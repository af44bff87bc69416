"""Apply several defenses in order, with the random stream and the memory that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory
from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.randomness import SystemStream, hashed_stream


def examples_needed(defenses: Iterable[Defense]) -> bool:
    """Return whether the defenses start from the update of each example (`defend_examples`) or of the batch (`defend`).

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
        updates: what the client would send for each example alone; iterated once.
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
    """Return what many clients, with one example each, send after all defenses; each is defended independently.

    Args:
        tensors: what they would send, by name `[clients, *shape]`.
        defenses: in order.
        generator: on any device; it draws other numbers than `defend` for one update after the other.
    """
    sent = dict(tensors)
    for defense in defenses:
        sent = defense.apply_each(sent, generator)
    return sent


def defense_stream(seed: int | None) -> torch.Generator:
    """Return the random stream of the defenses of a run.

    It is not seeded by `seed` itself: the attack's stream is, and its first guess would be the very numbers that were
    added to the update.

    Args:
        seed: an attacker who knows or guesses it can draw the same noise and subtract it; None for noise from the
            system's entropy, which nobody can repeat.
    """
    if seed is None:
        return SystemStream()
    return hashed_stream(f"defenses {seed}")


def _in_order(
    update: Update, defenses: Sequence[Defense], start: int, generator: torch.Generator, memory: Memory | None
) -> Update:
    for position, defense in enumerate(defenses, start):
        update = defense.apply(update, generator, _part(memory, position, defense))
    return update


def _part(memory: Memory | None, position: int, defense: Defense) -> Memory | None:
    """Return one defense's part of a client's memory; its position keeps equal defenses apart."""
    return None if memory is None else memory.setdefault(f"{position} {defense}", {})
