from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import odd_attacks
import pytest
from study_tools import grid, records, rows, save_bert, save_texts, small_study, toml, write_study

import gradleak as gl
from gradleak.errors import GradleakError
from gradleak.studies import (
    Event,
    Executor,
    Failure,
    InProcess,
    Outcome,
    RunOptions,
    Store,
    Study,
    load_study,
    run_study,
)
from gradleak.studies.execution.driver import estimate
from gradleak.studies.execution.events import Failed, Finished, Planned, Started
from gradleak.studies.execution.lock import only_driver
from gradleak.studies.execution.worker import Job


class Scripted(Executor):
    """Answers jobs without doing them: a failure as often as its cell's seed says, then an outcome."""

    def __init__(self, slots: int = 1, hopeless: bool = False) -> None:
        self.slots = slots
        self.hopeless = hopeless
        self.jobs: deque[Job] = deque()
        self.seen: list[int] = []

    def submit(self, job: Job) -> None:
        assert len(self.jobs) < self.slots
        self.jobs.append(job)

    def wait(self, moved: Any) -> tuple[str, Outcome | Failure]:
        cell = self.jobs.popleft().cell
        self.seen.append(cell.seed)
        if self.seen.count(cell.seed) <= cell.seed:
            return cell.id, Failure("boom", self.hopeless)
        return cell.id, Outcome(seconds=2.0, version=gl.__version__, model_hash="abc", machine={})


@pytest.fixture
def seeds(tmp_path: Path) -> Study:
    """One cell per seed, and a seed is how often its cell fails."""
    return small_study(tmp_path, 2, seed=[0, 1, 2, 3, 4])


def test_a_cell_is_tried_three_times_and_never_stops_the_others(tmp_path: Path, seeds: Study) -> None:
    executor = Scripted()
    events: list[Event] = []
    summary = run_study(seeds, tmp_path / "my.db", executor=executor, listener=events.append)
    assert executor.seen == [0, 1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4]
    assert (summary.cells, summary.done, summary.fresh) == (5, 3, 3)
    assert [(failed.cell.seed, failed.error, failed.attempts) for failed in summary.failed] == [
        (3, "boom", 3),
        (4, "boom", 3),
    ]
    assert sorted(
        rows(tmp_path / "my.db", "SELECT json_extract(config, '$.seed'), status, attempts, error FROM cells")
    ) == [
        (0, "done", 1, None),
        (1, "done", 2, None),
        (2, "done", 3, None),
        (3, "failed", 3, "boom"),
        (4, "failed", 3, "boom"),
    ]
    assert [type(event) for event in events[:3]] == [Planned, Started, Finished]
    assert [event.for_good for event in events if isinstance(event, Failed)] == [False] * 7 + [True] * 2


def test_what_failed_for_good_is_tried_again_only_if_asked(tmp_path: Path, seeds: Study) -> None:
    run_study(seeds, tmp_path / "my.db", executor=Scripted())
    again = Scripted()
    summary = run_study(seeds, tmp_path / "my.db", executor=again)
    assert again.seen == []
    assert (summary.done, summary.fresh, len(summary.failed)) == (3, 0, 2)
    run_study(seeds, tmp_path / "my.db", executor=again, options=RunOptions(retry_failed=True))
    assert again.seen == [3, 4] * 3


def test_a_users_mistake_is_not_repeated_in_the_same_run(tmp_path: Path, seeds: Study) -> None:
    executor = Scripted(hopeless=True)
    summary = run_study(seeds, tmp_path / "my.db", executor=executor)
    assert executor.seen == [0, 1, 2, 3, 4]
    assert [failed.attempts for failed in summary.failed] == [1, 1, 1, 1]


def test_cells_that_failed_before_come_last(tmp_path: Path, seeds: Study) -> None:
    cells = seeds.cells()
    with Store(tmp_path / "my.db") as store:
        store.record_failure(cells[0], Failure("boom"), attempts=2)
        store.record_failure(cells[1], Failure("boom"), attempts=1)
    executor = Scripted(slots=2)
    run_study(seeds, tmp_path / "my.db", executor=executor)
    assert executor.seen[:5] == [2, 3, 4, 1, 0]


