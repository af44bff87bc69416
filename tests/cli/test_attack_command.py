"""`gradleak attack`: what it prints, what it writes, and that it can be run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import pytest
from command_line import TEXT, Run, read, runner, save_model, without_seconds

from gradleak.attacks import Tag
from gradleak.attacks.base import OUT_OF_TIME
from gradleak.audit.run import MAX_GROUP
from gradleak.targets import Target

SCORES = {"rouge1", "rouge2", "rougeL", "exact", "token_accuracy"}
COUNTS = {"precision", "surplus", "unrepresentable"}


@pytest.fixture
def model(bert: Target, tmp_path: Path) -> str:
    return save_model(bert, tmp_path / "model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: str) -> Run:
    return runner(capsys, "--model", model, "--attack", "tag", "--set", "steps=3", "--device", "cpu")


def record_of(run: Run, folder: Path, *arguments: str | Path) -> dict[str, Any]:
    answer = run("attack", *arguments, "--json", folder / "result.json")
    assert (answer.code, answer.err) == (0, "")
    return read(folder / "result.json")


def test_json_has_the_promised_keys(run: Run, tmp_path: Path, bert: Target) -> None:
    record = record_of(run, tmp_path, TEXT, "--labels", "1", "--defense", "noise:1e-6", "--seed", "0")
    assert record.keys() >= {"schema", "attack", "model", "scenario", "seed", "batches", "summary"}
    assert (record["schema"], record["attack"], record["seed"]) == (1, "tag", 0)
    assert record["model_hash"] == bert.fingerprint
    assert record["settings"]["steps"] == 3
    assert record["scenario"]["client"] == {"dropout": False, "embeddings": "frozen", "fedavg": None}
    assert record["scenario"]["defenses"] == ["noise:1e-06"]
    assert record["scenario"]["knowledge"] == ["labels", "lengths"]
    assert (record["scenario"]["batch_size"], record["scenario"]["preset"]) == (1, "paper")
    (batch,) = record["batches"]
    assert batch.keys() >= {"reference", "reconstruction", "labels", "scores", "loss", "seconds"}
    assert (batch["reference"], batch["labels"]) == ([TEXT], [1])
    assert batch["scores"].keys() == SCORES | COUNTS
    assert record["summary"].keys() == {*SCORES, *COUNTS, "seconds"}
    assert all(0 <= batch["scores"][name] <= 100 for name in SCORES)


def test_without_a_preset_the_best_is_taken_and_the_overview_says_so(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    few = [f"{key}=2" for key in ("steps", "starts", "permutations", "moves")]
    settings = [word for pair in [*few, "alpha_lm=0"] for word in ("--set", pair)]
    lamp = runner(capsys, "--model", model, "--attack", "lamp", *settings, "--device", "cpu")
    best, paper = (lamp("attack", TEXT, "--json", tmp_path / "r.json", *more) for more in ((), ("--preset", "paper")))
    assert "best, the default: more than the paper's attack, which is --preset paper" in " ".join(best.out.split())
    assert "the default" not in paper.out
    record = read(tmp_path / "r.json")
    assert (record["scenario"]["preset"], record["settings"]["polish"]) == ("paper", 0)
    lamp("attack", TEXT, "--json", tmp_path / "r.json")
    record = read(tmp_path / "r.json")
    assert (record["scenario"]["preset"], record["settings"]["polish"]) == ("best", 10)


def test_an_old_spelling_says_which_attack_it_is(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    fet = runner(capsys, "--model", model, "--attack", "fet", "--preset", "thorough", "--device", "cpu")
    answer = fet("attack", TEXT, "--embeddings", "trained", "--json", tmp_path / "result.json")
    line = "fet:thorough is gradleak's own mosaic, not FET"
    assert line in " ".join(answer.out.split())
    assert line in read(tmp_path / "result.json")["batches"][0]["notes"]


def test_same_seed_gives_same_json_but_for_seconds(run: Run, tmp_path: Path) -> None:
    options = (TEXT, "a dog ran", "--dropout", "--defense", "noise:0.01", "--seed", "5")
    first, second = (record_of(run, tmp_path, *options) for _ in range(2))
    assert without_seconds(first) == without_seconds(second)
    other = record_of(run, tmp_path, *options[:-1], "6")
    assert without_seconds(other["batches"]) != without_seconds(first["batches"])


def test_texts_form_batches_in_the_order_given(run: Run, tmp_path: Path) -> None:
    record = record_of(run, tmp_path, "a cat", "a dog", "a mat", "--batch-size", "2")
    assert [batch["reference"] for batch in record["batches"]] == [["a cat", "a dog"], ["a mat"]]
    assert [len(batch["reconstruction"]) for batch in record["batches"]] == [2, 1]


def test_summary_is_the_mean_over_sentences(run: Run, tmp_path: Path) -> None:
    record = record_of(run, tmp_path, "the cat sat", "the dog sat", "the mat", "--batch-size", "2", "--set", "steps=40")
    pair, single = (batch["scores"]["rouge1"] for batch in record["batches"])
    assert record["summary"]["rouge1"] == pytest.approx((2 * pair + single) / 3)
    assert record["summary"]["seconds"] == pytest.approx(sum(b["seconds"] for b in record["batches"]))


def test_reconstruction_is_listed_beside_its_reference(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert: Target
) -> None:
    from gradleak.attacks.base import Finding

    rows = [bert.tokenizer(text)["input_ids"] for text in ("a big dog ran", "the cat sat")]
    monkeypatch.setattr(Tag, "run", lambda *_: [Finding(rows, [1, 0], 0.5)])
    record = record_of(run, tmp_path, "the cat sat", "a big dog ran", "the red mat", "--batch-size", "3")
    (batch,) = record["batches"]
    assert batch["reconstruction"] == ["the cat sat", "a big dog ran", None]
    assert batch["labels"] == [0, 1, None]
    assert record["summary"]["exact"] == pytest.approx(200 / 3)


def test_guesses_beyond_the_sentences_are_counted_and_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert: Target
) -> None:
    from gradleak.attacks.base import Finding

    rows = [bert.tokenizer(text)["input_ids"] for text in ("a dog ran", "the cat sat", "a red mat", "the mat")]
    monkeypatch.setattr(Tag, "run", lambda *_: [Finding(rows, [0] * 4, 0.5)])
    record = record_of(run, tmp_path, "the cat sat")
    (batch,) = record["batches"]
    assert batch["reconstruction"] == ["the cat sat", "a dog ran", "a red mat", "the mat"]
    for scores in (batch["scores"], record["summary"]):
        assert (scores["exact"], scores["precision"], scores["surplus"]) == (100, 25, 3)
    said = "3 texts more than there were sentences; 25.0 % of the texts returned are exactly a private text"
    assert said in run("attack", "the cat sat").out


def test_a_text_that_the_tokenizer_cannot_represent_is_said_to_be_lost(run: Run, tmp_path: Path) -> None:
    record = record_of(run, tmp_path, "the cat sat", "the 😀 sat", "--batch-size", "2")
    assert record["batches"][0]["scores"]["unrepresentable"] == [1]
    assert record["summary"]["unrepresentable"] == 1
    said = "1 sentence with characters that the model's tokenizer cannot represent: never exact"
    assert said in run("attack", "the 😀 sat").out
    assert "cannot represent" not in run("attack", "the cat sat").out


def test_a_loss_that_is_no_number_is_null(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradleak.attacks.base import Finding

    monkeypatch.setattr(Tag, "run", lambda *_: [Finding([[2, 5, 3]], [1], float("nan"))])
    assert record_of(run, tmp_path, TEXT)["batches"][0]["loss"] is None


def test_labels_and_their_count_come_from_the_dataset(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "data.tsv"
    file.write_text("label\ttext\ngood\tthe cat sat\nbad\ta dog ran\nugly\ta red mat\n", encoding="utf-8")
    record = record_of(run, tmp_path, "--dataset", file, "--take", "1:3", "--new-head")
    assert record["scenario"]["num_labels"] == 3
    assert record["scenario"]["dataset"] == f"{file} 1:3"
    assert [batch["labels"] for batch in record["batches"]] == [[0], [2]]
    assert [batch["reference"] for batch in record["batches"]] == [["a dog ran"], ["a red mat"]]


def test_know_decides_what_the_attacker_is_told(run: Run, tmp_path: Path) -> None:
    told = record_of(run, tmp_path, TEXT, "--know", "longest, batch-size,dropout,defense")["scenario"]["knowledge"]
    assert set(told) == {"longest", "batch-size", "dropout", "defense"}
    record = record_of(run, tmp_path, TEXT, "--know", "none")
    assert record["scenario"]["knowledge"] == []
    assert record["batches"][0]["notes"]


def test_fedavg_client_is_attacked(run: Run, tmp_path: Path) -> None:
    record = record_of(run, tmp_path, "a cat", "a dog", "--batch-size", "2", "--fedavg", "steps=4,lr=5e-5,batch=1")
    assert record["scenario"]["client"]["fedavg"] == {"steps": 4, "lr": 5e-5, "batch": 1}


def test_a_client_of_practice_is_attacked_and_recorded(run: Run, tmp_path: Path) -> None:
    protocol = "steps=3,batch=1,lr=5e-5,optimizer=adamw,schedule=linear,clip=1"
    options = ("--fedavg", protocol, "--precision", "bf16", "--send", "int8", "--clients", "2", "--batch-size", "2")
    record = record_of(run, tmp_path, "a cat", "a dog", "the mat", "a red mat", *options)
    assert record["scenario"]["client"] == {
        "dropout": False,
        "embeddings": "frozen",
        "fedavg": {"steps": 3, "lr": 5e-5, "batch": 1, "optimizer": "adamw", "schedule": "linear", "clip": 1.0},
        "precision": "bf16",
        "send": "int8",
        "clients": 2,
    }
    (batch,) = record["batches"]
    assert batch["reference"] == ["a cat", "a dog", "the mat", "a red mat"]


def test_every_family_can_be_attacked(any_target: Target, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = runner(
        capsys, "--attack", "tag", "--model", save_model(any_target, tmp_path / "model"), "--set", "steps=2", "--quiet"
    )
    answer = run("attack", TEXT, "--task", any_target.task, "--embeddings", "words-frozen")
    assert (answer.code, answer.err) == (0, "")
    assert len(answer.out.splitlines()) == 1


def test_captured_update_gives_the_same_reconstruction_in_another_process(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, bert: Target
) -> None:
    direct = record_of(run, tmp_path, TEXT, "--labels", "1", "--seed", "3", "--defense", "noise:0.001")
    update, result = tmp_path / "update.safetensors", tmp_path / "other.json"
    options = ("--labels", "1", "--seed", "3", "--defense", "noise:0.001", "--model", model, "--device", "cpu")
    assert runner(capsys)("capture", TEXT, "-o", update, *options).code == 0
    (length,) = bert.encode([TEXT]).lengths
    known = ["--labels", "1", "--lengths", str(length), "--seed", "3", "--device", "cpu"]
    command = [
        sys.executable,
        "-m",
        "gradleak",
        "attack",
        "--attack",
        "tag",
        "--update",
        update,
        *known,
        "--set",
        "steps=3",
    ]
    answer = subprocess.run([*command, "-q", "--json", result], check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\x1b" not in answer.stdout
    captured = read(result)
    for key in ("reconstruction", "labels", "loss"):
        assert captured["batches"][0][key] == direct["batches"][0][key]
    assert captured["batches"][0]["reference"] is None
    assert captured["batches"][0]["scores"] is None
    assert captured["summary"].keys() == {*SCORES, *COUNTS, "seconds"}
    assert all(captured["summary"][name] is None for name in SCORES | COUNTS)
    assert captured["model_hash"] == direct["model_hash"]


def test_captured_update_brings_its_own_head(capsys: pytest.CaptureFixture[str], tmp_path: Path, bert: Target) -> None:
    """The number of classes, the head's seed and the task need not be given again."""
    bert.config.architectures = ["BertModel"]
    model = save_model(bert, tmp_path / "model")
    run, update = runner(capsys), tmp_path / "update.safetensors"
    options = ("--num-labels", "5", "--new-head", "--seed", "9", "--quiet")
    made = run("capture", TEXT, "-o", update, "--model", model, *options)
    assert made.code == 0
    answer = run("attack", "--attack", "tag", "--update", update, "--set", "steps=2")
    assert (answer.code, answer.err) == (0, "")
    assert "5 classes" in answer.out


