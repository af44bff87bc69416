"""`--lora` and `--adapter`: the same adapter in another process, or one line on what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import TEXT, Run, read, runner, save_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from conftest import small_target
from gradleak.exchange import Update
from gradleak.targets import load_target
from peft_twin import saved_adapter

QUICK = ("--attack", "dlg", "--set", "steps=2")
LORA = "r=2,targets=query+value,rounds=1"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_model(small_target("bert"), tmp_path / "model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys, "--device", "cpu", "--quiet")


def test_attack_simulates_a_client_with_a_fresh_adapter(run: Run, model: str, tmp_path: Path) -> None:
    answer = run("attack", TEXT, "--model", model, "--lora", LORA, *QUICK, "--json", tmp_path / "result.json")
    assert (answer.code, answer.err) == (0, "")
    scenario = read(tmp_path / "result.json")["scenario"]
    assert scenario["lora"] == {"r": 2, "alpha": 16.0, "targets": "query+value", "rounds": 1}


def test_an_update_of_a_fresh_adapter_is_attacked_without_options(
    run: Run, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    answer = run("capture", TEXT, "--model", model, "--lora", LORA, "--model-seed", "5", "-o", file)
    assert (answer.code, answer.err) == (0, "")
    with safe_open(str(file), framework="pt") as opened:
        assert opened.metadata()["target.lora"] == "r=2,alpha=16,targets=query+value,rounds=1"
    assert all(name.startswith("base_model.model.") for name in load_file(file))
    other = runner(capsys, "--device", "cpu")("attack", "--update", file, *QUICK)
    assert (other.code, other.err) == (0, "")
    assert "LoRA (r=2, alpha=16, targets=query+value, rounds=1)" in " ".join(other.out.split())


def test_an_update_of_an_adapter_from_a_folder_names_what_is_needed(run: Run, model: str, tmp_path: Path) -> None:
    folder, file = saved_adapter(tmp_path / "adapter"), tmp_path / "update.safetensors"
    answer = run("capture", TEXT, "--model", model, "--adapter", folder, "-o", file, "--json", tmp_path / "record.json")
    assert (answer.code, answer.err) == (0, "")
    assert read(tmp_path / "record.json")["adapter"] == folder
    fingerprint = load_target(model, adapter=folder).adapter_fingerprint
    with safe_open(str(file), framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["target.adapter"] == fingerprint
    assert folder not in json.dumps(metadata)
    answer = run("attack", "--update", file, *QUICK)
    assert answer.code == 2
    assert f"with the fingerprint {fingerprint[:12]}" in answer.err
    assert "give --adapter DIR, the adapter before training" in answer.err
    assert run("attack", "--update", file, "--adapter", folder, *QUICK).code == 0
    other = saved_adapter(tmp_path / "other", lora_alpha=9)
    tensors = load_file(f"{other}/adapter_model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, f"{other}/adapter_model.safetensors")
    answer = run("attack", "--update", file, "--adapter", other, *QUICK)
    assert answer.code == 2
    assert f"was computed on another adapter ({fingerprint[:12]}) than adapter {other}" in answer.err


def test_two_adapter_files_of_other_software_make_an_update(run: Run, model: str, tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path / "adapter")
    before, after = Path(folder) / "adapter_model.safetensors", tmp_path / "after.safetensors"
    old = load_file(before)
    save_file({name: tensor + 0.25 for name, tensor in old.items()}, after)
    options = ("--before", before, "--after", after, "--fedavg", "steps=2,lr=0.1", "--model", model)
    answer = run("capture", *options, "--adapter", folder, "-o", tmp_path / "update.safetensors")
    assert (answer.code, answer.err) == (0, "")
    update = Update.load(tmp_path / "update.safetensors")
    assert update.tensors.keys() == old.keys()
    assert all(torch.allclose(tensor, torch.tensor(0.25)) for tensor in update.tensors.values())
    assert run("attack", "--update", tmp_path / "update.safetensors", "--adapter", folder, *QUICK).code == 0
    answer = run("capture", *options, "-o", tmp_path / "other.safetensors")
    assert answer.code == 2
    assert "holds weights of an adapter: give --adapter with the one before training" in answer.err


def test_an_adapter_gradient_of_other_software_fits(run: Run, model: str, tmp_path: Path) -> None:
    folder, file = saved_adapter(tmp_path / "adapter"), tmp_path / "update.safetensors"
    run("capture", TEXT, "--model", model, "--adapter", folder, "-o", file)
    save_file(load_file(file), tmp_path / "bare.safetensors")
    bare = ("attack", "--update", tmp_path / "bare.safetensors", "--model", model, "--kind", "gradient", *QUICK)
    assert run(*bare, "--adapter", folder).code == 0
    answer = run(*bare)
    assert answer.code == 2
    assert "it is one of an adapter; give --adapter with the adapter before training, or --lora" in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lora", "r=0"], "r must be at least 1, not 0"),
        (["--lora", "rank=8"], "unknown setting of --lora 'rank'"),
        (["--lora", "8"], "--lora takes r=8,alpha=16,targets=q_proj+v_proj and the like, not '8'"),
        (["--lora", "targets=q_proj"], "has no module 'q_proj' to adapt; there are dense, key, query, value"),
        (["--lora", "r=2", "--adapter", "here"], "--lora and --adapter exclude each other"),
        (["--adapter", "nowhere"], "nowhere is no directory; give the one with adapter_config.json"),
        (["--lora", "r=2", "--embeddings", "trained"], "a client with adapters trains those alone"),
        (["--lora", "r=2", "--attack", "sieve"], "sieve needs attention gradients; this update is one of adapters"),
    ],
)
def test_mistakes_get_one_line(run: Run, model: str, options: list[str], message: str) -> None:
    chosen = [] if "--attack" in options else QUICK
    answer = run("attack", TEXT, "--model", model, *chosen, *options)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_the_base_of_an_adapter_must_fit(run: Run, tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path / "adapter")
    answer = run("attack", TEXT, "--model", "tiny", "--adapter", folder, *QUICK)
    assert answer.code == 2
    assert "does not fit tiny" in answer.err


def test_a_pickled_adapter_is_read_with_the_flag_alone(run: Run, model: str, tmp_path: Path) -> None:
    folder = Path(saved_adapter(tmp_path / "adapter"))
    tensors = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(tensors, folder / "adapter_model.bin")
    command = ("attack", TEXT, "--model", model, "--adapter", folder, *QUICK)
    answer = run(*command)
    assert answer.code == 2
    assert "is a pickle, which can run code: it is read only with --allow-pickle" in answer.err
    assert run(*command, "--allow-pickle").code == 0


def test_the_classes_of_an_adapter_stay(run: Run, model: str, tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path / "adapter")
    texts = tmp_path / "texts.csv"
    texts.write_text(f"text,label\n{TEXT},a\nthe dog ran,b\na cat,c\n")
    command = ("attack", "--model", model, "--adapter", folder, *QUICK)
    answer = run(*command, "--dataset", texts)
    assert answer.code == 2
    assert "\n" not in answer.err.strip()
    assert run(*command, "--dataset", texts, "--labels", "a=0,b=1,c=1", "--take", "0:1").code == 0
