"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import gradleak

SOURCE = Path(gradleak.__file__).parent


def classes() -> dict[str, list[str]]:
    """Return where each class name is defined; an underscore before it makes no other name."""
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    return found


def test_no_class_name_exists_twice() -> None:
    assert {name: places for name, places in classes().items() if len(places) > 1} == {}


def test_every_module_says_what_is_in_it() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_attacks_holds_attacks_and_their_base_alone() -> None:
    flat = {path.stem for path in (SOURCE / "attacks").glob("*.py")} - {"__init__", "base"}
    registered = {kind.__module__.split(".")[2] for kind in gradleak.ATTACKS.values() if _is_ours(kind)}
    assert flat <= registered


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("gradleak.")
