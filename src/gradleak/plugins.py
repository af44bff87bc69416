"""Attacks and defenses of your own: modules that the command line imports before it does anything.

`GRADLEAK_PLUGINS=my_attack,my_defense gradleak attack … --attack mine` imports these modules, so that what they
register can be named; a study imports them in every worker, too. They must be importable there (see PYTHONPATH).
"""

from __future__ import annotations

import importlib
import os

from gradleak.errors import GradleakError

VARIABLE = "GRADLEAK_PLUGINS"


def load_plugins() -> None:
    """Import the modules that the environment names."""
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise GradleakError(f"{VARIABLE} names '{name}', which cannot be imported: {error}") from error
