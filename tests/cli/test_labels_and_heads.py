"""How the labels of the data become classes of the model, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import TEXT, Answer, Run, read, runner, save_model
from safetensors.torch import load_file, save_file

from conftest import small_target
from gradleak.targets import Target

NAMES = ("awful", "bad", "fair", "good", "great")


@pytest.fixture(scope="module")
def trained() -> Target:
    """A classifier of five named classes."""
    target = small_target("bert", num_labels=5)
    target.config.id2label = dict(enumerate(NAMES))
    target.config.label2id = {name: number for number, name in enumerate(NAMES)}
    return target


@pytest.fixture
def model(trained: Target, tmp_path: Path) -> str:
    return save_model(trained, tmp_path / "model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: str) -> Run:
    return runner(capsys, "--model", model, "--attack", "tag", "--set", "steps=1", "--device", "cpu")


def labelled(folder: Path, *labels: str) -> Path:
    file = folder / "data.csv"
    file.write_text("label,text\n" + "".join(f"{label},the cat sat\n" for label in labels), encoding="utf-8")
    return file


def scenario(answer: Answer, file: Path) -> dict[str, Any]:
    assert (answer.code, answer.err) == (0, "")
    found: dict[str, Any] = read(file)["scenario"]
    return found


def refused(answer: Answer) -> str:
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    return answer.err


@pytest.mark.parametrize("more", [(), ("--num-labels", "5")])
def test_labels_from_1_use_the_trained_head_as_it_is(
    run: Run, tmp_path: Path, trained: Target, more: tuple[str, ...]
) -> None:
    out = tmp_path / "r.json"
    answer = run("attack", "--dataset", labelled(tmp_path, "1", "5", "3", "2", "4"), "--json", out, *more)
    found = scenario(answer, out)
    assert found["num_labels"] == 5
    assert found["labels"] == {"from": "dataset", "by": "order", "classes": {str(n + 1): n for n in range(5)}}
    assert read(out)["model_hash"] == trained.fingerprint
    assert [batch["labels"] for batch in read(out)["batches"]] == [[0], [4], [2], [1], [3]]
    assert "1 → 0, 2 → 1, 3 → 2, 4 → 3, 5 → 4 (by the order of the labels;" in answer.out


def test_labels_are_found_among_the_names_of_the_classes(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    found = scenario(run("attack", "--dataset", labelled(tmp_path, "GREAT", "Bad"), "--json", out), out)
    assert found["labels"] == {"from": "dataset", "by": "names", "classes": {"Bad": 1, "GREAT": 4}}


def test_labels_are_mapped_as_given(run: Run, tmp_path: Path) -> None:
    out, file = tmp_path / "r.json", labelled(tmp_path, "x", "y")
    found = scenario(run("attack", "--dataset", file, "--json", out, "--labels", "x=3,y=0"), out)
    assert found["labels"] == {"from": "dataset", "by": "given", "classes": {"x": 3, "y": 0}}
    assert [batch["labels"] for batch in read(out)["batches"]] == [[3], [0]]
    found = scenario(run("attack", "--dataset", file, "--json", out, "--labels", "1,2"), out)
    assert found["labels"]["from"] == "option"


def test_more_labels_than_classes_need_a_new_head(run: Run, tmp_path: Path, trained: Target) -> None:
    file, out = labelled(tmp_path, *"abcdefg"), tmp_path / "r.json"
    message = refused(run("attack", "--dataset", file))
    assert "has 7 labels, and the model 5 classes; give --new-head" in message
    assert "--labels a=0,b=1,…" in message
    assert scenario(run("attack", "--dataset", file, "--json", out, "--new-head"), out)["num_labels"] == 7
    assert read(out)["model_hash"] != trained.fingerprint


def test_another_number_of_classes_needs_a_new_head(run: Run) -> None:
    assert "has a trained head of 5 classes, not 6" in refused(run("attack", TEXT, "--num-labels", "6"))
    answer = run("attack", TEXT, "--num-labels", "6", "--new-head")
    assert "6 classes (new head)" in answer.out


def test_a_class_beyond_a_trained_head_does_not_lead_to_another_head(run: Run) -> None:
    assert "label 5 is not one of 5 (they count from 0)" in refused(run("attack", TEXT, "--labels", "5"))


def test_a_class_beyond_a_new_head_asks_for_a_larger_one(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(runner(capsys, "--attack", "tag")("attack", TEXT, "--labels", "2"))
    assert "label 2 is not one of 2; give --num-labels 3 or more" in message


def test_labels_that_are_drawn_are_said_to_be(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    answer = run("attack", TEXT, "--json", out)
    assert "drawn at random (by --seed, if given): the text has no labels" in answer.out
    assert scenario(answer, out)["labels"] == {"from": "seed", "by": None, "classes": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([TEXT, "--labels", "a=1"], "maps labels of --dataset"),
        (["--dataset", "DATA", "--labels", "q=1"], "has no label 'q'; its labels: x, y"),
        (["--dataset", "DATA", "--labels", "x=1"], "label 'y' of"),
        (["--dataset", "DATA", "--labels", "x=9,y=0"], "class 9 for label 'x' is not one of 5"),
    ],
)
def test_a_mapping_that_does_not_fit_gets_one_line(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    file = labelled(tmp_path, "x", "y")
    assert message in refused(run("attack", *(str(file) if option == "DATA" else option for option in options)))


@pytest.mark.parametrize("more", [(), ("--new-head",), ("--new-head", "--num-labels", "6")])
def test_a_captured_update_brings_the_head_of_its_client(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, more: tuple[str, ...]
) -> None:
    run, update = runner(capsys), tmp_path / "update.safetensors"
    file = labelled(tmp_path, "1", "5", "2", "3", "4")
    made = run("capture", "--dataset", file, "-o", update, "--model", model, *more)
    assert "1 → 0, 2 → 1" in made.out
    answer = run("attack", "--attack", "tag", "--update", update, "--batch-size", "5", "--set", "steps=1")
    assert (answer.code, answer.err) == (0, "")
    assert ("(new head)" in answer.out) == bool(more)


def test_a_file_of_an_older_version_with_another_number_of_classes_still_loads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    from safetensors import safe_open

    run, update = runner(capsys), tmp_path / "update.safetensors"
    run("capture", TEXT, "-o", update, "--model", model, "--new-head", "--num-labels", "6")
    with safe_open(str(update), framework="pt") as file:
        metadata = file.metadata()
    del metadata["target.trained_head"]
    save_file(load_file(update), update, metadata=metadata)
    answer = run("attack", "--attack", "tag", "--update", update, "--set", "steps=1")
    assert (answer.code, answer.err) == (0, "")


# --- files of other software ---------------------------------------------------------------------------------------


def test_a_difference_of_other_software_is_asked_for_its_steps(run: Run, tmp_path: Path, model: str) -> None:
    from gradleak.federation import Client, FedAvg
    from gradleak.targets import load_target

    file, out = tmp_path / "difference.safetensors", tmp_path / "r.json"
    client = Client(load_target(model), fedavg=FedAvg(steps=4, lr=5e-3))
    save_file(dict(client.update([TEXT], [1]).tensors), file)
    message = refused(run("attack", "--update", file))
    assert "looks like a difference of weights" in message
    assert "--fedavg steps=…,lr=…" in message
    answer = run("attack", "--update", file, "--fedavg", "steps=4,lr=5e-3", "--json", out)
    kind = {"kind": "difference", "steps": 4, "lr": 5e-3, "why": "--fedavg says so"}
    assert scenario(answer, out)["update_kind"] == kind
    assert "FedAvg (4 steps, lr 0.005)" in answer.out
    answer = run("attack", "--update", file, "--kind", "gradient")
    assert "gradient: --kind says so" in answer.out
    adamw = "steps=4,lr=5e-3,batch=1,optimizer=adamw"
    answer = run("attack", "--update", file, "--fedavg", adamw, "--json", out)
    assert scenario(answer, out)["update_kind"] == kind | {"training": {"batch": 1, "optimizer": "adamw"}}
    assert "FedAvg (4 steps, lr 0.005, batch=1, optimizer=adamw)" in answer.out
    assert "--send is for a client simulated here" in refused(run("attack", "--update", file, "--send", "fp16"))
    assert "unknown kind of update 'weights'" in refused(run("attack", "--update", file, "--kind", "weights"))
    assert "--kind is for --update" in refused(run("attack", TEXT, "--kind", "gradient"))
