"""Cells in worker processes and on Ray: the same records, whatever happens to a worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_tools import children, records, rows, small_study

from gradleak.cli.interrupts import interrupt_code, terminable
from gradleak.errors import GradleakError
from gradleak.studies import Event, Executor, InProcess, Processes, RayCluster, Study, Summary, run_study
from gradleak.studies.execution import executors
from gradleak.studies.execution.events import Moved
from gradleak.studies.execution.executors import Worker


@pytest.fixture(scope="module", autouse=True)
def _odd_attacks_everywhere() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADLEAK_PLUGINS", "odd_attacks")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # for Ray's workers
        yield


def odd_study(folder: Path, *more: dict[str, Any]) -> Study:
    """Six cells that are in order, one that explodes, one that ends its first worker, and more odd attacks."""
    folder.mkdir()
    odd = [
        {"name": "explode", "settings": {"marker": str(folder / "explode"), "times": 9}},
        {"name": "die", "settings": {"marker": str(folder / "die"), "times": 1}},
        *more,
    ]
    fine = [{"name": name, "settings": {"steps": 3}} for name in ("dlg", "tag")]
    study = small_study(folder, 6, attack=fine, batch_size=2)
    return Study(name="odd", grids=(study.grids[0], small_study(folder, 6, attack=odd, batch_size=6).grids[0]))


def errors(summary: Summary) -> list[str]:
    return sorted(failed.error for failed in summary.failed)


class Ran:
    """A study that has run, and what it told."""

    started = 0

    def __init__(self, folder: Path, executor: Executor, study: Study) -> None:
        self.path = folder / "my.db"
        self.study = study
        self.events: list[Event] = []
        self.summary = run_study(self.study, self.path, executor=executor, listener=self.events.append)


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Cells that are in order, run by a worker process that imports everything anew."""
    folder = tmp_path_factory.mktemp("spawned")
    healthy = small_study(folder, 6, attack=[{"name": "explode", "settings": {"times": 0}}], batch_size=6)
    study = odd_study(folder / "study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "_cores", lambda: 1)  # several threads would only wait for each other
        return Ran(folder, Processes(1, "cpu"), Study(name="fine", grids=(*fine(study).grids, *healthy.grids)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The odd study, run by two worker processes, of which the first dies before it is ready.

    They are copies of this process: what becomes of dead workers does not depend on how they start, which takes seconds
    with all the imports.
    """
    started = []
    serve, contexts = executors._serve, multiprocessing.get_context

    def start(*arguments: object) -> Worker:
        with pytest.MonkeyPatch.context() as first:
            first.setattr(executors, "_serve", serve if started else die_at_the_start)
            started.append(Worker(*arguments))  # type: ignore[arg-type]
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda kind: contexts("fork"))
        patch.setattr(executors, "Worker", start)
        folder = tmp_path_factory.mktemp("workers")
        ran = Ran(folder, Processes(2, "cpu"), odd_study(folder / "study"))
    ran.started = len(started)
    return ran


def die_at_the_start(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fine(study: Study) -> Study:
    return Study(name="fine", grids=study.grids[:1])


def assert_same_records(path: Path, study: Study, folder: Path) -> None:
    """The cells that are in order gave what they give in this process, one by one."""
    run_study(fine(study), folder / "here.db", executor=InProcess("cpu"))
    here, there = records(folder / "here.db"), records(path)
    ids = {cell.id for cell in fine(study).cells()}
    assert here["cells"] == [row for row in there["cells"] if row[0] in ids]
    assert here["sentences"] == [row for row in there["sentences"] if row[0] in ids]
    assert len(here["cells"]) == 6
    assert len(here["sentences"]) == 12


def test_a_worker_process_loads_the_plugins(spawned: Ran) -> None:
    assert (spawned.summary.done, spawned.summary.failed) == (7, ())


def test_workers_tell_how_far_they_are(spawned: Ran) -> None:
    assert {event.cell.pace[1] for event in spawned.events if isinstance(event, Moved)} == {"dlg", "tag"}


@pytest.mark.parametrize("workers", ["spawned", "ran"])
def test_worker_processes_give_the_same_records(workers: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ran: Ran = request.getfixturevalue(workers)
    assert_same_records(ran.path, ran.study, tmp_path)


def test_no_worker_is_left_behind(spawned: Ran, ran: Ran) -> None:
    assert children(os.getpid()) == []
    assert multiprocessing.active_children() == []


def test_a_dead_worker_is_replaced_and_its_cell_tried_again(ran: Ran) -> None:
    assert ran.summary.done == 7
    query = "SELECT status, attempts FROM cells WHERE json_extract(config, '$.attack.name') = 'die'"
    assert rows(ran.path, query) == [("done", 2)]


def test_a_cell_that_fails_in_a_worker_is_recorded_with_its_error(ran: Ran) -> None:
    (exploded,) = errors(ran.summary)
    assert exploded.startswith("RuntimeError: boom (odd_attacks.py:")


def test_a_worker_that_dies_at_the_start_costs_its_cell_no_attempt(ran: Ran) -> None:
    # Two, one in place of the first, and, if there is work left by then, one in place of the one that a cell ended.
    assert ran.started in (3, 4)
    query = "SELECT DISTINCT attempts FROM cells WHERE json_extract(config, '$.attack.name') IN ('dlg', 'tag')"
    assert rows(ran.path, query) == [(1,)]


def test_workers_that_never_start_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: object) -> Worker:
        worker = Worker(*arguments)  # type: ignore[arg-type]
        worker.process.kill()
        return worker

    monkeypatch.setattr(executors, "Worker", start)
    with pytest.raises(GradleakError, match="they all die at the start, by signal SIGKILL"):
        run_study(small_study(tmp_path, 4), tmp_path / "my.db", executor=Processes(2, "cpu"))


def deadly(folder: Path) -> dict[str, Any]:
    return {"name": "die", "settings": {"marker": str(folder / "always"), "times": 9}}


@pytest.mark.slow
def test_a_cell_that_always_ends_its_worker_is_given_up(tmp_path: Path) -> None:
    ran = Ran(tmp_path, Processes(1, "cpu"), odd_study(tmp_path / "study", deadly(tmp_path)))
    assert ran.summary.done == 7
    assert errors(ran.summary)[1] == "the worker process died with exit code 3"
    assert sorted(failed.attempts for failed in ran.summary.failed) == [3, 3]


@pytest.mark.slow
def test_a_ray_cluster_of_two_workers_gives_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    ran = Ran(tmp_path, RayCluster("local", "cpu", cores=2), odd_study(tmp_path / "study", deadly(tmp_path)))
    assert_same_records(ran.path, ran.study, tmp_path)
    assert ran.summary.done == 7
    died, exploded = sorted(errors(ran.summary), key=lambda error: "boom" in error)
    assert exploded.startswith("RuntimeError: boom (odd_attacks.py:")
    assert died.startswith("the Ray worker died")


def test_a_ray_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(GradleakError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        Ran(tmp_path, RayCluster("127.0.0.1:1"), odd_study(tmp_path / "study"))


class TerminatedRay:
    """Ray as it starts: with a handler of its own for SIGTERM, which arrives at that moment."""

    ended = False

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    def shutdown(self) -> None:
        self.ended = True


def test_a_sigterm_while_ray_starts_ends_the_driver_as_at_any_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = TerminatedRay()
    monkeypatch.setattr("gradleak.studies.execution.ray_cluster._import_ray", lambda: ray)
    with terminable():
        with pytest.raises(KeyboardInterrupt), RayCluster():
            pass
        assert interrupt_code() == 143
    assert ray.ended


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(__import__("sys").modules, "ray", missing)
    with pytest.raises(GradleakError, match=r"needs Ray: pip install 'gradleak\[ray\]'"):
        RayCluster("local")
