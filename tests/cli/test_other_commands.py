"""`capture`, `list`, `demo`, `--help` and `--version`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import TEXT, read, runner, save_model
from safetensors import safe_open
from safetensors.torch import save_file

from gradleak.attacks import ATTACKS, DEFAULT_ATTACK
from gradleak.cli.commands import demo
from gradleak.cli.output.settings_table import value_text
from gradleak.defenses.base import DEFENSES
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.settings import settings_of
from gradleak.targets import Target
from gradleak.version import __version__

COMMANDS = ["demo", "attack", "capture", "list", "invert train", "study run", "study show"]


# --- capture ---------------------------------------------------------------------------------------------------------


def test_captured_file_is_the_clients_update_and_tells_nothing_else(
    capsys: pytest.CaptureFixture[str], bert: Target, tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    model = save_model(bert, tmp_path / "model")
    options = ("--labels", "1,0", "--seed", "4", "--embeddings", "trained", "--model", model)
    answer = runner(capsys)("capture", TEXT, "a dog ran", "-o", file, *options, "--json", tmp_path / "c.json")
    assert (answer.code, answer.err) == (0, "")
    loaded = Update.load(file)
    expected = Client(bert, embeddings="trained").update([TEXT, "a dog ran"], [1, 0])
    assert loaded.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in expected.tensors.items())
    with safe_open(str(file), framework="pt") as opened:
        metadata = opened.metadata()
    names = {"name", "task", "num_labels", "seed", "fingerprint", "trained_head"}
    assert metadata.keys() == {"format", "schema", "kind", *(f"target.{name}" for name in names)}
    assert b"cat sat" not in file.read_bytes()
    assert f"{len(loaded.tensors)} tensors, {loaded.num_values:,} values" in answer.out
    record = read(tmp_path / "c.json")
    assert (record["tensors"], record["bytes"]) == (len(loaded.tensors), file.stat().st_size)


def test_captured_fedavg_update_is_a_difference(
    capsys: pytest.CaptureFixture[str], bert: Target, tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    model = save_model(bert, tmp_path / "model")
    options = ("--fedavg", "steps=2,lr=0.01", "--defense", "sign", "--model", model, "--quiet")
    answer = runner(capsys)("capture", TEXT, "-o", file, *options)
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    loaded = Update.load(file)
    assert (loaded.kind, loaded.steps, loaded.learning_rate) == ("difference", 2, 0.01)
    assert set(torch.cat([t.flatten() for t in loaded.tensors.values()]).unique().tolist()) <= {-1.0, 0.0, 1.0}


def test_two_checkpoints_are_captured_and_attacked(
    capsys: pytest.CaptureFixture[str], bert: Target, tmp_path: Path
) -> None:
    run, model, file = runner(capsys), save_model(bert, tmp_path / "model"), tmp_path / "update.safetensors"
    protocol = "steps=2,lr=0.01,batch=1,optimizer=adamw"
    sent = Client(bert, fedavg=FedAvg(steps=2, lr=0.01, batch=1, optimizer="adamw")).update([TEXT], [1])
    after = {name: p.detach() + sent.tensors.get(name, torch.zeros(())) for name, p in bert.parameters.items()}
    save_file(after, tmp_path / "after.safetensors")
    weights = ("--before", tmp_path / "model" / "model.safetensors", "--after", tmp_path / "after.safetensors")
    options = ("--fedavg", protocol, "--precision", "bf16", "--json", tmp_path / "c.json")
    answer = run("capture", *weights, *options, "--model", model, "-o", file)
    assert (answer.code, answer.err) == (0, "")
    assert "FedAvg (2 steps, lr 0.01, batch=1, optimizer=adamw), trained in bf16, from " in answer.out
    loaded = Update.load(file)
    for name, tensor in loaded.tensors.items():
        torch.testing.assert_close(tensor, sent.tensors[name], rtol=0, atol=1e-6)
    record = read(tmp_path / "c.json")
    fedavg = {"steps": 2, "lr": 0.01, "batch": 1, "optimizer": "adamw"}
    assert (record["client"], record["defenses"]) == ({"fedavg": fedavg, "precision": "bf16"}, None)
    attacked = run("attack", "--update", file, "--attack", "tag", "--set", "steps=2", "--json", tmp_path / "a.json")
    assert attacked.code == 0
    kind = read(tmp_path / "a.json")["scenario"]["update_kind"]
    assert kind["training"] == {"batch": 1, "optimizer": "adamw"}
    assert (kind["kind"], kind["precision"], kind["why"]) == ("difference", "bf16", "the file says so")


# --- list ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attacks", "models", "datasets", "defenses"])
def test_list_shows_every_name_plainly_in_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    run = runner(capsys)
    answer = run("list", kind, "--json", tmp_path / "list.json")
    assert (answer.code, answer.err) == (0, "")
    names = [row["name"] for row in read(tmp_path / "list.json")]  # type: ignore[index]
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == names
    assert "\x1b" not in answer.out
    assert run("list", kind, "--quiet").out.splitlines() == names


def test_list_attacks_marks_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runner(capsys)("list", "attacks", "--json", tmp_path / "list.json")
    rows: list[dict[str, object]] = read(tmp_path / "list.json")  # type: ignore[assignment]
    assert {row["name"] for row in rows} == set(ATTACKS)
    assert [row["name"] for row in rows if row["default"]] == [DEFAULT_ATTACK]


def test_list_shows_every_setting_of_an_attack(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = runner(capsys)
    answer = run("list", "attacks", "lamp", "--json", tmp_path / "lamp.json")
    assert (answer.code, answer.err) == (0, "")
    record = read(tmp_path / "lamp.json")
    declared = settings_of(ATTACKS["lamp"])
    assert [row["name"] for row in record["settings"]] == list(declared)
    assert (record["name"], record["default preset"]) == ("lamp", "best")
    (polish,) = (row for row in record["settings"] if row["name"] == "polish")
    assert polish["presets"] == dict.fromkeys(("best", "fast"), 10)
    lines = {line.split()[0]: line for line in answer.out.splitlines() if line}
    for name, setting in declared.items():
        assert value_text(setting.default) in lines[name]
        assert setting.meaning in lines[name]
    assert "best: 10, fast: 10" in lines["polish"]
    assert "\x1b" not in answer.out
    assert run("list", "attacks", "lamp", "--quiet").out.split() == list(declared)


def test_only_attacks_have_settings_to_list(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = runner(capsys)("list", "attacks", "lmap")
    assert (wrong.code, wrong.err) == (2, "gradleak: unknown attack 'lmap'; did you mean 'lamp'?\n")
    models = runner(capsys)("list", "models", "tiny")
    assert (models.code, models.err.count("\n")) == (2, 1)
    assert "only attacks have settings to show" in models.err


def test_help_of_attack_says_where_the_settings_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = runner(capsys)("attack", "--help").out.replace("│", " ").split()
    assert "gradleak list attacks NAME" in " ".join(words)


def test_list_studies_names_the_ready_ones(capsys: pytest.CaptureFixture[str]) -> None:
    names = runner(capsys)("list", "studies", "--quiet").out.split()
    assert {"quick", "lamp-table1", "grab-table7"} <= set(names)


# --- demo ------------------------------------------------------------------------------------------------------------


def test_demo_tells_its_story_and_reads_the_batch_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = runner(capsys)("demo", "--json", tmp_path / "demo.json")
    assert answer.code == 0
    record = read(tmp_path / "demo.json")
    assert record["summary"]["exact"] == 100
    (batch,) = record["batches"]
    assert batch["verified"]
    assert batch["reference"] == list(demo.SENTENCES)
    assert all(f"  {sentence}\n" in answer.out for sentence in demo.SENTENCES)
    assert "dropout likely" in answer.out
    assert "The sentences never left the client, and yet the gradient gave them away word for word." in answer.out


def test_demo_takes_sentences_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = runner(capsys)("demo", "--quiet", "--text", "my father lost his money", "--text", "he ran home")
    assert quiet.code == 0
    assert quiet.out.splitlines() == ["my father lost his money", "he ran home"]


# --- help and version ------------------------------------------------------------------------------------------------


def test_help_has_an_example_and_imports_no_torch() -> None:
    commands = [[], *(name.split() for name in COMMANDS)]
    code = (
        "import sys; from gradleak.cli import main\n"
        f"for command in {commands}:\n"
        "    assert main([*command, '--help']) == 0\n"
        "    assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), command\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    for command in commands:
        assert f"Example: gradleak {' '.join(command) or 'demo'}" in answer.stdout


def test_every_command_takes_json_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        answer = runner(capsys)(*command.split(), "--help")
        assert "--json" in answer.out
        assert "--quiet" in answer.out


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(capsys)("--version").out == f"gradleak {__version__}\n"
    from gradleak.cli import main

    assert main([]) == 0
    assert "Usage: gradleak" in capsys.readouterr().out


def test_plugins_are_known_to_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = """
from gradleak.defenses.base import register
from gradleak.defenses.noise import Noise


@register
class Whisper(Noise):
    name = "whisper"
"""
    (tmp_path / "whispering.py").write_text(plugin, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GRADLEAK_PLUGINS", "whispering")
    try:
        assert "whisper" in runner(capsys)("list", "defenses", "--quiet").out.split()
    finally:
        DEFENSES.pop("whisper", None)


def test_a_plugin_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADLEAK_PLUGINS", "no_such_module")
    answer = runner(capsys)("list", "defenses")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "no_such_module" in answer.err
    assert runner(capsys)("--version").code == 0
