from __future__ import annotations

import csv
import io
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import gradleak.cli.app as command_line
from gradleak.cli import main as command_line_main
from gradleak.cli.commands.study_show import fitting_columns, show
from gradleak.errors import GradleakError
from gradleak.studies.records.soundness import LATER, TABLES
from gradleak.studies.report.conditions import CLIENT_CONDITIONS, CONDITIONS, in_words
from gradleak.studies.report.intervals import bootstrap
from gradleak.studies.report.summary import summarise

Config = dict[str, Any]


def attack_config(name: str = "tag", settings: Mapping[str, Any] | None = None, **changes: Any) -> Config:
    """Return an attack cell's config as the store holds it."""
    client = {"dropout": False, "embeddings": "frozen", "fedavg": None}
    client |= {key: changes.pop(key) for key in tuple(client) if key in changes}
    return {
        "kind": "attack",
        "target": {"name": "tiny", "num_labels": 2, "task": "classification", "random_weights": False},
        "dataset": {"name": "cola", "take": "0:8", "text_column": None, "label_column": None},
        "batch_size": 1,
        "client": client,
        "defenses": [],
        "knowledge": ["labels", "lengths"],
        "attack": {"name": name, "preset": "paper", "settings": settings or {}},
        "seed": 0,
    } | changes


def utility_config(*defenses: str) -> Config:
    data = {"name": "cola", "take": "0:80"}
    return {"kind": "utility", "target": {"name": "tiny"}, "defenses": list(defenses), "seed": 0, "train": data}


def write_study(
    path: Path,
    attacks: Iterable[tuple[Config, Sequence[float]]] = (),
    utilities: Iterable[tuple[Config, float]] = (),
    failures: Iterable[tuple[Config, str]] = (),
    meta: Mapping[str, str] | None = None,
) -> Path:
    """Write a study's file: attack cells with the ROUGE-1 of their sentences, utility cells with their MCC."""
    file = sqlite3.connect(path)
    file.executescript(TABLES)
    file.executemany("INSERT INTO meta VALUES (?, ?)", ({"name": "mine"} | dict(meta or {})).items())
    cells: list[tuple[Any, ...]] = []
    sentences: list[tuple[Any, ...]] = []
    trained: list[tuple[Any, ...]] = []

    def add(config: Config, status: str = "done", error: str | None = None) -> str:
        name = f"cell {len(cells)}"
        cells.append((name, config["kind"], json.dumps(config), status, error, 1, 4.0, "now", "0", None, None))
        return name

    for config, scores in attacks:
        name = add(config)
        for number, score in enumerate(scores):
            values = (score, score / 2, score / 1.5, 100.0 * (score == 100), score, 0.1)
            sentences.append((name, number, 0, "a text", "some text", 1, *values))
    trained.extend((add(config), mcc, 0.5 + mcc / 2, 0.7, None, 6, 80) for config, mcc in utilities)
    for config, error in failures:
        add(config, "failed", error)
    file.executemany(f"INSERT INTO cells VALUES ({','.join('?' * 11)})", cells)
    file.executemany(f"INSERT INTO sentences VALUES ({','.join('?' * 12)})", sentences)
    file.executemany(f"INSERT INTO utility VALUES ({','.join('?' * 7)})", trained)
    file.commit()
    file.close()
    return path


def small_study(path: Path) -> Path:
    """A study of two attacks, two defenses and two seeds, with utility and a failure."""
    attacks = [
        (attack_config(name, defenses=list(defense), seed=seed), [60.0 + seed - 20 * len(defense), 80.0, 100.0])
        for name in ("tag", "dlg")
        for defense in ((), ("noise:0.01",))
        for seed in (0, 1)
    ]
    utilities = [(utility_config(), 0.5), (utility_config("noise:0.01"), 0.25)]
    failures = [(attack_config("tag", batch_size=4), "out of memory"), (attack_config("dlg", batch_size=4), "no disk")]
    return write_study(path, attacks, utilities, failures)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return small_study(tmp_path / "small.db")


