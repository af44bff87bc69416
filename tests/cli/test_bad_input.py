"""Whatever is wrong with the input: one clear line on stderr, exit code 2, no traceback."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import TEXT, Run, runner, save_model
from safetensors.torch import save_file

from gradleak.exchange import Update
from gradleak.federation import Client
from gradleak.targets import Target

FULL = Path("/dev/full")


@pytest.fixture
def model(bert: Target, tmp_path: Path) -> str:
    return save_model(bert, tmp_path / "model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: str) -> Run:
    return runner(capsys, "--model", model, "--device", "cpu")


@pytest.fixture
def update(bert: Target, tmp_path: Path) -> Update:
    return Update(Client(bert).update([TEXT], [1]).tensors)


def refused(run: Run, *arguments: str | Path, command: str = "attack") -> str:
    """Return the one line that the command said."""
    answer = run(command, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("gradleak: ")
    assert answer.err.count("\n") == 1
    return answer.err.removeprefix("gradleak: ").rstrip("\n")


def refused_update(run: Run, update: Update, folder: Path) -> str:
    update.save(folder / "update.safetensors")
    return refused(run, "--update", folder / "update.safetensors")


SHARED = {  # options of attack and capture alike
    "device": (["--device", "gpu"], "unknown device 'gpu'"),
    "device number": (["--device", "cpu:x"], "unknown device 'cpu:x'; did you mean 'cpu'?"),
    "embeddings": (
        ["--embeddings", "word-frozen"],
        "'word-frozen'; did you mean 'words-frozen'?",
    ),
    "defense": (["--defense", "nose:1"], "unknown defense 'nose'; did you mean 'noise'?"),
    "defense value": (["--defense", "prune:7"], "defense prune takes a share"),
    "model": (["--model", ""], "--model takes a name, a directory, a GGUF file or a hub id, not ''"),
    "task": (["--task", "causal"], "unknown task 'causal'; did you mean 'causal-lm'?"),
    "num-labels": (["--num-labels", "1"], "a classifier needs at least 2 labels, not 1"),
    "no labels": (["--num-labels", "0"], "a classifier needs at least 2 labels, not 0"),
    "labels": (["--labels", "one"], "--labels takes whole numbers with commas between them, not 'one'"),
    "labels below 0": (["--labels", "-1"], "--labels takes numbers from 0 up, not -1"),
    "labels too many": (["--labels", "0,1"], "there are 1 texts and 2 labels"),
    "labels too large": (["--labels", "2"], "label 2 is not one of 2 (they count from 0)"),
    "fedavg": (["--fedavg", "4"], "--fedavg takes steps=N,lr=RATE and maybe batch=N, not '4'"),
    "fedavg key": (["--fedavg", "step=4,lr=1"], "unknown setting of --fedavg 'step'; did you mean 'steps'?"),
    "fedavg lacks": (["--fedavg", "steps=4"], "--fedavg lacks lr: steps=N,lr=RATE and maybe batch=N"),
    "fedavg number": (["--fedavg", "steps=4.5,lr=1"], "--fedavg steps takes a whole number, not '4.5'"),
    "fedavg rate": (["--fedavg", "steps=4,lr=inf"], "--fedavg lr takes a number, not 'inf'"),
    "fedavg optimizer": (
        ["--fedavg", "steps=1,lr=1,optimizer=adamm"],
        "unknown optimizer 'adamm'; did you mean 'adam'?",
    ),
    "fedavg steps and epochs": (["--fedavg", "steps=1,lr=1,epochs=2"], "steps=1 and epochs=2 exclude each other"),
    "fedavg batch": (
        ["--fedavg", "steps=1,lr=1,batch=2"],
        "batch=2 of FedAvg is larger than the client's data: 1 text",
    ),
    "fedavg clip": (["--fedavg", "steps=1,lr=1,clip=-1"], "clip must be at least 0, not -1"),
    "fedavg shuffle": (["--fedavg", "steps=1,lr=1,shuffle=ja"], "--fedavg shuffle takes true or false, not 'ja'"),
    "fedavg setting of another": (["--fedavg", "steps=1,lr=1,eps=1"], "eps is a setting of adam and adamw, not of sgd"),
    "precision": (["--precision", "fp61"], "unknown precision 'fp61'; did you mean 'fp16'?"),
    "send": (["--send", "int4"], "unknown number format to send 'int4'; did you mean 'int8'?"),
    "clients": (["--clients", "0"], "Invalid value for '--clients'"),
    "fedavg range": (["--fedavg", "steps=0,lr=1"], "FedAvg needs steps of at least 1"),
    "seed": (["--seed", "-1"], "Invalid value for '--seed'"),
    "take": (["--take", "0:4"], "--take is for --dataset"),
    "text-column": (["--text-column", "x"], "--text-column is for --dataset"),
    "option": (["--modl", "tiny"], "No such option: --modl"),
    "json folder": (
        ["--json", "nowhere/result.json"],
        "cannot be written: there is no folder nowhere",
    ),
    "json is a folder": (["--json", "."], ". is a folder"),
}
ONLY_ATTACK = {
    "attack without a name": (["--attack", ""], "unknown attack ''; known: auto, "),
    "attack": (["--attack", "tagg"], "unknown attack 'tagg'; did you mean 'tag'?"),
    "preset": (["--attack", "lamp", "--preset", "fats"], "unknown preset of lamp 'fats'; did you mean 'fast'?"),
    "setting": (["--attack", "lamp", "--set", "step=5"], "unknown setting of lamp 'step'; did you mean 'steps'?"),
    "setting value": (["--attack", "lamp", "--set", "steps=five"], "setting steps takes a whole number, not 'five'"),
    "budget": (["--budget", "soon"], "--budget takes a time as 90s, 5m or 1h, not 'soon'"),
    "no budget": (["--budget", "0s"], "--budget takes a time as 90s, 5m or 1h, not '0s'"),
    "budget of another": (["--attack", "lamp", "--budget", "9"], "--budget takes a time as 90s, 5m or 1h, not '9'"),
    "setting form": (["--set", "steps"], "--set takes KEY=VALUE, not 'steps'"),
    "knowledge": (["--know", "label"], "unknown knowledge 'label'; did you mean 'labels'?"),
    "knowledge none": (["--know", "none,labels"], "--know none stands alone"),
    "batch-size": (["--batch-size", "0"], "Invalid value for '--batch-size'"),
    "lengths": (["--lengths", "8"], "--lengths is for --update"),
    "clients without texts": (
        ["--clients", "2"],
        "sums over 2 clients with batches of 1 take 2 texts each, or a multiple; there is 1",
    ),
    "dataset too": (["--dataset", "cola"], "TEXT and --dataset exclude each other"),
    "update too": (["--update", "x.safetensors"], "TEXT and --update exclude each other"),
}


@pytest.mark.parametrize(("options", "message"), [*SHARED.values(), *ONLY_ATTACK.values()], ids=[*SHARED, *ONLY_ATTACK])
def test_a_bad_option_of_attack_is_said(run: Run, options: list[str], message: str) -> None:
    assert message in refused(run, TEXT, *options)


@pytest.mark.parametrize(("options", "message"), SHARED.values(), ids=SHARED)
def test_a_bad_option_of_capture_is_said(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    assert message in refused(run, TEXT, "-o", tmp_path / "u.safetensors", *options, command="capture")
    assert not (tmp_path / "u.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to attack: give TEXT, --dataset NAME|FILE or --update FILE"),
        ([""], "text 1 is empty"),
        ([TEXT, "  "], "text 2 is empty"),
        ([" ".join(["cat"] * 50)], "text 1 has 52 tokens;"),
        (["a \udcff"], "text 1 is not valid UTF-8"),
        (["--dataset", "colla"], "unknown dataset 'colla'; did you mean 'cola'?"),
        (["--dataset", "cola", "--take", "5:2"], "examples are taken as A:B with A below B"),
        (["--dataset", "cola", "--take", "5000:"], "cola has 100 examples: 5000: leaves none"),
        (["--dataset", "cola", "--text-column", "x"], "the sample 'cola' has no columns"),
        (["--dataset", "missing.csv"], "missing.csv does not exist"),
        (["--update", "missing.safetensors"], "missing.safetensors cannot be read: No such file or directory"),
        (["--update", "x", "--know", "labels"], "--know is for a client simulated here"),
        (["--update", "x", "--defense", "sign"], "--defense is for a client simulated here"),
        (["--update", "x", "--dropout"], "--dropout is for a client simulated here"),
        (["--update", "x", "--lengths", "8,x"], "--lengths takes whole numbers with commas between them, not '8,x'"),
        (["--update", "x", "--lengths", "8", "--labels", "0,1"], "speak of different numbers of sequences"),
    ],
)
def test_a_bad_source_is_said(run: Run, arguments: list[str], message: str) -> None:
    assert message in refused(run, *arguments)


def test_dataset_file_of_another_encoding_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes("crème brûlée".encode("latin-1"))
    assert "is not UTF-8 text (byte 0xe8 at position 2)" in refused(run, "--dataset", tmp_path / "data.txt")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tinny", "unknown model 'tinny'; did you mean 'tiny'?"),
        ("./nowhere", "no such directory: ./nowhere"),
        (".", ". holds no model: there is no config.json in it"),
    ],
)
def test_an_unknown_model_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(runner(capsys), TEXT, "--model", model) == message


def test_a_model_of_pickles_is_refused(run: Run, model: str) -> None:
    (Path(model) / "model.safetensors").rename(Path(model) / "pytorch_model.bin")
    assert "only with --allow-pickle" in refused(run, TEXT)


def test_tensors_that_do_not_fit_are_named_with_both_shapes(run: Run, update: Update, tmp_path: Path) -> None:
    wrong = update.with_tensors({**update.tensors, "classifier.weight": torch.zeros(3, 16)})
    message = refused_update(run, wrong, tmp_path)
    assert "'classifier.weight' has shape (3, 16)" in message
    assert "expects (2, 16)" in message


def test_a_tensor_of_another_model_is_named(run: Run, update: Update, tmp_path: Path) -> None:
    foreign = update.with_tensors({**update.tensors, "transformer.h.0": torch.zeros(3)})
    assert "'transformer.h.0' is not a parameter of" in refused_update(run, foreign, tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_inf_are_refused(run: Run, update: Update, tmp_path: Path, value: float) -> None:
    broken = update.with_tensors({**update.tensors, "classifier.bias": torch.tensor([0.0, value])})
    assert "'classifier.bias' holds NaN or Inf" in refused_update(run, broken, tmp_path)


def test_an_update_of_other_weights_is_refused(run: Run, bert: Target, tmp_path: Path) -> None:
    made = Client(bert).update([TEXT], [1])
    with torch.no_grad():
        bert.parameters["classifier.bias"] += 1
    save_model(bert, tmp_path / "model")
    assert "the update was computed on other weights" in refused_update(run, made, tmp_path)


def test_a_truncated_file_is_refused(run: Run, update: Update, tmp_path: Path) -> None:
    file = tmp_path / "update.safetensors"
    update.save(file)
    file.write_bytes(file.read_bytes()[:-100])
    assert "is corrupt or truncated" in refused(run, "--update", file)


def test_a_pickle_is_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "update.pt"
    file.write_bytes(pickle.dumps({"w": 1}))
    assert "looks like a pickle, which can run code" in refused(run, "--update", file)


def test_an_update_without_tensors_is_refused(run: Run, tmp_path: Path) -> None:
    save_file({}, tmp_path / "empty.safetensors")
    assert "holds no tensors" in refused(run, "--update", tmp_path / "empty.safetensors")


def test_an_attack_that_lacks_what_it_needs_says_so_before_it_starts(run: Run, update: Update, tmp_path: Path) -> None:
    words = {"bert.embeddings.word_embeddings.weight": torch.zeros(45, 16)}
    message = refused_update(run, update.with_tensors(words), tmp_path)
    assert message == "auto needs gradients of layers; this update has none (see --embeddings)"


def test_impossible_lengths_of_an_update_are_refused(run: Run, update: Update, tmp_path: Path) -> None:
    update.save(tmp_path / "u.safetensors")
    assert "a length of 999 tokens is not possible" in refused(
        run, "--update", tmp_path / "u.safetensors", "--lengths", "999"
    )


CHECKPOINTS = {
    "after alone": (["--after", "b"], "--before and --after go together"),
    "text": (
        ["--before", "a", "--after", "b", TEXT],
        "TEXT is for a client simulated here; leave it out with --before",
    ),
    "seed": (["--before", "a", "--after", "b", "--seed", "3"], "--seed is for a client simulated here"),
    "no protocol": (["--before", "a", "--after", "b"], "--before and --after need --fedavg steps=…,lr=…"),
    "no file": (["--before", "a", "--after", "b", "--fedavg", "steps=1,lr=1"], "a cannot be read"),
    "same file": (["--before", "a", "--after", "b", "--json", "u.safetensors"], "are one file; give two"),
    "uneven": ([TEXT, "--clients", "2"], "1 text cannot be shared out evenly among 2 clients"),
}


@pytest.mark.parametrize(("options", "message"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_capture_of_checkpoints_says_what_is_wrong(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(run, *options, "-o", "u.safetensors", command="capture")
    assert not Path("u.safetensors").exists()


def test_capture_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    assert "Missing option" in refused(run, TEXT, command="capture")
    output = ("-o", tmp_path / "u.safetensors")
    assert "give either TEXT or --dataset" in refused(run, *output, command="capture")
    assert "there is no folder" in refused(run, TEXT, "-o", tmp_path / "no" / "u.safetensors", command="capture")


def test_capture_writes_no_update_that_no_attack_takes(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "u.safetensors"
    message = refused(run, TEXT, "-o", output, "--fedavg", "steps=2,lr=1e30", command="capture")
    assert "holds NaN or Inf" in message
    assert not output.exists()


def test_nothing_is_put_in_the_place_of_what_is_no_ordinary_file(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe is no ordinary file" in refused(run, TEXT, "--json", pipe)
    assert "pipe is no ordinary file" in refused(run, TEXT, "-o", pipe, command="capture")
    assert pipe.is_fifo()


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", deny)
    monkeypatch.setattr("gradleak.targets.load_target", None)  # is not reached
    result = tmp_path / "result.json"
    assert refused(run, TEXT, "--json", result) == f"{result} cannot be written: Permission denied"


def test_list_and_commands_give_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    assert refused(run, "atacks", command="list") == "unknown list 'atacks'; did you mean 'attacks'?"
    assert "'attack'" in refused(run, command="atack")


@pytest.mark.parametrize("group", ["study", "invert"])
def test_a_command_without_its_second_word_shows_what_there_is(capsys: pytest.CaptureFixture[str], group: str) -> None:
    answer = runner(capsys)(group)
    assert (answer.code, answer.err) == (2, "")
    assert f"Usage: gradleak {group}" in answer.out


@pytest.mark.slow
def test_another_process_answers_in_one_line_too() -> None:
    command = [sys.executable, "-m", "gradleak", "attack", "-q", "cat " * 300]  # the tokenizer warns of it, too
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("gradleak: text 1 has 302 tokens; tiny takes at most 256 ('cat cat")
    assert answer.stderr.count("\n") == 1


@pytest.mark.skipif(not FULL.is_char_device(), reason="there is no device that is always full")
def test_a_full_disk_is_said() -> None:
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "gradleak", "--help"]
        answer = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr) == (2, "gradleak: No space left on device\n")
