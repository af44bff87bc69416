"""`gradleak audit` from end to end, on a model of a few thousand parameters."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import dictionary_attack
import pytest
from audit_tools import options, save_rows, steady
from dictionary_attack import SENTENCES

from conftest import small_target
from gradleak.cli import main

FINDS_NOTHING = ("--take", "0:4", "--set", "least=2")  # no cosine is above 2: only the own setup is tried


@pytest.fixture(autouse=True)
def _attack_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dictionary_attack.Dictionary.name == "dictionary"
    monkeypatch.setenv("GRADLEAK_PLUGINS", "dictionary_attack")
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit's folder."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(options(folder)) == 0
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text(encoding="utf-8"))
    return content


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return the one line that a command is refused with."""
    capsys.readouterr()
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_own_setup_is_attacked_and_its_leak_found(finished: Path) -> None:
    record = record_of(finished)
    own = record["settings"][record["own"]]
    assert own["axis"] == "own"
    assert own["exact"] == own["sentences"] == 12
    assert record["verdict"]["level"] == "leaks"
    assert record["finished"]


def test_batch_is_doubled_until_nothing_comes_back(finished: Path) -> None:
    rows = [s for s in record_of(finished)["settings"] if s["axis"] == "batch"]
    assert [row["batch_size"] for row in rows][:1] == [2]
    assert rows[-1]["below"]
    assert not any(row["below"] for row in rows[:-1])


def test_strongest_is_tried_first_and_what_leaks_there_not_further(finished: Path) -> None:
    record = record_of(finished)
    clipped = [s for s in record["settings"] if s["ladder"] == "clip"]
    assert [s["label"] for s in clipped] == ["0.01"]
    assert not clipped[0]["below"]
    summary = next(ladder["summary"] for ladder in record["ladders"] if ladder["name"] == "clip")
    assert summary.startswith("Text comes back at its strongest")


def test_bisection_ends_between_a_strength_that_leaks_and_the_next_one_that_does_not(finished: Path) -> None:
    from gradleak.assessment.ladders import NOISE

    tried = {float(s["label"]): s["below"] for s in record_of(finished)["settings"] if s["ladder"] == "noise"}
    below = [f"{r:g}" for r in NOISE if tried.get(r)]
    end = min(float(label) for label in below)
    place = NOISE.index(end)
    assert place == 0 or tried[NOISE[place - 1]] is False
    assert len(tried) <= 6


def test_a_leak_that_is_certain_takes_no_more_time(finished: Path) -> None:
    decided = [s for s in record_of(finished)["settings"] if s["axis"] == "defense" and s["exact_long"]]
    assert decided
    assert all(setting["sentences"] == 1 for setting in decided)


def test_recommended_setting_is_below_the_line_on_the_whole_sample(finished: Path) -> None:
    record = record_of(finished)
    advice = record["recommendation"]
    chosen = record["settings"][advice["setting"]]
    assert chosen["below"]
    assert chosen["sentences"] == 12
    assert advice["options"][0].startswith(("--defense ", "--send "))
    told = [s for s in record["settings"] if s["axis"] == "knowledge"]
    assert told
    assert told[-1]["below"]