def run(capsys: pytest.CaptureFixture[str], file: Path, **options: Any) -> str:
    capsys.readouterr()
    show(file, **options)
    return capsys.readouterr().out


# --- rows ------------------------------------------------------------------------------------------------------------


def test_seeds_and_parts_of_a_dataset_are_one_row(study: Path) -> None:
    summary = summarise(study)
    assert [(row.conditions["attack"], row.conditions["defense"]) for row in summary.rows] == [
        ("dlg", "none"),
        ("tag", "none"),
        ("dlg", "noise:0.01"),
        ("tag", "noise:0.01"),
    ]
    row = summary.rows[0]
    assert (row.cells, row.sentences) == (2, 6)
    assert row.scores["rouge1"].mean == pytest.approx((60 + 61 + 2 * 80 + 2 * 100) / 6)
    assert row.scores["exact"].mean == pytest.approx(100 / 3)
    assert row.seconds == pytest.approx(8 / 6)


def test_rows_stand_in_one_order_however_cells_finished(tmp_path: Path) -> None:
    sizes, noises = (1, 2, 16, 4), ("noise:0.01", "noise:1e-05", "noise:0.001")
    cells = [(attack_config(batch_size=size), [50.0]) for size in sizes]
    cells += [(attack_config(defenses=[noise]), [20.0, 50.0, 90.0]) for noise in noises]
    there = summarise(write_study(tmp_path / "there.db", cells)).rows
    back = summarise(write_study(tmp_path / "back.db", cells[::-1])).rows
    assert there == back
    found = [(row.conditions["batch_size"], row.conditions["defense"]) for row in there]
    assert found[:4] == [(1, "none"), (1, "noise:1e-05"), (1, "noise:0.001"), (1, "noise:0.01")]
    assert [size for size, _ in found[4:]] == [2, 4, 16]


def test_what_is_the_same_everywhere_is_told_apart_from_what_varies(study: Path) -> None:
    summary = summarise(study)
    assert summary.varied == ("attack", "defense")
    assert summary.same["dataset"] == "cola"
    assert summary.same["dropout"] is False
    assert set(summary.same) | set(summary.varied) == set(CONDITIONS)


def test_by_merges_rows_and_keeps_conditions_that_they_share(study: Path) -> None:
    summary = summarise(study, ["defense"])
    assert [row.sentences for row in summary.rows] == [12, 12]
    assert summary.rows[0].conditions["attack"] is None
    assert summary.rows[0].conditions["dataset"] == "cola"
    assert summary.rows[1].utility is not None


def test_by_takes_names_for_several_conditions_and_suggests_near_ones(study: Path) -> None:
    assert summarise(study, ["client", "batch-size"]).by == ("batch_size", *CLIENT_CONDITIONS)
    with pytest.raises(GradleakError, match="did you mean 'defense'"):
        summarise(study, ["defence"])


def test_utility_stands_beside_rows_of_the_same_model_and_defense(study: Path) -> None:
    found = {row.conditions["defense"]: row.utility for row in summarise(study).rows}
    assert {defense: utility.mcc for defense, utility in found.items() if utility} == {"none": 0.5, "noise:0.01": 0.25}


def test_failed_cells_are_counted_by_error(study: Path) -> None:
    assert sorted(summarise(study).failed) == [("no disk", 1), ("out of memory", 1)]


def test_published_figures_stand_beside_rows_of_a_ready_study(tmp_path: Path) -> None:
    cells = [
        (attack_config("tag", embeddings="words-frozen"), [50.0]),
        (attack_config("tag", embeddings="words-frozen", target={"name": "tinybert-6l"}), [50.0]),
        (attack_config("tag", embeddings="words-frozen", batch_size=2), [50.0]),
        (attack_config("tag", {"steps": 3}, embeddings="words-frozen"), [50.0]),
    ]
    rows = summarise(write_study(tmp_path / "lamp.db", cells, meta={"name": "lamp-table1"})).rows
    names = ("target", "batch_size", "settings")
    found = {str([row.conditions[name] for name in names]): row.published for row in rows}
    ours, theirs = found["['tiny', 1, {}]"], found["['tinybert-6l', 1, {}]"]
    assert ours is not None
    assert theirs is not None
    assert (ours.target, ours.figures["rouge1"]) == ("bert-base-uncased", 78.9)
    assert (theirs.target, theirs.figures["rouge1"]) == ("tinybert-6l", 43.9)
    assert found["['tiny', 2, {}]"] is None
    assert found["['tiny', 1, {'steps': 3}]"] is None


