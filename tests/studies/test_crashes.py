"""Whatever is killed, the file holds whole cells, and the next run continues there."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import odd_attacks
import pytest
from study_tools import alive, children, done, in_background, records, rows, small_study, until

from gradleak.cli import main
from gradleak.studies import InProcess, Processes, RunOptions, Study, run_study

SLOW = {"name": "explode", "settings": {"seconds": 0.4}}  # the odd attack that is in order unless told otherwise


@pytest.fixture(autouse=True)
def _odd_attacks_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert odd_attacks.Explode.name == SLOW["name"]
    monkeypatch.setenv("GRADLEAK_PLUGINS", "odd_attacks")
    monkeypatch.syspath_prepend(Path(__file__).parent)


def drive(study: Study, path: Path, workers: int, wait: bool = False) -> None:
    executor = Processes(workers, "cpu") if workers else InProcess("cpu")
    run_study(study, path, executor=executor, options=RunOptions(wait=wait))


def kill(pids: list[int], chance: random.Random) -> None:
    if pids:
        os.kill(chance.choice(pids), signal.SIGKILL)


def kill_at_random(driver: Any, path: Path, chance: random.Random) -> None:
    """Kill a worker and then the driver: while they start, or after some more cells, at any moment of a cell."""
    if chance.random() < 0.2:
        until(lambda: children(driver.pid), "a worker starts")
    else:
        goal = done(path) + chance.randint(1, 3)
        until(lambda: done(path) >= goal or not driver.is_alive(), "some cells are done")
    time.sleep(chance.uniform(0, 0.3))
    kill(children(driver.pid), chance)
    time.sleep(chance.uniform(0, 0.3))
    workers = children(driver.pid)
    os.kill(driver.pid, signal.SIGKILL)
    driver.join()
    until(lambda: not any(map(alive, workers)), "the workers of a dead driver end")  # once they have imported all


@pytest.mark.slow
def test_twenty_crashes_end_with_the_records_of_an_uninterrupted_run(tmp_path: Path) -> None:
    chance = random.Random(0)
    attacks = [{"name": "dlg", "settings": {"steps": 3}}, SLOW]
    study = small_study(tmp_path, 8, attack=attacks, defense=[[], "noise:0.01"], seed=list(range(6)))
    path = tmp_path / "my.db"
    for number in range(20):
        driver = in_background(drive, study, path, 2, output=tmp_path / f"{number}.txt")
        kill_at_random(driver, path, chance)
        if path.exists():
            assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert done(path) > 0
    drive(study, path, 2)
    drive(study, tmp_path / "whole.db", 0)
    assert records(path) == records(tmp_path / "whole.db")
    assert done(path) == len(study.cells()) == 96


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize(
    "where",
    [
        [],
        pytest.param(["--workers", "2"], marks=pytest.mark.slow),
        pytest.param(["--ray", "local"], marks=pytest.mark.slow),
    ],
    ids=lambda where: " ".join(where) or "here",
)
def test_an_interrupt_ends_at_once_and_the_next_run_continues(
    tmp_path: Path, where: list[str], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_study(tmp_path, 8, attack=[SLOW], seed=[0, 1])  # 8 cells
    path = tmp_path / "small.db"
    command = ["study", "run", str(tmp_path / "small.toml"), "-o", str(path), "--device", "cpu"]
    if "--ray" in where:
        pytest.importorskip("ray")
    driver = in_background(main, [*command, *where], output=tmp_path / "out")
    until(lambda: done(path) > 0, "a cell is done")
    helpers = children(driver.pid)
    if number == signal.SIGINT:
        os.killpg(driver.pid, number)  # the terminal sends it to the whole group
    else:
        os.kill(driver.pid, number)
    driver.join(30)
    assert driver.exitcode == 128 + number
    until(lambda: not any(map(alive, helpers)), "no worker is left behind")
    assert not path.with_name("small.db.lock").exists()
    assert not path.with_name("small.db-wal").exists()
    output = (tmp_path / "out").read_text()
    finished = done(path)
    assert 0 < finished < 8
    assert f"interrupted: {finished} of 8 cells are done; run it again to continue" in output
    assert f"gradleak: {'interrupted' if number == signal.SIGINT else 'terminated'}" in output
    assert "Traceback" not in output
    monkeypatch.setattr(odd_attacks, "sleep", lambda seconds: None)  # the first run was slow enough to be stopped
    assert main([*command, "--quiet"]) == 0
    drive(_loaded(tmp_path), tmp_path / "whole.db", 0)
    for store in (path, tmp_path / "whole.db"):
        assert rows(store, "SELECT config, error FROM cells WHERE status != 'done'") == []
    assert records(path) == records(tmp_path / "whole.db")


def test_a_waiting_driver_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    study = small_study(tmp_path, 6, attack=[SLOW])  # 3 cells
    path = tmp_path / "my.db"
    first = in_background(drive, study, path, 0, output=tmp_path / "first")
    until(lambda: done(path) > 0, "a cell is done")
    second = in_background(drive, study, path, 0, True, output=tmp_path / "second")
    time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    second.join(60)
    assert second.exitcode == 0
    assert done(path) == 3


def _loaded(folder: Path) -> Study:
    from gradleak.studies import load_study

    return load_study(folder / "small.toml")
