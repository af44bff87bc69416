"""Plugins: attacks and defenses from outside the package, imported before any command, study or worker runs.

A plugin is a module that registers attacks or defenses when it is imported. It is found in two ways:

- An installed distribution declares it as an entry point of the group `gradleak.plugins`:
  `[project.entry-points."gradleak.plugins"]` with `mine = "my_package.attacks"`.
- The environment names modules: `GRADLEAK_PLUGINS=my_attack,my_defense`. A module is searched on Python's path (see
  PYTHONPATH), then in the current folder; workers on the same machine use the folder of their driver.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib import metadata

from gradleak.errors import GradleakError

VARIABLE = "GRADLEAK_PLUGINS"
GROUP = "gradleak.plugins"


def load_plugins(folder: str | None = None) -> None:
    """Import the plugins of installed distributions and those that the environment names; repeated calls are cheap.

    Args:
        folder: searched last for the modules that the environment names; the current folder by default.

    Raises:
        GradleakError: if a plugin cannot be imported.
    """
    for entry in _entry_points(tuple(sys.path)):
        owner = entry.dist.name if entry.dist else "?"
        remedy = "repair or uninstall that distribution"
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            raise GradleakError(f"{owner} has the plugin '{entry.value}', which {_reason(error)}; {remedy}") from error
    names = [name for part in os.environ.get(VARIABLE, "").split(",") if (name := part.strip())]
    if names:
        _add_to_path(os.path.abspath(folder or os.curdir))
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            raise GradleakError(f"{VARIABLE} names '{name}', which {_reason(error)}") from error


@cache
def _entry_points(path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Return the plugins of installed distributions; a scan of `path` takes about 10 ms."""
    return tuple(metadata.entry_points(group=GROUP))


def _add_to_path(folder: str) -> None:
    if folder not in sys.path:  # an installed command, unlike `python -m`, does not search the current folder
        sys.path.append(folder)  # last: a file there must not hide another module
        importlib.invalidate_caches()


def _reason(error: Exception | SystemExit) -> str:
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"cannot be imported: {kind}{error}"
