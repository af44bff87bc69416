"""Attacks and defenses of your own: modules that the command line imports before it does anything.

`GRADLEAK_PLUGINS=my_attack,my_defense gradleak attack … --attack mine` imports these modules, so that what they
register can be named; a study imports them in every worker, too. A module is found where Python finds it (see
PYTHONPATH), or else in the current folder: the driver's, wherever its workers run on the same machine.
"""

from __future__ import annotations

import importlib
import os
import sys

from gradleak.errors import GradleakError

VARIABLE = "GRADLEAK_PLUGINS"


def load_plugins(folder: str | None = None) -> None:
    """Import the modules that the environment names.

    Args:
        folder: where to look for what is found nowhere else; the current folder by default.
    """
    names = [name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip())]
    if not names:
        return
    place = os.path.abspath(folder or os.curdir)
    if place not in sys.path:  # an installed command, unlike `python -m`, does not look there
        sys.path.append(place)  # last: a file that happens to lie there takes no module's place
        importlib.invalidate_caches()
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module of somebody else's raises
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            raise GradleakError(f"{VARIABLE} names '{name}', which cannot be imported: {kind}{error}") from error
