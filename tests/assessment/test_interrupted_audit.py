"""An audit that is killed, whenever that is, ends with the report of one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import dictionary_attack
import pytest
from audit_tools import options, steady

from gradleak.cli import main

sys.path.append(str(Path(__file__).parents[1] / "studies"))
from study_tools import done, in_background, until

SLOWLY = ("--set", "seconds=0.15")


@pytest.fixture(autouse=True)
def _attack_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dictionary_attack.Dictionary.name == "dictionary"
    monkeypatch.setenv("GRADLEAK_PLUGINS", "dictionary_attack")
    monkeypatch.syspath_prepend(Path(__file__).parent)


def record_of(folder: Path) -> Any:
    record = steady(json.loads((folder / "audit" / "audit.json").read_text(encoding="utf-8")))
    record["measured"].pop("commands")
    return record


def audit_in(folder: Path, data: Path) -> list[str]:
    arguments = options(data, *SLOWLY)
    arguments[arguments.index("--output") + 1] = str(folder / "audit")
    return arguments


@pytest.mark.slow
def test_five_kills_at_random_give_the_same_report(tmp_path: Path) -> None:
    chance = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert main(audit_in(whole, tmp_path)) == 0
    store = killed / "audit" / "study.db"
    for _ in range(5):
        run = in_background(main, audit_in(killed, tmp_path), output=tmp_path / "output")
        goal = done(store) + chance.randint(1, 6)
        until(lambda goal=goal, run=run: done(store) >= goal or not run.is_alive(), "some cells are done")
        time.sleep(chance.uniform(0, 0.2))
        os.kill(run.pid, signal.SIGKILL)
        run.join()
    assert not (killed / "audit" / "audit.json").exists()
    assert main(audit_in(killed, tmp_path)) == 0
    assert record_of(killed) == record_of(whole)
    page, other = ((folder / "audit" / "report.html").read_text(encoding="utf-8") for folder in (whole, killed))
    assert abs(len(page) - len(other)) < 200  # seconds and the folder's name differ


def test_interrupt_draws_what_is_finished_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradleak.assessment.sweep import Sweep

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "_find_ends", _interrupt)
        assert main(options(tmp_path)) == 130
    partly = record_of(tmp_path)
    assert not partly["finished"]
    assert "interrupted" in partly["notices"][0]
    assert partly["recommendation"] is None
    assert main(options(tmp_path)) == 0
    assert record_of(tmp_path)["finished"]


def _interrupt(_: object, **__: object) -> None:
    raise KeyboardInterrupt