def test_overview_and_results_are_plain_in_a_pipe(
    run: Run, monkeypatch: pytest.MonkeyPatch, bert: Target, model: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    answer = run("attack", TEXT, "a dog ran", "--defense", "clip:1")
    assert "\x1b" not in answer.out
    lines = answer.out.splitlines()
    for part in (f"{model}: bert", bert.fingerprint[:12], "clip:1", "Deng et al. 2021", "Tag(steps=3", "batch 2 of 2"):
        assert any(part in line for line in lines), part
    assert any(line.startswith("attacker") and "is told labels, lengths" in line for line in lines)
    assert any(line.startswith("private") and line.endswith(TEXT) for line in lines)
    assert any(line.startswith("2 sentences") for line in lines)


def test_quiet_prints_the_reconstructions_alone(run: Run, tmp_path: Path) -> None:
    answer = run("attack", TEXT, "a dog ran", "--quiet", "--json", tmp_path / "r.json")
    found = [text for batch in read(tmp_path / "r.json")["batches"] for text in batch["reconstruction"]]
    assert answer.out.splitlines() == found


def test_many_batches_are_attacked_in_groups(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    many = Tag.many

    def counted(self: Tag, target: Target, updates: Sequence[Any], *rest: Any, **options: Any) -> Any:
        seen.append(len(updates))
        return many(self, target, updates, *rest, **options)

    monkeypatch.setattr(Tag, "many", counted)
    monkeypatch.setitem(MAX_GROUP, "cpu", 2)
    texts = ["a cat", "a dog", "a mat", "the cat", "the dog"]
    record = record_of(run, tmp_path, *texts)
    assert seen == [2, 2, 1]
    assert [batch["reference"] for batch in record["batches"]] == [[text] for text in texts]


@pytest.mark.parametrize(("number", "code", "word"), [(SIGINT, 130, "interrupted"), (SIGTERM, 143, "terminated")])
def test_interrupted_run_keeps_what_finished(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Signals, code: int, word: str
) -> None:
    monkeypatch.setitem(MAX_GROUP, "cpu", 1)
    many, calls = Tag.many, iter([False, True])

    def stopped(self: Tag, *arguments: Any, **options: Any) -> Any:
        found = many(self, *arguments, **options)
        if next(calls):
            os.kill(os.getpid(), number)
        return found

    monkeypatch.setattr(Tag, "many", stopped)
    answer = run("attack", "a cat", "a dog", "--json", tmp_path / "r.json")
    assert (answer.code, answer.err) == (code, f"gradleak: {word}\n")
    assert "interrupted: 1 of 2 batches finished" in answer.out
    assert "step    3 of 3" in answer.out
    record = read(tmp_path / "r.json")
    assert record["interrupted"] is True
    assert [batch["reference"] for batch in record["batches"]] == [["a cat"]]


def test_json_leaves_no_other_file_behind(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    record_of(run, tmp_path / "out", TEXT)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["result.json"]


def test_a_defense_of_single_examples_gets_them(run: Run, tmp_path: Path) -> None:
    record = record_of(run, tmp_path, "a cat", "a dog", "--batch-size", "2", "--defense", "dpsgd:1,0.01")
    assert record["scenario"]["defenses"] == ["dpsgd:1,0.01"]


def test_results_on_a_terminal_are_coloured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    answer = run("attack", TEXT)
    assert answer.code == 0
    assert "\x1b[" in answer.out
    assert "right token at another place" in answer.out


def test_a_budget_holds_for_any_attack_and_is_written_down(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    run = runner(capsys, "--model", model, "--device", "cpu", "--json", str(tmp_path / "r.json"))
    answer = run("attack", TEXT, "--attack", "dlg", "--set", "steps=1000000", "--budget", "1s")
    assert answer.code == 0
    assert "1 s for each update" in answer.out
    record = read(tmp_path / "r.json")
    assert record["scenario"]["budget"] == 1.0
    assert record["batches"][0]["notes"][-1] == OUT_OF_TIME
    assert record["batches"][0]["seconds"] < 1 + 10
    run("attack", TEXT, "--attack", "auto", "--budget", "2s")
    record = read(tmp_path / "r.json")
    assert record["settings"]["budget"] == 2.0, "auto has a budget of its own"
    assert "budget" not in record["scenario"]
