"""The Python interface: `attack` an update, `score` the reconstruction. Exported by `import gradleak`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradleak.attacks import Attack, find_attack
from gradleak.audit.scoring import score
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Knowledge, Listener, Reconstruction, Update
from gradleak.settings import settings_of
from gradleak.targets import Target

__all__ = ["attack", "score"]


def attack(  # noqa: PLR0913 - the public interface, by keyword
    name: str,
    target: Target,
    update: Update,
    knowledge: Knowledge | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    listener: Listener | None = None,
    budget: float | None = None,
    **settings: Any,  # noqa: ANN401 - every attack has other hyperparameters
) -> Reconstruction:
    """Reconstruct the private batch behind an update.

    Args:
        name: the attack, as `gradleak list attacks` names it.
        target: the model that the update was computed on.
        update: the client's update.
        knowledge: the attacker's further knowledge; none by default.
        preset: a named set of hyperparameters; `paper` follows the paper, `best` includes gradleak's additions.
            By default `best` if the attack has it, else `paper`.
        seed: seed of everything random in the attack.
        listener: called with a `Progress` at intervals.
        budget: seconds after which the best result so far is returned; None for the attack's own limit, if it has one.
        **settings: hyperparameters that differ from the preset's (`gradleak list attacks NAME` shows all).

    Raises:
        GradleakError: with one line that says which argument is wrong and why.
    """
    if budget is not None and not budget > 0:
        raise GradleakError(f"the budget must be above 0 seconds, not {budget:g}")
    kind = find_attack(name)
    if budget is not None and kind.has_setting("budget"):
        settings, budget = settings | {"budget": budget}, None
    built = _with_values(kind.with_settings(preset), settings)
    return built(target, update, knowledge, seed=seed, listener=listener, budget=budget)


def _with_values(attack: Attack, values: Mapping[str, Any]) -> Attack:
    """Return the attack with other values of hyperparameters, after checking their types."""
    known = settings_of(type(attack))
    for key, value in values.items():
        if key not in known:
            raise unknown_name(f"setting of {attack.name}", key, known)
        if not known[key].fits(value):
            raise GradleakError(f"setting {key} of {attack.name} is like {known[key].default!r}, not {value!r}")
    return replace(attack, **values)