def test_an_edited_study_keeps_what_has_finished(tmp_path: Path, seeds: Study) -> None:
    run_study(replace(seeds, grids=(replace(seeds.grids[0], seed=(0,)),)), tmp_path / "my.db", executor=Scripted())
    executor = Scripted()
    events: list[Event] = []
    run_study(seeds, tmp_path / "my.db", executor=executor, listener=events.append)
    assert 0 not in executor.seen
    planned = events[0]
    assert isinstance(planned, Planned)
    assert (planned.cells, planned.done, planned.seconds_left) == (5, 1, 8.0)


def test_time_is_estimated_from_cells_of_the_same_attack(tmp_path: Path) -> None:
    dlg, tag = small_study(tmp_path, 2, attack=["dlg", "tag"]).cells()
    assert estimate([dlg, tag], {}) is None
    assert estimate([dlg, dlg, tag], {("attack", "dlg"): (1, 2.0), ("attack", "tag"): (5, 7.0)}) == 11.0
    assert estimate([tag], {("attack", "dlg"): (3, 2.0), ("utility", ""): (1, 50.0)}) == 2.0
    assert estimate([], {}) == 0.0


def test_a_second_driver_is_turned_away(tmp_path: Path, seeds: Study) -> None:
    with only_driver(tmp_path / "my.db"), pytest.raises(GradleakError, match="another run"):
        run_study(seeds, tmp_path / "my.db", executor=Scripted())


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, seeds: Study) -> None:
    with pytest.raises(GradleakError, match=r"my\.db cannot be written: there is no folder"):
        run_study(seeds, tmp_path / "none" / "my.db", executor=Scripted())


# --- in this process, for real ---------------------------------------------------------------------------------------


def test_records_are_what_attack_and_score_give(tmp_path: Path) -> None:
    study = small_study(tmp_path, 4, defense=[["noise:0.001"]], seed=7)
    run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    cell = study.cells()[1]
    target = gl.load_target(cell.target.name, 2, 7)
    texts = ["red mat", "the dog sat on a mat"]
    from gradleak.defenses import defend, defense_stream, parse_defense

    update = defend(gl.Client(target, seed=7).update(texts, [0, 1]), [parse_defense("noise:0.001")], defense_stream(7))
    knowledge = gl.Knowledge(labels=(0, 1), lengths=target.encode(texts).lengths)
    found = gl.attack("dlg", target, update, knowledge, seed=7, steps=3)
    scores = gl.score(found, texts)
    with Store(tmp_path / "my.db") as store:
        sentences = store.sentences(cell.id)
        (batch,) = store.batches(cell.id)
    assert (batch.returned, batch.exact, batch.surplus) == (scores.returned, scores.right, scores.surplus)
    assert (batch.batch, batch.returned, batch.unrepresentable) == (0, 2, 0)
    assert [sentence.reference for sentence in sentences] == texts
    for sentence, match, scored in zip(sentences, scores.matches, scores.sentences, strict=True):
        assert match is not None
        assert sentence.reconstruction == found.texts[match]
        assert sentence.loss == found.loss
        assert sentence.rouge1 == scored.rouge1
    assert rows(tmp_path / "my.db", "SELECT DISTINCT model_hash, version FROM cells") == [
        (target.fingerprint, gl.__version__)
    ]