def test_study_is_read_while_it_runs_and_nothing_is_left_beside_it(study: Path) -> None:
    with closing(sqlite3.connect(study)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE cells SET status = 'failed', error = 'late' WHERE id = 'cell 0'")
        writer.commit()
        assert ("late", 1) in summarise(study).failed
    summarise(study)
    assert [path.name for path in study.parent.iterdir()] == [study.name]


# --- intervals -------------------------------------------------------------------------------------------------------


def test_bootstrap_agrees_with_resampling_one_by_one() -> None:
    generator = np.random.default_rng(5)
    groups = [generator.uniform(0, 100, (size, 2)) for size in (1, 8, 8, 30)]
    found = bootstrap(np.concatenate(groups), np.array([len(group) for group in groups]))
    for group, estimate in zip(groups, found, strict=True):
        drawn = np.random.default_rng(9).integers(0, len(group), (20_000, len(group)))
        low, high = np.percentile(group[drawn].mean(axis=1), [2.5, 97.5], axis=0)
        np.testing.assert_allclose(estimate[:, 0], group.mean(axis=0))
        np.testing.assert_allclose(estimate[:, 1], low, atol=2.5)
        np.testing.assert_allclose(estimate[:, 2], high, atol=2.5)


def test_bootstrap_of_batches_agrees_with_resampling_whole_batches() -> None:
    generator = np.random.default_rng(5)
    groups = []
    for sizes in ([4] * 12, [4] * 11 + [1], [1] * 12, [3]):
        centres = generator.uniform(0, 80, (len(sizes), 2))
        groups.append([c + generator.uniform(0, 20, (n, 2)) for c, n in zip(centres, sizes, strict=True)])
    every = [batch for group in groups for batch in group]
    found = bootstrap(
        np.concatenate(every),
        np.array([sum(map(len, group)) for group in groups]),
        np.repeat(np.arange(len(every)), [len(batch) for batch in every]),
    )
    for group, estimate in zip(groups, found, strict=True):
        drawn = np.random.default_rng(9).integers(0, len(group), (5_000, len(group)))
        means = [np.concatenate([group[place] for place in places]).mean(axis=0) for places in drawn]
        low, high = np.percentile(means, [2.5, 97.5], axis=0)
        np.testing.assert_allclose(estimate[:, 0], np.concatenate(group).mean(axis=0))
        np.testing.assert_allclose(estimate[:, 1], low, atol=2.5)
        np.testing.assert_allclose(estimate[:, 2], high, atol=2.5)


def test_batches_of_one_sentence_are_sentences() -> None:
    scores = np.random.default_rng(1).uniform(0, 100, (50, 3))
    counts = np.array([20, 0, 30])
    np.testing.assert_array_equal(bootstrap(scores, counts, np.arange(50)), bootstrap(scores, counts))


def test_batches_found_as_a_whole_make_the_interval_wider() -> None:
    scores = np.repeat([0.0, 100.0] * 8, 4)[:, None]  # 16 batches of 4, each found in full or not at all
    batches = np.repeat(np.arange(16), 4)
    (whole,), (single,) = bootstrap(scores, np.array([64]), batches), bootstrap(scores, np.array([64]))
    assert whole[0, 2] - whole[0, 1] == pytest.approx(2 * (single[0, 2] - single[0, 1]), rel=0.15)


def test_interval_of_many_batches_joins_that_of_few() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 4, 2_001)
    scores = np.repeat(generator.uniform(0, 100, (2_001, 1)), sizes, axis=0)
    batches = np.repeat(np.arange(2_001), sizes)
    few = bootstrap(scores[: -sizes[-1]], np.array([len(scores) - sizes[-1]]), batches[: -sizes[-1]])
    np.testing.assert_allclose(few, bootstrap(scores, np.array([len(scores)]), batches), atol=0.3)


