from __future__ import annotations

import io
import json
from pathlib import Path

import odd_attacks
import pytest
from rich.console import Console
from study_tools import grid, rows, save_bert, save_texts, small_study, write_study

from gradleak.cli import main
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.study_board import LiveBoard
from gradleak.studies import InProcess, load_study, run_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A study of two cells, one for each attack, in the current folder."""
    monkeypatch.chdir(tmp_path)
    small_study(tmp_path, 2, attack=[{"name": name, "settings": {"steps": 3}} for name in ("dlg", "tag")])
    return "small.toml"


def run(*arguments: str) -> int:
    return main(["study", "run", *arguments, "--device", "cpu"])


def test_a_run_shows_plan_progress_and_what_to_do_next(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study) == 0
    out = capsys.readouterr().out
    assert "2 cells, 0 done, time left unknown" in out
    assert "[1/2] dlg on " in out
    assert "[2/2] tag on " in out
    assert "2 of 2 cells done, 2 of them now, 0 failed" in out
    assert "gradleak study show small.db" in out
    assert "\x1b" not in out


def test_a_second_run_has_nothing_to_do(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(study)
    capsys.readouterr()
    assert run(study) == 0
    assert "2 of 2 cells done, 0 of them now, 0 failed" in capsys.readouterr().out


def test_quiet_prints_the_summary_alone(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study, "--quiet") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_output_and_the_model_can_be_chosen(study: str, tmp_path: Path) -> None:
    other = save_bert(tmp_path / "other", 1)
    assert run(study, "-o", "mine.db", "--target", other, "--quiet") == 0
    assert rows(tmp_path / "mine.db", "SELECT DISTINCT json_extract(config, '$.target.name') FROM cells") == [(other,)]


def test_failed_cells_are_listed_and_give_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = {"name": odd_attacks.Explode.name, "settings": {"marker": "marker", "times": 9}}
    small_study(tmp_path, 2, attack=[odd])
    assert run("small.toml", "--quiet", "--json", "run.json") == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("failed after 3 attempts: explode on ")
    assert "RuntimeError: boom" in out
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["cells"], record["done"], record["interrupted"]) == (1, 0, False)
    assert [failed["attempts"] for failed in record["failed"]] == [3]
    assert record["failed"][0]["cell"]["attack"]["name"] == "explode"


def test_a_terminal_gets_bars_that_are_taken_down_again(study: str) -> None:
    screen = Screen()
    screen.console = Console(file=io.StringIO(), force_terminal=True, width=120, markup=False, highlight=False)
    screen.rich = True
    with LiveBoard(screen) as board:
        run_study(load_study(study), "my.db", executor=InProcess("cpu"), listener=board.see)
        assert (board.done, board.cells) == (2, 2)
        assert [task.description for task in board._bars.tasks] == ["study"]
        assert board._bars.tasks[0].fields["where"] == "2 of 2 cells, about 0:00 left"
    drawn = screen.console.file.getvalue()  # type: ignore[attr-defined]
    assert "dlg on bert, texts.csv 0:2, batches of 2, seed 0: ROUGE-1 " in drawn


WRONG = [
    (["none.toml"], "none.toml cannot be read: No such file"),
    (["qiuck"], "unknown study 'qiuck'; did you mean 'quick'?"),
    (["small.toml", "--workers", "2", "--ray", "local"], "--workers and --ray exclude each other"),
    (["small.toml", "--target", "tinny"], "unknown model 'tinny'; did you mean 'tiny'?"),
    (["small.toml", "--workers", "0"], "--workers"),
    (["small.toml", "-o", "none/my.db"], "there is no folder none"),
    (["small.toml", "-o", "small.toml"], "--output small.toml would overwrite what is read from small.toml"),
    (["small.toml", "-o", "other.toml"], "other.toml cannot be read as study records: file is not a database"),
    (["wrong.toml"], "wrong.toml, grid 1: unknown key 'sed'; did you mean 'seed'?"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_bad_input_is_one_line_and_exit_code_2(
    study: str, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, grid("tiny", save_texts(tmp_path), sed=1), name="wrong")
    write_study(tmp_path, grid("tiny", save_texts(tmp_path)), name="other")
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
