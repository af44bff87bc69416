"""`gradleak invert train`, and the attack with what it made."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import read, runner, save_model

from conftest import small_target
from gradleak.cli.options.inversion import AuxiliaryChoice
from gradleak.data import Dataset, load_dataset
from gradleak.inversion import Recipe
from gradleak.inversion.checkpoint import CHECKPOINT
from gradleak.inverters.storage import FILE

LINES = ["the cat sat on a mat", "big dog ran on a red mat", "a cat , the dog .", "the dog sat . the cat ran"] * 8
TRAIN = ("--task", "causal-lm", "--tokens", "6", "--hidden", "32", "--epochs", "2", "--chunk", "32", "--batch", "16")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_model(small_target("gpt2", "causal-lm"), tmp_path / "model")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


def test_an_inverter_is_trained_and_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, text: Path
) -> None:
    run = runner(capsys)
    folder, record = tmp_path / "inverters" / "none", tmp_path / "i.json"
    options = (*TRAIN, "--model", model, "--share", "0.1")
    answer = run(
        "invert", "train", *options, "--text", text, "--pseudo", "--size", "64", "-o", folder, "--json", record
    )
    assert (answer.code, answer.err) == (0, "")
    assert "pseudo-data" in answer.out
    assert "% of held-out tokens after" in answer.out
    assert {path.name for path in folder.iterdir()} == {FILE, CHECKPOINT, "CARD.md"}
    written = read(record)
    assert (written["schema"], written["pseudo"], written["tokens"]) == (1, True, 6)
    assert 0 <= written["accuracy"] <= 100
    use = ("--attack", "lti-p", "--set", f"inverter={folder.parent}", "--model", model, "--task", "causal-lm")
    attacked = run("attack", "the cat sat on a mat", *use, "--quiet")
    assert (attacked.code, attacked.err) == (0, "")
    assert len(attacked.out.split()) == 6
    again = run("invert", "train", *options, "--text", text, "--pseudo", "--size", "64", "-o", folder, "--quiet")
    assert again.code == 0
    assert len(again.out.splitlines()) == 1


def test_the_text_of_pseudo_data_is_read_once(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_names: list[str] = []

    def load(name: str) -> Dataset:
        read_names.append(name)
        return load_dataset(name)

    monkeypatch.setattr("gradleak.data.load_dataset", load)
    target = small_target("gpt2", "causal-lm")
    stream, unseen = AuxiliaryChoice(str(text), pseudo=True).streams(target, Recipe(tokens=6, shortest=6))
    assert read_names == [str(text)]
    assert (stream.pseudo, unseen.pseudo, stream.size) == (True, False, 20_000)


def test_text_is_mixed_and_held_out(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, text: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["b c d e f g h i j k l m"] * 20), encoding="utf-8")
    options = (*TRAIN, "--model", model, "--text", text, "--other", other, "--beta", "0.25", "--defense", "sign")
    more = ("--reduction", "hash", "--output-layer", "vocabulary", "--no-direct", "--lr", "auto", "--held-out", text)
    answer = runner(capsys)("invert", "train", *options, *more, "--size", "40", "-o", tmp_path / "out")
    assert (answer.code, answer.err) == (0, "")
    assert "(25 %)" in answer.out
    assert "40 sentences" in answer.out
    assert "sign" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reduction", "fold"), "unknown reduction 'fold'"),
        (("--output-layer", "word"), "did you mean 'words'"),
        (("--lr", "fast"), "--lr takes a number or auto"),
        (("--lr", "inf"), "--lr takes a number or auto, not 'inf'"),
        (("--lr", "0"), "lr must be above 0"),
        (("--hidden", "a"), "--hidden takes whole numbers"),
        (("--batch-size", "9"), "less than or equal to 4"),
        (("--tokens", "500"), "is not possible"),
        (("--pseudo", "--other", "cola"), "--other is for auxiliary text"),
        (("--defense", "sing"), "did you mean 'sign'"),
        (("--size", "100000"), "sentences"),
        (("--held-out", "nothing.txt"), "nothing.txt"),
    ],
    ids=str,
)
def test_bad_options_get_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, text: Path, options: tuple[str, ...], message: str
) -> None:
    always = (*TRAIN, "--model", model, "--text", text, "-o", tmp_path / "out")
    answer = runner(capsys)("invert", "train", *always, *options)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_file_is_no_folder_and_another_training_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, text: Path
) -> None:
    run = runner(capsys)
    always = (*TRAIN, "--model", model, "--text", text)
    assert "give a folder" in run("invert", "train", *always, "-o", text).err
    assert "lines.txt/out cannot be written: Not a directory" in run("invert", "train", *always, "-o", text / "out").err
    assert run("invert", "train", *always, "-o", tmp_path / "out", "--quiet").code == 0
    other = run("invert", "train", *always, "--seed", "1", "-o", tmp_path / "out")
    assert (other.code, "another training" in other.err) == (2, True)


def test_ctrl_c_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    command = ("invert", "train", *TRAIN, "--model", model, "--text", text, "-o", tmp_path / "out")
    monkeypatch.setattr("gradleak.inversion.training.JointTraining.train", interrupt)
    early = runner(capsys)(*command)
    assert early.code == 130
    assert "the same command starts anew: there is no checkpoint yet" in early.out
    monkeypatch.undo()
    monkeypatch.setattr("gradleak.inversion.training.load_inverter", interrupt)
    late = runner(capsys)(*command)
    assert late.code == 130
    assert f"the same command goes on from the checkpoint in {tmp_path / 'out'}" in late.out
