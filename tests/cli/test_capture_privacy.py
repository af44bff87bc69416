"""What `capture` writes says nothing private: no seed in it draws the client's noise, labels or dropout again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from command_line import TEXT, Run, read, runner
from safetensors import safe_open
from safetensors.torch import save_file

from gradleak.defenses import defense_stream, parse_defense
from gradleak.exchange import Update
from gradleak.federation import Client
from gradleak.targets import Target, load_target
from peft_twin import saved_adapter

NOISE = "noise:0.5"
PRIVATE = "1234567891"


@pytest.fixture
def model(bert: Target, tmp_path: Path) -> str:
    folder = tmp_path / "model"
    bert.model.bert.save_pretrained(folder)  # type: ignore[operator, union-attr]  # without a head: that is the seed's
    bert.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: str) -> Run:
    return runner(capsys, "--device", "cpu", "--quiet")


def captured(run: Run, model: str, file: Path, *options: str | Path) -> Update:
    answer = run("capture", TEXT, "-o", file, "--model", model, "--labels", "1", *options)
    assert (answer.code, answer.err) == (0, "")
    return Update.load(file)


def noise_in(update: Update, model: str) -> dict[str, torch.Tensor]:
    assert update.origin is not None
    clean = Client(load_target(model, seed=update.origin.seed)).update([TEXT], [1]).tensors
    return {name: update.tensors[name] - tensor for name, tensor in clean.items()}


def drawn_again(noise: dict[str, torch.Tensor], seed: int) -> bool:
    """Tell whether the defense, started from this seed, draws the noise that was found."""
    silent = Update({name: torch.zeros_like(tensor) for name, tensor in noise.items()})
    again = parse_defense(NOISE).apply(silent, defense_stream(seed)).tensors
    return all(torch.allclose(noise[name], tensor, atol=1e-5) for name, tensor in again.items())


def numbers_in(file: Path) -> set[int]:
    """Return every whole number that the file's metadata hold, the hash's among them."""
    with safe_open(str(file), framework="pt") as opened:
        values = opened.metadata().values()
    hashes = {int(value[:size], 16) % 2**32 for value in values if len(value) == 64 for size in (8, 16, 64)}
    return {int(value) for value in values if value.isdecimal()} | hashes


def test_no_number_in_the_file_draws_the_noise_again(run: Run, model: str, tmp_path: Path) -> None:
    file = tmp_path / "u"
    for options in ((), ("--model-seed", "9"), ("--seed", PRIVATE)):
        noise = noise_in(captured(run, model, file, "--defense", NOISE, *options), model)
        numbers = numbers_in(file)
        assert len(numbers) > 3
        assert not any(drawn_again(noise, seed) for seed in numbers | set(range(20)))
        if PRIVATE in options:  # the test can tell: who knows the seed draws the noise
            assert drawn_again(noise, int(PRIVATE))


def test_noise_labels_and_dropout_differ_from_file_to_file(run: Run, model: str, tmp_path: Path) -> None:
    for options in (("--defense", NOISE), ("--dropout",)):
        once, again = (captured(run, model, tmp_path / f"u{i}", *options).tensors for i in range(2))
        assert not all(torch.equal(tensor, again[name]) for name, tensor in once.items())
    head = set()
    for _ in range(12):
        assert run("capture", TEXT, "-o", tmp_path / "u", "--model", model).code == 0
        bias = Update.load(tmp_path / "u").tensors["classifier.bias"]
        head.add(int(bias.argmin()))
    assert head == {0, 1}


def test_a_seed_repeats_a_capture_and_is_written_nowhere(run: Run, model: str, tmp_path: Path) -> None:
    options = ("--seed", PRIVATE, "--defense", NOISE, "--dropout", "--json", tmp_path / "c.json")
    once, again = (captured(run, model, tmp_path / f"u{i}", *options).tensors for i in range(2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())
    attacked = ("--set", "steps=2", "--seed", "5", "--json", tmp_path / "a.json")
    assert run("attack", "--attack", "tag", "--update", tmp_path / "u0", *attacked).code == 0
    for name in ("u0", "c.json", "a.json"):
        content = (tmp_path / name).read_bytes()
        assert PRIVATE.encode() not in content
        assert TEXT.encode() not in content
    record = read(tmp_path / "c.json")
    assert (record["seed"], record["model_seed"]) == (None, 0)
    assert read(tmp_path / "a.json")["seed"] == 5  # the attacker's


def test_the_clients_seed_does_not_make_the_head(run: Run, model: str, tmp_path: Path) -> None:
    plain, seeded, other = (
        captured(run, model, tmp_path / "u", *options).origin
        for options in ((), ("--seed", "4"), ("--seed", "4", "--model-seed", "7"))
    )
    assert plain == seeded
    assert other is not None
    assert (other.seed, other.fingerprint) == (7, load_target(model, seed=7).fingerprint)
    assert run("attack", "--attack", "tag", "--update", tmp_path / "u", "--set", "steps=2", "--seed", "3").code == 0
    wrong = run("attack", "--attack", "tag", "--update", tmp_path / "u", "--model-seed", "8")
    assert wrong.code == 2
    assert "seed 7" in wrong.err


@pytest.mark.parametrize("options", [("--seed", "0"), ("--seed", "3", "--model-seed", "3")])
def test_a_seed_that_the_file_names_is_refused(run: Run, model: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    answer = run("capture", TEXT, "-o", tmp_path / "u", "--model", model, *options)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "is also the model's seed, which the file names" in answer.err
    assert not (tmp_path / "u").exists()


def test_a_simulation_takes_one_seed_for_all_unless_the_models_is_given(run: Run, model: str, tmp_path: Path) -> None:
    def hash_of(*options: str) -> str:
        common = ("--attack", "tag", "--set", "steps=2", "--model", model, "--json", tmp_path / "a.json")
        assert run("attack", TEXT, *common, *options).code == 0
        record = read(tmp_path / "a.json")
        assert record["scenario"]["head_seed"] == int(options[-1])
        return str(record["model_hash"])

    assert hash_of("--seed", "4") == load_target(model, seed=4).fingerprint
    assert hash_of("--seed", "4", "--model-seed", "6") == load_target(model, seed=6).fingerprint
    assert load_target(model, seed=4).fingerprint != load_target(model, seed=6).fingerprint


def test_a_file_with_one_seed_for_all_still_loads_and_is_attacked(run: Run, model: str, tmp_path: Path) -> None:
    """Files were written this way before the two seeds were told apart."""
    target = load_target(model, num_labels=3, seed=9)
    tensors = dict(Client(target, seed=9).update([TEXT], [1]).tensors)
    metadata = {
        "format": "gradleak-update",
        "schema": "1",
        "kind": "gradient",
        "target.name": model,
        "target.task": "classification",
        "target.num_labels": "3",
        "target.seed": "9",
        "target.fingerprint": target.fingerprint,
    }
    save_file(tensors, tmp_path / "old.safetensors", metadata=metadata)
    options = ("--attack", "tag", "--set", "steps=2", "--labels", "1", "--lengths", "8", "--seed", "2")
    answer = run("attack", "--update", tmp_path / "old.safetensors", *options, "--json", tmp_path / "a.json")
    assert (answer.code, answer.err) == (0, "")
    assert read(tmp_path / "a.json")["model_hash"] == target.fingerprint


def test_the_page_on_update_files_names_all_that_a_file_holds(run: Run, model: str, tmp_path: Path) -> None:
    sgd = "steps=2,lr=0.01,batch=1,momentum=0.5,weight_decay=0.1,schedule=linear,warmup=1,clip=1,accumulate=2"
    adamw = "epochs=2,lr=0.01,optimizer=adamw,beta1=0.8,beta2=0.9,eps=1e-6,shuffle=true"
    adapter = saved_adapter(tmp_path / "adapter")
    keys: set[str] = set()
    for protocol, *adapted in ((sgd, "--lora", "r=2"), (adamw, "--adapter", adapter)):
        options = (*adapted, "--fedavg", protocol, "--precision", "bf16", "--send", "fp16", "--clients", "2")
        twice = ("capture", TEXT, TEXT, "-o", tmp_path / "u", "--model", model)
        assert run(*twice, *options).code == 0
        with safe_open(str(tmp_path / "u"), framework="pt") as opened:
            keys |= opened.metadata().keys() - {"format", "schema"}
    page = (Path(__file__).parents[2] / "docs" / "update-files.md").read_text(encoding="utf-8")
    table = page.partition("| in the file |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_.0-9]+)`", table)) == keys
