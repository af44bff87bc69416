"""The two verbs of the Python interface: attack an update, score what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradleak.attacks import Attack, find_attack
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Knowledge, Listener, Reconstruction, Update
from gradleak.metrics import Alignment, BatchScores, Scoring, score_tokens
from gradleak.settings import settings_of
from gradleak.targets import Target


def attack(
    name: str,
    target: Target,
    update: Update,
    knowledge: Knowledge | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    listener: Listener | None = None,
    budget: float | None = None,
    **settings: Any,  # noqa: ANN401 - each attack has hyperparameters of its own
) -> Reconstruction:
    """Reconstruct the private batch behind an update.

    Args:
        name: the attack, as `gradleak list attacks` names it.
        target: the model that the update was computed on.
        update: what the client sent.
        knowledge: what the attacker is told besides; nothing by default.
        preset: a named set of hyperparameters; `paper` does what the paper does, `best` what gradleak adds to it.
            By default `best` if the attack has it, else `paper`.
        seed: seed of everything random in the attack.
        listener: called with a `Progress` now and then.
        budget: seconds after which the best found so far is returned; None for the attack's own limit, if it has one.
        **settings: hyperparameters that differ from the preset's.

    Raises:
        GradleakError: with one line on what does not fit.
    """
    if budget is not None and not budget > 0:
        raise GradleakError(f"the budget must be above 0 seconds, not {budget:g}")
    kind = find_attack(name)
    if budget is not None and kind.has_setting("budget"):
        settings, budget = settings | {"budget": budget}, None
    built = _with_values(kind.with_settings(preset), settings)
    return built(target, update, knowledge, seed=seed, listener=listener, budget=budget)


def score(
    reconstruction: Reconstruction,
    references: Sequence[str],
    *,
    alignment: Alignment = "assignment",
    scoring: Scoring = "plain",
) -> BatchScores:
    """Score a reconstruction against the private texts, from 0 (nothing recovered) to 100 (docs/scores.md).

    Args:
        reconstruction: what an attack found.
        references: the private texts, in any order.
        alignment: `assignment` uses each reconstruction as often as it was found; `best` as often as it fits best.
        scoring: `plain`, or `lamp` for ROUGE as LAMP's published code counts it.

    Raises:
        GradleakError: if there is nothing to score against.
    """
    if isinstance(references, str):
        raise GradleakError("references must be a list of strings, not one string")
    if reconstruction.tokenizer is None:
        raise GradleakError("this reconstruction has no tokenizer to score with; set its field 'tokenizer'")
    rows = reconstruction.tokenizer(list(references))["input_ids"] if references else []
    return score_tokens(
        reconstruction.token_ids,
        rows,
        reconstruction.tokenizer,
        texts=references,
        copies=reconstruction.copies,
        alignment=alignment,
        scoring=scoring,
    )


def _with_values(attack: Attack, values: Mapping[str, Any]) -> Attack:
    """Return the attack with other hyperparameters, each of its setting's type."""
    known = settings_of(type(attack))
    for key, value in values.items():
        if key not in known:
            raise unknown_name(f"setting of {attack.name}", key, known)
        if not known[key].fits(value):
            raise GradleakError(f"setting {key} of {attack.name} is like {known[key].default!r}, not {value!r}")
    return replace(attack, **values)