def test_study_resamples_the_batches_of_its_cells(tmp_path: Path) -> None:
    """A batch is known by its cell and its number; sentences of one batch are not drawn apart."""
    scores = [0.0, 100.0] * 4
    path = write_study(tmp_path / "batches.db", [(attack_config(seed=seed), scores) for seed in (0, 1)])
    single = summarise(path).rows[0].scores["rouge1"]
    with closing(sqlite3.connect(path)) as file, file:
        # Two batches of four in each cell, of equal numbers in both: one found, one not.
        file.execute("UPDATE sentences SET position = batch / 2, batch = batch % 2")
    whole = summarise(path).rows[0].scores["rouge1"]
    assert (whole.mean, whole.low, whole.high) == (50, 0, 100)
    assert 0 < single.low < single.high < 100


def test_bootstrap_is_the_same_every_time_and_skips_empty_groups() -> None:
    scores = np.arange(10.0)[:, None]
    counts = np.array([4, 0, 6])
    first, again = bootstrap(scores, counts), bootstrap(scores, counts)
    np.testing.assert_array_equal(first, again)
    assert np.isnan(first[1]).all()


def test_interval_of_many_sentences_joins_that_of_few() -> None:
    scores = np.random.default_rng(0).uniform(0, 100, (2_001, 1))
    few, many = bootstrap(scores[:2_000], np.array([2_000])), bootstrap(scores, np.array([2_001]))
    np.testing.assert_allclose(few, many, atol=0.3)


# --- texts returned --------------------------------------------------------------------------------------------------


def count_batches(path: Path, *records: tuple[str, int, int, int, int, int]) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(LATER)
        file.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", records)


def test_texts_beyond_the_sentences_cost_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attacks = [(attack_config("tag"), [100.0, 100.0]), (attack_config("sieve"), [100.0, 50.0])]
    path = write_study(tmp_path / "guesses.db", attacks)
    # cell, batch, returned, exact, surplus, unrepresentable: tag returns four texts for each sentence, one is right.
    count_batches(
        path, ("cell 0", 0, 4, 1, 3, 0), ("cell 0", 1, 4, 1, 3, 0), ("cell 1", 0, 1, 1, 0, 0), ("cell 1", 1, 1, 0, 0, 1)
    )
    tag, sieve = summarise(path).rows
    assert (tag.precision, tag.surplus, tag.unrepresentable) == (25, 6, 0)
    assert (sieve.precision, sieve.surplus, sieve.unrepresentable) == (50, 0, 1)
    table = run(capsys, path)
    assert "precision %" in table
    assert "of the texts returned, those that are exactly a private text" in table
    assert "up to 1 sentence of a row cannot be represented by the tokenizer" in table
    (first, _) = json.loads(run(capsys, path, format="json"))["rows"]
    assert (first["precision"], first["surplus"], first["unrepresentable"]) == (25, 6, 0)
    (first, _) = csv.DictReader(io.StringIO(run(capsys, path, format="csv")))
    assert (first["precision"], first["surplus"], first["unrepresentable"]) == ("25.0", "6", "0")


def test_precision_is_left_out_where_it_says_no_more_than_exact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path / "guesses.db", [(attack_config(), [100.0, 50.0])])
    count_batches(path, ("cell 0", 0, 1, 1, 0, 0), ("cell 0", 1, 1, 0, 0, 0))
    assert "precision" not in run(capsys, path)


def test_studies_recorded_before_have_no_precision(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row.precision for row in summarise(study).rows} == {None}
    assert json.loads(run(capsys, study, format="json"))["rows"][0]["surplus"] is None
    # A row is counted as a whole or not at all: of its two cells one is still missing.
    count_batches(study, *(("cell 0", batch, 1, 1, 0, 0) for batch in range(3)))
    assert {row.precision for row in summarise(study).rows} == {None}


# --- formats ---------------------------------------------------------------------------------------------------------