def test_files_are_private_and_hold_no_private_word_but_the_records(finished: Path) -> None:
    folder = finished / "audit"
    assert {path.name for path in folder.iterdir()} == {"audit.json", "report.html", "study.db"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("audit.json", "report.html"):
        content = (folder / name).read_text(encoding="utf-8")
        assert not any(text in content for text in SENTENCES)
        assert "mat</bdi>" not in content


def test_every_key_of_the_record_is_documented(finished: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    record = record_of(finished)
    keys = {*record, *record["settings"][0], *record["ladders"][0], *record["sentences"][0], *record["recommendation"]}
    assert not [key for key in keys if f"`{key}`" not in page]


def test_same_command_again_finds_everything_done_and_the_same_numbers(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = record_of(finished)
    rows = os.stat(finished / "audit" / "study.db").st_size
    assert main(options(finished)) == 0
    assert steady(record_of(finished)) == steady(before)
    assert os.stat(finished / "audit" / "study.db").st_size == rows


def test_another_run_with_the_same_seed_gives_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    arguments = options(finished)
    arguments[arguments.index("--output") + 1] = str(tmp_path / "audit")
    assert main(arguments) == 0
    again, before = steady(record_of(tmp_path)), steady(record_of(finished))
    again["measured"].pop("commands")
    before["measured"].pop("commands")
    assert again == before


def test_folder_of_another_audit_is_refused_and_left_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in (finished / "audit").iterdir()}
    line = refused(capsys, options(finished, "--seed", "1"))
    assert "holds another audit (other seed)" in line
    assert {path.name: path.read_bytes() for path in (finished / "audit").iterdir()} == before


@pytest.mark.parametrize(
    "stored",
    [
        "{}",
        '{"identity": {}, "sizes": {}, "plan": []}',
        '{"identity": {"model": 1}, "sizes": {}, "plan": {}}',
        "[" * 999,
    ],
)
def test_a_damaged_plan_of_an_earlier_run_is_one_line(tmp_path: Path, stored: str) -> None:
    from gradleak.assessment.run import KEY, stored_audit
    from gradleak.errors import GradleakError
    from gradleak.studies.records.store import Store

    with Store(tmp_path / "study.db") as store:
        store.describe({KEY: stored})
    with pytest.raises(GradleakError, match="is damaged") as caught:
        stored_audit(tmp_path / "study.db")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("limit", "code"), [("rougeL=100", 0), ("rougeL=20", 1), ("worst-exact=99", 1)])
def test_gate_decides_the_exit_code(finished: Path, limit: str, code: int) -> None:
    assert main(options(finished, "--fail-above", limit)) == code
    (check,) = record_of(finished)["gate"]
    assert check["passed"] is (code == 0)


def test_revealed_audit_holds_the_words_and_is_drawn_in_red(finished: Path) -> None:
    assert main(options(finished, "--reveal")) == 0
    page = (finished / "audit" / "report.html").read_text(encoding="utf-8")
    assert "This page shows private text" in page
    assert "<mark><bdi>mat</bdi></mark>" in page
    assert main(options(finished)) == 0
    assert "<bdi>mat" not in (finished / "audit" / "report.html").read_text(encoding="utf-8")


def test_report_draws_again_and_takes_the_words_from_the_records(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(finished / "audit" / "audit.json"), "-o", str(page)]) == 0
    assert "<bdi>mat" not in page.read_text(encoding="utf-8")
    assert main(["report", str(finished / "audit"), "-o", str(page), "--reveal"]) == 0
    assert "<bdi>mat</bdi>" in page.read_text(encoding="utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_report_of_a_study_has_every_setting(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(finished / "audit" / "study.db"), "-o", str(page)]) == 0
    content = page.read_text(encoding="utf-8")
    assert "Every setting" in content
    assert "noise:" in content


def test_setup_with_a_strong_defense_of_its_own_is_kept(tmp_path: Path) -> None:
    assert main(options(tmp_path, "--defense", "noise:10", "--fail-above", "rougeL=20")) == 0
    record = record_of(tmp_path)
    assert record["verdict"]["level"] == "holds"
    assert record["recommendation"]["sentence"].startswith("Keep the setup")
    assert not record["ladders"]
    assert [s for s in record["settings"] if s["axis"] == "knowledge"]


def test_rows_without_text_are_skipped_and_counted(tmp_path: Path) -> None:
    arguments = options(tmp_path)
    with (tmp_path / "clients.csv").open("a", encoding="utf-8") as file:
        file.write(",1\n  ,0\nthe cat sat,\ntoo,many,columns\n")
    assert main([*arguments, "--defense", "noise:10"]) == 0
    assert "4 of 16 rows had no text or no label" in record_of(tmp_path)["notices"][0]


def test_long_texts_are_refused_or_cut_as_the_user_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path)
    with (tmp_path / "clients.csv").open("a", encoding="utf-8") as file:
        file.write(f"{'the cat ' * 400},1\n")
    assert "1 of 13 texts" in (line := refused(capsys, arguments))
    assert "--truncate" in line
    assert not (tmp_path / "audit").exists()
    assert main([*arguments, "--truncate", "--defense", "noise:10"]) == 0  # nothing leaks: little to try
    assert "1 texts were cut" in " ".join(record_of(tmp_path)["notices"])


@pytest.mark.parametrize(
    ("further", "message"),
    [
        (["--fail-above", "rogueL=20"], "unknown score of --fail-above 'rogueL'; did you mean 'rougeL'?"),
        (["--fail-above", "rougeL=lots"], "--fail-above takes SCORE=X with X from 0 to 100"),
        (["--fail-above", "rougeL"], "--fail-above takes SCORE=X"),
        (["--budget", "3s"], "is too small: an audit of this model needs at least 23s"),
        (["--take", "50:60"], "50:60 leaves none"),
        (["--text-column", "story"], "has no column 'story' for --text-column; its columns: text, label"),
        (["--batch-size", "13"], "one update needs 13 texts"),
        (["--workers", "2", "--ray", "local"], "exclude each other"),
        (["--defense", "noyse:1"], "did you mean 'noise'?"),
    ],
)
def test_mistakes_get_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], further: list[str], message: str
) -> None:
    assert message in refused(capsys, options(tmp_path, *further))
    assert not (tmp_path / "audit").exists()


def test_one_class_only_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path)
    (tmp_path / "clients.csv").write_text("text,label\nthe cat,yes\nthe dog,yes\n", encoding="utf-8")
    assert "of one class ('yes')" in refused(capsys, arguments)


