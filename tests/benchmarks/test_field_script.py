"""The table of what is read of updates as fine-tuning makes them, and what it shares with sieve.py."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradleak.targets import load_target

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
COLA = ["1\tThe cat sees the king.", "0\tCat the.", "1\tDogs run.", "0\tRun a."]
BANKING = ["card\tWhere is my card?", "fee\tA fee?", "card\tMy card!", "fee\tWhy pay?"]
Rows = list[dict[str, Any]]
Field = Callable[..., Rows]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # run_all sets it; this sets it back
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("batches")


@pytest.fixture
def script(batches: ModuleType) -> ModuleType:
    return importlib.import_module("field")


@pytest.fixture
def field(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Field:
    """Run the script on `tiny`; give the rows of its file."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("cola.tsv", COLA), ("banking.tsv", BANKING)):
        Path(name).write_text("\n".join(["label\ttext", *lines]) + "\n", encoding="utf-8")

    def run(*arguments: str, code: int = 0) -> Rows:
        chosen = ["--model", "tiny", "--data", "cola.tsv", "--take", "0:2", "--rows", "bf16", "--batch-sizes", "1"]
        monkeypatch.setattr(sys, "argv", ["field.py", *chosen, "--attack", "tag", "--budget", "0.1", *arguments])
        with pytest.raises(SystemExit) as end:
            script.main()
        assert end.value.code == code
        return json.loads(Path("field.json").read_text(encoding="utf-8"))["rows"]

    return run


def table(script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["field.py", "--score", "field.json"])
    script.main()
    return capsys.readouterr().out


MADE = {
    "fp16": (1, "fp16", "fp32", None),
    "bf16": (1, "bf16", "fp32", None),
    "fp16-dropout": (1, "fp16", "fp32", None),
    "bf16-dropout": (1, "bf16", "fp32", None),
    "int8": (1, "int8", "fp32", None),
    "bf16-autocast": (1, "fp32", "bf16", None),
    "sgd-1e-2": (1, "fp32", "fp32", "steps=4,lr=0.01,batch=2"),
    "sgd-5e-5": (1, "fp32", "fp32", "steps=4,lr=5e-05,batch=2"),
    "adamw-1": (1, "fp32", "fp32", "steps=1,lr=5e-05,optimizer=adamw"),
    "adamw-4": (1, "fp32", "fp32", "steps=4,lr=5e-05,batch=2,optimizer=adamw"),
    "adamw-8x2": (1, "fp32", "fp32", "steps=8,lr=5e-05,batch=2,optimizer=adamw"),
    "clients": (4, "fp32", "fp32", None),
    "noise-5e-4": (1, "fp32", "fp32", None),
    "noise-5e-4-dropout": (1, "fp32", "fp32", None),
    "dager": (1, "fp32", "fp32", "lr=0.0001,batch=4,epochs=10"),
}


def test_rows_are_made_by_the_clients_that_their_names_stand_for(script: ModuleType, batches: ModuleType) -> None:
    target = load_target("tiny", device="cpu")
    assert list(script.KINDS) == list(MADE)
    for name, (clients, send, precision, training) in MADE.items():
        kind = script.KINDS[name]
        (size,) = kind.batch_sizes([8])
        assert size == (16 if name in ("adamw-8x2", "dager") else 8)
        batch = batches.Sentences(("Cat.",) * size, (1,) * size, first=0, classes=2)
        scenario = kind.scenario(batch, ())
        assert scenario.client.dropout == name.endswith("-dropout")
        assert bool(scenario.defenses) == name.startswith("noise-5e-4")
        if name == "dager":
            assert str(scenario.client.fedavg) == training  # forty steps: not made here
            continue
        (captured,) = scenario.batches(target)
        protocol = captured.update.protocol
        assert (protocol.clients, protocol.send, protocol.precision) == (clients, send, precision)
        assert (protocol.training and str(protocol.training)) == training


def test_steps_of_small_batches_take_one_sentence(script: ModuleType) -> None:
    for name in ("sgd-1e-2", "sgd-5e-5", "adamw-4"):
        assert [script.KINDS[name].client(size).fedavg.batch for size in (1, 4, 8)] == [1, 1, 2]


