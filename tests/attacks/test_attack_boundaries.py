"""An attack sees only Target, Update and Knowledge, whatever process it runs in."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradleak
from conftest import small_target
from gradleak.attacks import Dlg
from gradleak.exchange import Knowledge, Reconstruction, Update
from gradleak.federation import Client
from gradleak.targets import load_target

PACKAGE = Path(str(gradleak.__file__)).parent
FORBIDDEN = {"federation", "data", "defenses", "studies", "cli", "metrics"}
TEXTS = ["the cat sat on a mat", "dog ran"]


def rooms_imported_by(room: str) -> set[str]:
    """Return the rooms of gradleak that any file of a room imports, at the top or inside a function."""
    found = set()
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative imports would escape this test"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("gradleak.")}
    return found - {room}


def test_attacks_import_nothing_that_knows_the_private_batch() -> None:
    seen: set[str] = set()
    waiting = {"attacks"}
    while waiting:
        room = waiting.pop()
        seen.add(room)
        waiting |= {name for name in rooms_imported_by(room) if (PACKAGE / name).is_dir()} - seen
    assert {"matching", "exchange", "targets"} <= seen
    assert not seen & FORBIDDEN


@pytest.mark.parametrize("word", ["__import__", "import_module", "gradleak.federation", "gradleak.data"])
def test_attacks_import_nothing_by_another_way(word: str) -> None:
    assert not [path for path in (PACKAGE / "attacks").rglob("*.py") if word in path.read_text()]


def told(result: Reconstruction) -> dict[str, object]:
    fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    del fields["seconds"], fields["tokenizer"]
    fields["history"] = [dataclasses.astuple(snapshot) for snapshot in result.history]
    return json.loads(json.dumps(fields))


SCRIPT = """
import dataclasses, json, sys, torch
torch.set_num_threads(int(sys.argv[3]))
from gradleak.attacks import Dlg
from gradleak.exchange import Knowledge, Update
from gradleak.targets import load_target
known = Knowledge(labels=[1, 0], lengths=[8, 4])
result = Dlg(steps=12)(load_target(sys.argv[1]), Update.load(sys.argv[2]), known, seed=3)
fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
del fields["seconds"], fields["tokenizer"]
fields["history"] = [dataclasses.astuple(snapshot) for snapshot in result.history]
modules = sorted(name for name in sys.modules if name.startswith("gradleak."))
print(json.dumps([fields, modules]))
"""


@pytest.mark.slow
def test_attack_gives_same_result_from_saved_update_in_another_process(tmp_path: Path) -> None:
    original = small_target("bert")
    original.model.save_pretrained(tmp_path / "model")
    original.tokenizer.save_pretrained(tmp_path / "model")
    target = load_target(str(tmp_path / "model"))
    update = Client(target).update(TEXTS, [1, 0])
    update.save(tmp_path / "update.safetensors")
    known = Knowledge(labels=[1, 0], lengths=target.encode(TEXTS).lengths)
    expected = told(Dlg(steps=12)(target, update, known, seed=3))
    again = told(Dlg(steps=12)(target, Update.load(tmp_path / "update.safetensors"), known, seed=3))
    assert again == expected
    arguments = [str(tmp_path / "model"), str(tmp_path / "update.safetensors"), str(torch.get_num_threads())]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    found, modules = json.loads(done.stdout)
    assert found == expected
    assert not [name for name in modules if name.split(".")[1] in FORBIDDEN]
