"""Errors that a user can mend, each told in one clear line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradleakError(ValueError):
    """A mistake that the user can mend; the command line prints it and exits with code 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> GradleakError:
    """Return the error for a name that is not in `known`, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = next((n for n in names if near and n.lower() == near[0]), None)
    suggestion = f"did you mean '{hint}'?" if hint else f"known: {', '.join(names) or 'none'}"
    return GradleakError(f"unknown {kind} '{name}'; {suggestion}")


def missing_extra(package: str, extra: str, purpose: str) -> GradleakError:
    """Return the error for an optional package that `purpose` needs and that is not installed."""
    return GradleakError(f"{purpose} needs {package}: pip install 'gradleak[{extra}]'")