def test_table_says_constants_once_and_counts_failures(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, study)
    heading, _, table = text.partition("\n\n")
    assert "cola" in heading
    assert "cola" not in table
    assert "2 cells failed" in table
    assert "out of memory" in table
    rows = [line for line in table.splitlines() if line.startswith(("dlg", "tag"))]
    assert len(rows) == 4
    assert rows[0].split()[:4] == ["dlg", "none", "6", "80.2"]
    assert "\x1b" not in text


def test_presets_that_are_another_attack_are_named_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [
        {"attack": {"name": name, "preset": preset, "settings": {}}}
        for name, preset in (("fet", "thorough"), ("edr", "fast"), ("fet", "paper"), ("gone", "fast"))
    ]
    rows = [(attack_config("tag") | changes, [50.0]) for changes in old]
    out = run(capsys, write_study(tmp_path / "mine.db", rows))
    said = [line for line in out.splitlines() if "mosaic" in line]
    assert said == ["fet:thorough is gradleak's own mosaic, not FET", "edr:fast is gradleak's own mosaic, not EDR"]


def test_csv_holds_every_condition_and_score(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, study, format="csv"))))
    assert len(rows) == 4
    assert set(CONDITIONS) <= set(rows[0])
    assert float(rows[0]["rouge1_low"]) <= float(rows[0]["rouge1"]) <= float(rows[0]["rouge1_high"])
    assert {row["mcc"] for row in rows} == {"0.5", "0.25"}


