from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run, read, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("gradleak.vision.lpips.find_lpips_weights", lambda: None)
    return runner(capsys)


def test_attack_prints_scores_draws_a_picture_and_writes_json(run: Run, tmp_path: Path) -> None:
    picture, record = tmp_path / "a.png", tmp_path / "a.json"
    options = ["--take", "0:2", "--attack", "ig", "--set", "steps=3", "--defense", "sign"]
    answer = run("images", "attack", *options, "--picture", picture, "--json", record)
    assert answer.code == 0, answer.err
    assert "PSNR" in answer.out
    assert "LPIPS is left out" in answer.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = read(record)
    assert written["schema"] == 1
    assert written["scenario"]["defenses"] == ["sign"]
    assert set(written["summary"]) == {"mse", "psnr", "ssim", "seconds"}
    assert len(written["batches"]) == 2
    assert written["batches"][0]["labels"] == written["batches"][0]["reference"]


@pytest.mark.parametrize(
    ("interrupted", "arguments"),
    [
        ("gradleak.vision.runs.ImageRun.run", ["attack", "--take", "0:2"]),
        (
            "gradleak.vision.inverter_training.InverterTraining.run",
            ["train-inverter", "--auxiliary", "cifar10-sample", "-o", "inverter"],
        ),
    ],
)
def test_an_interrupt_is_said_in_the_json(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str, arguments: list[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interrupted, interrupt)
    answer = run("images", *arguments, "--json", "o.json")
    assert (answer.code, answer.err) == (130, "gradleak: interrupted\n")
    assert "interrupted: " in answer.out
    written = read(tmp_path / "o.json")
    assert (written["schema"], written["interrupted"]) == (1, True)
    assert written.get("batches", []) == []
    assert [path.name for path in tmp_path.iterdir()] == ["o.json"]


def test_an_inverter_is_trained_and_used(run: Run, tmp_path: Path) -> None:
    network = ["hidden=8", "epochs=1", "batch=16", "copies=1", "steps=2"]
    refiner = ["rounds=1", "width=8", "refiner_epochs=1", "refiner_batch=16"]
    tiny = [*network, *refiner]
    sets = [part for one in tiny for part in ("--set", one)]
    folder = tmp_path / "inverter"
    answer = run("images", "train-inverter", "--auxiliary", "cifar10-sample", "--count", "40", *sets, "-o", folder)
    assert answer.code == 0, answer.err
    answer = run("images", "attack", "--take", "0:1", "--attack", "lti", "--set", f"inverter={folder}")
    assert answer.code == 0, answer.err
    assert "40 auxiliary images" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attack", "igg"], "did you mean 'ig'"),
        (["--model", "lennet"], "did you mean 'lenet'"),
        (["--dataset", "cifar10"], "needs its split"),
        (["--take", "0:1", "--labels", "10"], "label 10 is not one of 10"),
        (["--take", "0:3", "--batch-size", "2"], "do not fill batches"),
        (["--size", "16"], "32 × 32 pixels"),
        (["--attack", "lti"], "train-inverter"),
        (["--know", "lengths"], "unknown knowledge"),
        (["--defense", "sing"], "did you mean 'sign'"),
        (["--take", "900:"], "none of them in the range"),
    ],
)
def test_bad_input_gets_one_line(run: Run, options: list[str], message: str, tmp_path: Path) -> None:
    if options == ["--attack", "lti"]:
        options = [*options, "--take", "0:1", "--set", f"inverter={tmp_path}"]
    answer = run("images", "attack", *options)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