def test_file_without_a_text_column_lists_its_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path)
    (tmp_path / "clients.csv").write_text("id,value\n1,2\n3,4\n", encoding="utf-8")
    assert "its columns: id, value" in refused(capsys, arguments)


def test_folder_with_a_page_but_no_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path)
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "report.html").write_text("mine", encoding="utf-8")
    assert "holds report.html of another audit" in refused(capsys, arguments)
    assert (tmp_path / "audit" / "report.html").read_text(encoding="utf-8") == "mine"


def test_report_does_not_replace_a_page_of_others(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "mine.html"
    page.write_text("<p>mine</p>", encoding="utf-8")
    line = refused(capsys, ["report", str(finished / "audit"), "-o", str(page)])
    assert "is not a page of gradleak" in line
    assert page.read_text(encoding="utf-8") == "<p>mine</p>"


def test_report_of_a_folder_of_rounds_draws_them(tmp_path: Path) -> None:
    from gradleak.reports.rounds import RoundsLog

    header = {"framework": "flower", "side": "server", "model": "tiny", "attack": "auto"}
    log = RoundsLog.open(tmp_path / "audit", header)
    log.append(
        {"round": 3, "client": "7", "status": "done", "verified": True, "sentences": [{"reconstruction": "a b"}]}
    )
    assert main(["report", str(tmp_path / "audit")]) == 0
    assert "first in round 3" in (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))["kind"] == "rounds"


@pytest.mark.parametrize("name", ["noise", pytest.param("dpsgd", marks=pytest.mark.slow)])
def test_utility_is_measured_where_there_are_enough_texts_and_the_model_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from gradleak.assessment.ladders import ladders

    monkeypatch.setattr("gradleak.assessment.training.LR", 0.01)  # a model this small needs larger steps
    monkeypatch.setattr(
        "gradleak.assessment.run.ladders", lambda *given: tuple(x for x in ladders(*given) if x.name == name)
    )
    arguments = options(tmp_path, "--take", "0:4")
    lines = [f"{text},{int('dog' in text)}" for text in SENTENCES] * 40
    (tmp_path / "clients.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    assert main(arguments) == 0
    record = record_of(tmp_path)
    assert record["verdict"]["level"] == "leaks"
    utility = record["utility"]
    assert utility["measured"]
    assert utility["baseline"]["accuracy"] > 0.9
    assert utility["baseline"]["tested"] == 100
    trained = [s for s in record["settings"] if s["utility"] and s["axis"] == "defense"]
    assert trained
    assert all((s["utility"]["epsilon"] or 0.0) > 0 for s in trained) == (name == "dpsgd")
    assert "It costs: accuracy" in " ".join(record["recommendation"]["detail"])
    assert "accuracy" in (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")


def test_model_that_learns_nothing_gets_words_instead_of_a_figure(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--take", "0:4")
    lines = [f"{SENTENCES[n % 6]},{n // 6 % 2}" for n in range(240)]  # the label has nothing to do with the text
    (tmp_path / "clients.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    assert main(arguments) == 0
    utility = record_of(tmp_path)["utility"]
    assert not utility["measured"]
    assert "has learnt nothing" in utility["note"]


@pytest.mark.parametrize(
    "setup",
    [
        ["--fedavg", "steps=2,lr=0.01,batch=2,optimizer=adamw", "--batch-size", "2"],
        ["--clients", "2", "--batch-size", "2", "--dropout"],
        ["--send", "bf16", "--precision", "bf16", "--embeddings", "trained"],
        ["--lora", "r=2,targets=query+value"],
        ["--know", "labels,lengths", "--labels", "0=1,1=0"],
    ],
    ids=lambda words: words[0],
)
def test_any_training_setup_can_be_audited(tmp_path: Path, setup: list[str]) -> None:
    assert main(options(tmp_path, *setup, *FINDS_NOTHING)) == 0
    record = record_of(tmp_path)
    assert not [s["error"] for s in record["settings"] if s["error"]]
    assert record["verdict"]["level"] == "holds"


def test_language_model_can_be_audited(tmp_path: Path) -> None:
    arguments = options(tmp_path, "--task", "causal-lm", *FINDS_NOTHING)
    target = small_target("gpt2", "causal-lm")
    target.model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    target.tokenizer.save_pretrained(tmp_path / "model")
    assert main(arguments) == 0
    assert record_of(tmp_path)["settings"][0]["sentences"] == 4


def test_few_texts_give_words_instead_of_a_figure(finished: Path) -> None:
    utility = record_of(finished)["utility"]
    assert not utility["measured"]
    assert "fewer than 100" in utility["note"]
    assert all(setting["utility"] is None for setting in record_of(finished)["settings"])


def test_other_rows_make_another_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path, "--defense", "noise:10")
    assert main(arguments) == 0
    save_rows(tmp_path / "clients.csv", count=10)
    assert "holds another audit (other texts)" in refused(capsys, arguments)