def test_rows_hold_what_was_read_and_are_not_run_again(
    script: ModuleType, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = field("--attack", "sieve", "--budget", "10")
    assert [(row["row"], row["size"], row["batch"], row["labels"]) for row in rows] == [
        ("bf16", 1, 0, [1]),
        ("bf16", 1, 1, [0]),
    ]
    assert [row["found"] == row["references"] for row in rows] == [True, True]
    monkeypatch.setattr(script, "attack_batch", lambda item: pytest.fail("a batch was attacked"))
    assert field("--attack", "sieve", "--budget", "10") == rows


def test_a_table_grows_by_sentences_sizes_and_files(field: Field) -> None:
    field()
    rows = field("--take", "0:4", "--batch-sizes", "2", "--rows", "bf16", "--data", "banking.tsv")
    texts = [line.split("\t")[1] for line in (*COLA, *BANKING)]
    assert [row["batch"] for row in rows] == [0, 1, 0, 0, 2, 2]
    pairs = [row["texts"] for row in rows if row["size"] == 2]
    assert sorted(pairs) == sorted(texts[start : start + 2] for start in (0, 2, 4, 6))  # of one file each
    assert {row["cell"] for row in rows} == {
        "tiny, tag, 0.1 s, bf16, B=1, cola",
        "tiny, tag, 0.1 s, bf16, B=2, cola",
        "tiny, tag, 0.1 s, bf16, B=2, banking",
    }


def test_labels_that_are_names_are_drawn_for_the_whole_file(batches: ModuleType, field: Field) -> None:
    whole, part = (batches.read_sentences(Path("banking.tsv"), take) for take in ("0:4", "1:3"))
    assert set(whole.labels) <= {0, 1}
    assert part.labels == whole.labels[1:3]
    assert (whole.classes, part.first, part.texts) == (2, 1, ("A fee?", "My card!"))
    assert batches.read_sentences(Path("cola.tsv"), "0:4").labels == (1, 0, 1, 0)


def test_a_batch_that_fails_is_named_and_tried_again(
    script: ModuleType, field: Field, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = script.attack_batch

    def fails_once(item: dict[str, Any]) -> dict[str, Any]:
        if item["batch"] == 0:
            raise RuntimeError("no memory")
        return honest(item)

    monkeypatch.setattr(script, "attack_batch", fails_once)
    assert [row["batch"] for row in field(code=1)] == [1]
    said = capsys.readouterr().err
    assert "tiny, tag, 0.1 s, bf16, B=1, cola, batch 0 failed:" in said
    assert "RuntimeError: no memory" in said
    monkeypatch.setattr(script, "attack_batch", honest)
    assert [row["batch"] for row in field()] == [1, 0]


def test_lamp_is_told_labels_and_lengths_and_sieve_nothing(
    script: ModuleType, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}
    for spec in ("sieve", "auto", "lamp:best", "grab:best"):
        attack = script.attack_of(spec, None)

        def attacked(self: Any, target: Any, update: Any, knowledge: Any, *, budget: float) -> Any:
            told[self.name] = knowledge.told
            raise RuntimeError("enough")

        monkeypatch.setattr(type(attack), "__call__", attacked)
        (item, *_) = script.work(arguments(script, monkeypatch, "--attack", spec))
        with pytest.raises(RuntimeError, match="enough"):
            script.attack_batch(item)
    assert told == {
        "sieve": (),
        "auto": (),
        "lamp": ("labels", "lengths"),
        "grab": ("labels", "lengths", "dropout"),
    }


def test_a_budget_is_that_of_an_attack_that_plans_its_time(
    script: ModuleType, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, seconds in ((["--budget", "120"], 120), ([], 60)):
        chosen = arguments(script, monkeypatch, "--attack", "auto", *given)
        assert script.attack_of("auto", chosen.budget).budget == seconds
        assert next(script.work(chosen))["run"] == f"auto on tiny, {seconds} s"
    assert next(script.work(arguments(script, monkeypatch, "--attack", "sieve")))["run"] == "sieve on tiny, no limit"


def arguments(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *given: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["field.py", "--model", "tiny", "--data", "cola.tsv", "--take", "0:2", *given])
    return script._arguments()


def test_a_misspelt_row_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments(script, monkeypatch, "--rows", "bf16,adamw-2")
    assert "no row named adamw-2; there are fp16, bf16," in capsys.readouterr().err


def test_score_is_a_markdown_table(
    script: ModuleType, field: Field, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = field()
    second |= {"found": [[101, 102]], "verified": True, "seconds": 3.0}
    first |= {"found": first["references"], "verified": True, "seconds": 1.0}
    Path("field.json").write_text(json.dumps({"rows": [first, second]}), encoding="utf-8")
    title, _, head, line, row = table(script, monkeypatch, capsys).rstrip().split("\n")
    assert title == "tag on tiny, 0.1 s"
    assert head.count("|") == line.count("|") == row.count("|")
    assert row == "| bf16 | 1 | 2 | 50.0 | 50.0 | 50.0 | 50 | 100 | 1 | 2.0 | 3.0 |"


@pytest.mark.parametrize(
    ("found", "verified", "complete", "wrong"),
    [
        ([[1], [2]], True, True, False),
        ([[1]], True, False, False),  # verified speaks of what was returned
        ([[1]], True, True, True),
        ([[1], [3]], True, False, True),
        ([[1], [3]], False, False, False),
    ],
)
def test_a_claim_of_more_than_was_trained_on_is_too_much(
    batches: ModuleType, found: list[list[int]], verified: bool, complete: bool, wrong: bool
) -> None:
    row = {"references": [[1], [2]], "found": found, "verified": verified, "complete": complete}
    assert batches.claims_too_much(row) is wrong


@pytest.mark.slow
def test_workers_find_what_one_process_finds(field: Field) -> None:
    chosen = ("--attack", "sieve", "--budget", "20")
    alone = field(*chosen)
    Path("field.json").unlink()
    together = sorted(field(*chosen, "--workers", "2"), key=lambda row: row["batch"])
    for row in (*alone, *together):
        del row["seconds"]
    assert together == alone


def test_sieve_script_keeps_and_scores_its_batches(
    field: Field, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sieve = importlib.import_module("sieve")
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["sieve.py", "--data", "cola.tsv", "--take", "0:2", "--dropout", "off"])
        with pytest.raises(SystemExit):
            sieve.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        "cola tiny frozen B=1 dropout=off, batch 0",
        "cola tiny frozen B=1 dropout=off, batch 1",
    ]
    monkeypatch.setattr(sys, "argv", ["sieve.py", "--score", "sieve.json"])
    sieve.main()
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cola")]
    assert row.split()[5:12] == ["2", "100.0", "100.0", "100.0", "100.0", "100", "0"]