def test_an_interrupted_run_continues_to_the_same_records(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    odd = {"name": "interrupt", "settings": {"marker": str(marker), "times": 1}}
    study = small_study(tmp_path, 4, attack=[{"name": "dlg", "settings": {"steps": 3}}, odd], batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    assert rows(tmp_path / "my.db", "SELECT count(*) FROM cells") == [(1,)]
    events: list[Event] = []
    run_study(study, tmp_path / "my.db", executor=InProcess("cpu"), listener=events.append)
    assert [type(event) for event in events] == [Planned, Started, Finished]
    run_study(study, tmp_path / "whole.db", executor=InProcess("cpu"))
    assert records(tmp_path / "my.db") == records(tmp_path / "whole.db")


def test_an_exploding_cell_is_recorded_with_its_error(tmp_path: Path) -> None:
    odd = {"name": "explode", "settings": {"marker": str(tmp_path / "marker"), "times": 9}}
    study = small_study(tmp_path, 4, attack=[odd, {"name": "dlg", "settings": {"steps": 3}}], batch_size=4)
    summary = run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    assert summary.done == 1
    ((error, attempts),) = rows(tmp_path / "my.db", "SELECT error, attempts FROM cells WHERE status = 'failed'")
    assert error.startswith("RuntimeError: boom (odd_attacks.py:")
    assert attempts == 3 == odd_attacks.count(str(tmp_path / "marker")) - 1


def test_an_attack_that_does_not_fit_says_why(tmp_path: Path) -> None:
    study = small_study(tmp_path, 2, target=[{"name": save_bert(tmp_path / "bert"), "task": "causal-lm"}])
    summary = run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    assert [failed.error for failed in summary.failed] == [
        "bert models are not supported for causal-lm; try classification"
    ]


def test_a_budget_ends_the_attacks_of_a_cell(tmp_path: Path) -> None:
    endless = {"name": "dlg", "settings": {"steps": 1_000_000, "budget": 0.3}}
    started = time.monotonic()
    summary = run_study(small_study(tmp_path, 2, attack=[endless]), tmp_path / "my.db", executor=InProcess("cpu"))
    assert summary.done == 1
    assert time.monotonic() - started < 30


def test_cells_of_different_models_and_seeds_keep_apart(tmp_path: Path) -> None:
    models = [save_bert(tmp_path / "one", 1), save_bert(tmp_path / "two", 2), save_bert(tmp_path / "three", 3)]
    texts = save_texts(tmp_path, 2)
    study = load_study(write_study(tmp_path, grid("", texts, target=models, seed=[0, 1])))
    run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    hashes = rows(tmp_path / "my.db", "SELECT DISTINCT model_hash FROM cells")
    assert len(hashes) == 3  # these checkpoints have a head, so that the seed adds nothing


def test_utility_is_recorded_too(tmp_path: Path) -> None:
    model, texts = save_bert(tmp_path / "bert"), save_texts(tmp_path, 8)
    keys = {
        "target": model,
        "train": {"name": texts, "take": "0:6"},
        "test": {"name": texts, "take": "6:8"},
        "defense": [[], ["noise:0.01"]],
        "epochs": 1,
        "batch_size": 2,
    }
    study = load_study(write_study(tmp_path, "[[utility]]", *(f"{key} = {toml(value)}" for key, value in keys.items())))
    events: list[Event] = []
    summary = run_study(study, tmp_path / "my.db", executor=InProcess("cpu"), listener=events.append)
    assert summary.failed == ()
    with Store(tmp_path / "my.db") as store:
        plain, noisy = (store.utility(cell.id) for cell in study.cells())
    assert plain is not None
    assert noisy is not None
    assert (plain.steps, plain.examples) == (noisy.steps, noisy.examples) == (3, 6)
    assert plain.loss != noisy.loss
    assert rows(tmp_path / "my.db", "SELECT DISTINCT kind FROM cells") == [("utility",)]


def test_a_dropout_rate_of_the_study_is_the_rate_of_its_cells(tmp_path: Path) -> None:
    study = small_study(tmp_path, 2, client=[{"dropout": True}, {"dropout": 0.1}, {"dropout": 0.6}])
    run_study(study, tmp_path / "my.db", executor=InProcess("cpu"))
    with Store(tmp_path / "my.db") as store:
        own, low, high = ([s.loss for s in store.sentences(cell.id)] for cell in study.cells())
    assert own == low  # 0.1 is the small model's own rate
    assert low != high