def test_data_are_shown_without_waiting_for_torch(study: Path) -> None:
    code = (
        "import sys; from gradleak.cli import main; main(['study', 'show', sys.argv[1], '--format', sys.argv[2]]); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    for name in ("csv", "json"):
        subprocess.run([sys.executable, "-c", code, str(study), name], check=True, capture_output=True)


def test_json_is_complete(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(run(capsys, study, format="json", json_file=tmp_path / "out.json"))
    assert record == json.loads((tmp_path / "out.json").read_text())
    assert record["schema"] == 1
    assert len(record["rows"]) == 4
    assert record["rows"][0]["rouge2"]["low"] <= record["rows"][0]["rouge2"]["mean"]
    assert {failure["error"] for failure in record["failed"]} == {"no disk", "out of memory"}
    assert len(record["utility"]) == 2


def test_latex_has_as_many_cells_in_every_row(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, study, format="latex")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 5
    assert len({line.count(" & ") for line in body}) == 1
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 1
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert "%" not in uncommented.replace(r"\%", "")


def test_study_of_utility_alone_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_study(tmp_path / "u.db", utilities=[(utility_config(), 0.5), (utility_config("sign"), 0.1)])
    text = run(capsys, path)
    assert "0.500" in text
    assert "sign" in text
    assert [row["defense"] for row in csv.DictReader(io.StringIO(run(capsys, path, format="csv")))] == ["none", "sign"]
    assert r"tiny & sign & 0.100 & 55.0 \% & -- \\" in run(capsys, path, format="latex")


def test_quiet_prints_the_table_alone(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, study, quiet=True).splitlines()) == 5


def test_narrow_terminal_leaves_out_what_is_missed_least() -> None:
    titles = ["attack", "n", "R-1", "exact %", "seconds", "accuracy"]
    cells = [["tag", "8", "59.0 (49–68)", "0.0", "1.50", "75.0 %"]]
    assert fitting_columns(titles, cells, 80, texts=1) == [0, 1, 2, 3, 4, 5]
    assert fitting_columns(titles, cells, 50, texts=1) == [0, 1, 2, 3, 4]
    assert fitting_columns(titles, cells, 28, texts=1) == [0, 1, 2]
    assert fitting_columns(titles, cells, 24, texts=1) == [0, 2], "the score goes last"
    assert fitting_columns(titles, cells, 10, texts=1) == [0], "a label never goes"


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line with `show` alone, errors and exit codes as always."""
    app = typer.Typer()
    app.command()(show)
    monkeypatch.setattr(command_line, "app", app)
    return command_line_main


def test_bad_files_give_one_line_and_exit_code_2(main: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, other, empty, failed = (tmp_path / name for name in ("text.db", "other.db", "empty.db", "failed.db"))
    text.write_text("no database" * 100)
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE cells (id)")
    write_study(empty)
    write_study(failed, failures=[(attack_config(), "out of memory")])
    expected = {
        tmp_path / "none.db": "there is no study file",
        tmp_path: "there is no study file",
        text: "is not a study file",
        other: "is not a study file",
        empty: "holds no finished cell",
        failed: "1 failed, with: out of memory",
    }
    for path, words in expected.items():
        assert main([str(path)]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "cvs"], "did you mean 'csv'"),
        (["--by", "colour"], "unknown column"),
        (["--kind", "leakage-noise"], "--plot"),
        (["--plot", "no/such/folder/a.png"], "there is no folder"),
    ],
)
def test_bad_options_give_one_line_and_exit_code_2(
    main: Any, study: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main([str(study), *options]) == 2
    assert words in capsys.readouterr().err


# --- speed -----------------------------------------------------------------------------------------------------------


def big_study(path: Path, cells: int = 10_000) -> Path:
    generator = np.random.default_rng(0)
    attacks = (
        (
            attack_config(
                ("dlg", "tag")[number % 2],
                defenses=[f"noise:{1 + number // 2 % 250}e-05"],
                batch_size=1 + number // 500 % 5,
                seed=number // 2_500,
            ),
            generator.uniform(0, 100, 8).tolist(),
        )
        for number in range(cells)
    )
    return write_study(path, attacks)


def test_ten_thousand_cells_are_shown_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = big_study(tmp_path / "big.db")
    started = time.process_time()  # not the clock's: other programs may run beside the tests
    text = run(capsys, path)
    assert time.process_time() - started < 10  # about one second; a slow machine gets ten
    assert len(text.splitlines()) > 2_000


# --- gradleak's own attacks, and trainings ---------------------------------------------------------------------------


def test_own_attacks_are_marked_in_tables_and_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "a.db", [(attack_config(name), [50.0]) for name in ("tag", "sieve")])
    table = run(capsys, study)
    assert "sieve (ours)" in table
    assert "tag (ours)" not in table
    rows = json.loads(run(capsys, study, format="json"))["rows"]
    assert [(row["attack"], row["ours"]) for row in rows] == [("tag", False), ("sieve", True)]
    assert "sieve (ours)" in run(capsys, study, format="latex")


def test_the_papers_figures_stand_beside_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainings = [(utility_config(), 0.5), (utility_config("dpsgd:1,0.05"), 0.1)]
    study = write_study(tmp_path / "a.db", [], trainings, meta={"name": "grab-table6"})
    lines = run(capsys, study).splitlines()
    assert lines[3].split() == ["target", "defense", "MCC", "accuracy", "ε", "paper", "MCC", "paper", "ε"]
    assert lines[5].split()[-2:] == ["0.250", "2.37e+06"]
    assert any(line.startswith("paper: Feng et al. 2024, GRAB, table 6") for line in lines)
    record = json.loads(run(capsys, study, format="json"))["utility"]
    assert [found["published"]["mcc"] for found in record] == [0.77, 0.25]
    assert "published_epsilon" in run(capsys, study, format="csv")


def test_the_papers_mcc_stands_beside_every_attack_under_its_defense(tmp_path: Path) -> None:
    cells = [(attack_config(name, defenses=["dpsgd:1,0.01"]), [50.0]) for name in ("tag", "sieve")]
    rows = summarise(write_study(tmp_path / "a.db", cells, meta={"name": "grab-figure5"})).rows
    assert [row.published and row.published.figures["mcc"] for row in rows] == [0.51, 0.51]


def test_dropout_rates_are_told_apart_and_in_order(tmp_path: Path) -> None:
    cells = [(attack_config(dropout=rate), [50.0]) for rate in (0.4, True, 0.1, False)]
    overview = summarise(write_study(tmp_path / "a.db", cells))
    assert [in_words("dropout", row.conditions["dropout"]) for row in overview.rows] == [
        "no dropout",
        "dropout 0.1",
        "dropout 0.4",
        "dropout",
    ]
