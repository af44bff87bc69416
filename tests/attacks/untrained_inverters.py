"""Inverters that have learnt nothing: quick to make, and all that the table of attacks needs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from conftest import TARGET_KINDS, small_target
from gradleak.inversion import InverterTrainer, PseudoText, Recipe
from gradleak.inverters.storage import save_inverter
from gradleak.priors import marginal_distribution


@functools.cache
def untrained_inverters() -> str:
    """Return a folder with an inverter for each kind of small target, for batches of two sentences."""
    folder = Path(tempfile.mkdtemp(prefix="gradleak-inverters-"))
    recipe = Recipe(tokens=8, shortest=4, sequences=2, hidden=(8,), reduction="hash", share=0.01, direct=False, chunk=4)
    for family, task in TARGET_KINDS:
        target = small_target(family, task)
        stream = PseudoText(target, marginal_distribution(target, ["the cat sat on a mat"]), recipe.shape)
        save_inverter(InverterTrainer.fresh(target, recipe, stream, 1).inverter, folder / f"{family}-{task}")
    return str(folder)
