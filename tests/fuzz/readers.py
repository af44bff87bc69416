"""Every reader of files and options, with examples to mutate: it returns, or raises a GradleakError."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from mutation import mutated, mutated_json, mutated_safetensors
from network_readers import NETWORK_READERS
from reader import Reader, small
from result_readers import RESULT_READERS
from safetensors.torch import save_file

from gradleak.cli import main
from gradleak.data.files import load_file
from gradleak.errors import GradleakError
from gradleak.exchange import Update, settle_kind
from gradleak.federation import Client, FedAvg
from gradleak.studies.definition.study import load_study
from gradleak.studies.records.soundness import LATER, TABLES
from gradleak.studies.records.store import Store
from gradleak.studies.report.export import to_csv, to_json, to_latex
from gradleak.studies.report.summary import summarise
from gradleak.targets import load_target
from gradleak.targets.adapters.folder import read_adapter

# --- updates ---------------------------------------------------------------------------------------------------------


def write_updates(folder: Path) -> list[bytes]:
    path = folder / "example.safetensors"
    texts, labels = ["the cat sat on the mat"], [1]
    updates = [
        Client(small()).update(texts, labels),
        Client(small(), fedavg=FedAvg(steps=2, lr=0.1, optimizer="adamw"), precision="bf16").update(texts, labels),
    ]
    updates.append(Update(updates[0].tensors))
    contents = []
    for update in updates:
        update.save(path)
        contents.append(path.read_bytes())
    save_file({"a": torch.zeros(2), "b": torch.zeros(2, 2).half()}, path, metadata={"kind": "difference"})
    return [*contents, path.read_bytes()]


def read_update(path: Path) -> None:
    update = Update.load(path)
    update, _ = settle_kind(update, small(), path, kind=None)
    update.check(small())
    update.gradient()


# --- studies ---------------------------------------------------------------------------------------------------------


def write_studies(folder: Path) -> list[bytes]:
    ready = Path(load_study.__code__.co_filename).parents[1] / "ready"
    own = b"""
name = "mine"
[[grid]]
target = { name = "tiny", num_labels = 3, lora = { r = 4, targets = "query+value" } }
dataset = { name = "cola", take = "0:8", labels = { "0" = 1, "1" = 0 } }
batch_size = [1, 2]
client = { dropout = 0.2, fedavg = { steps = 2, lr = 1e-3, optimizer = "adamw" }, send = "int8", clients = 2 }
defense = [[], "noise:0.01", ["clip:1", "noise:0.1"]]
knowledge = ["paper", ["labels"]]
attack = ["tag", { name = "lamp", preset = "fast", settings = { steps = 5, lr = 0.1 } }]
seed = [0, 1]
"""
    return [own, *((ready / name).read_bytes() for name in ("quick.toml", "lamp-table1.toml", "grab-figure5.toml"))]


def read_study_file(path: Path) -> None:
    load_study(path)


# --- databases -------------------------------------------------------------------------------------------------------


def write_databases(folder: Path) -> list[bytes]:
    path = folder / "example.db"
    path.unlink(missing_ok=True)
    attack = {
        "kind": "attack",
        "target": {"name": "tiny", "num_labels": 2},
        "dataset": {"name": "cola", "take": "0:2"},
        "batch_size": 1,
        "client": {"dropout": False, "embeddings": "frozen", "fedavg": {"steps": 2, "lr": 0.1}},
        "defenses": ["noise:0.01"],
        "knowledge": ["labels"],
        "attack": {"name": "tag", "preset": "paper", "settings": {"steps": 3}},
        "seed": 0,
        "hashes": {"weights": "a"},
    }
    utility = {"kind": "utility", "target": {"name": "tiny"}, "defenses": [], "seed": 0, "train": {"name": "cola"}}
    file = sqlite3.connect(path)
    file.executescript(TABLES + LATER)
    file.execute("INSERT INTO meta VALUES ('title', 'a study'), ('stale', '{\"c\": \"other weights\"}')")
    for name, config, status in (("a", attack, "done"), ("b", utility, "done"), ("c", attack, "failed")):
        row = (name, config["kind"], json.dumps(config), status, "an error", 1, 2.0, "now", "0.1", None, None)
        file.execute(f"INSERT INTO cells VALUES ({','.join('?' * 11)})", row)
    scores = (50.0, 25.0, 50.0, 0.0, 40.0, 0.1)
    for number in (0, 1):
        file.execute(
            f"INSERT INTO sentences VALUES ({','.join('?' * 12)})", ("a", number, 0, "a text", "text", 1, *scores)
        )
        file.execute("INSERT INTO batches VALUES ('a', ?, 1, 0, 0, 0)", (number,))
    file.execute("INSERT INTO utility VALUES ('b', 0.5, 0.7, 0.1, NULL, 6, 80)")
    file.execute(f"PRAGMA application_id = {0x67_6C_65_61}")
    file.execute("PRAGMA user_version = 1")
    file.commit()
    file.close()
    return [path.read_bytes()]


VALUES = ["'{'", "'[]'", "x'ff'", "NULL", "9e999", "-1", "'\x1b[31m'", "9223372036854775807", "'0:99999999999'", "''"]


def mutated_database(content: bytes, chance: random.Random) -> bytes:
    """Mutate the bytes of the pages, or values by statements, so that the reader comes further."""
    if chance.random() < 0.5:
        return mutated(content, chance)
    with contextlib.closing(sqlite3.connect(":memory:")) as file:
        file.deserialize(content)
        table = chance.choice(["cells", "sentences", "utility", "batches", "meta"])
        column = chance.choice([row[1] for row in file.execute(f"PRAGMA table_info({table})")])
        path = chance.choice(["$.target", "$.target.name", "$.dataset.take", "$.client", "$.attack.settings", "$.kind"])
        value = chance.choice(VALUES)
        statements = [
            f"UPDATE {table} SET {column} = {value}",
            f"UPDATE cells SET config = json_set(config, '{path}', {value})",
            f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
            f"DROP TABLE {table}",
            f"CREATE TRIGGER gone AFTER INSERT ON {table} BEGIN DELETE FROM cells; END",
            f"DELETE FROM {table}",
        ]
        with contextlib.suppress(sqlite3.Error):
            file.execute(chance.choice(statements))
            file.commit()
        return file.serialize()


def read_database(path: Path) -> None:
    refused = None
    try:
        overview = summarise(path)
        for write in (to_csv, to_json, to_latex):
            write(overview)
    except GradleakError as error:
        refused = error
    with Store(path) as store:
        store.cells()
        store.paces()
    if refused is not None:
        raise refused


# --- datasets --------------------------------------------------------------------------------------------------------


def write_tables(folder: Path) -> list[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["text", "label"], ["the cat, sat", "good"], ['a "dog"\nran', "bad"], ["ünïcode \u2028 x", "1"]])
    return [text.getvalue().encode(), b"text\na\n", b"sentence,label,idx\r\nthe cat,1,0\r\na dog,0,1\r\n"]


def write_lines(folder: Path) -> list[bytes]:
    rows = [{"text": "the cat", "label": 1}, {"text": "a dog", "label": "bad"}]
    return ["\n".join(map(json.dumps, rows)).encode(), b'{"text": "a", "label": [1]}\n']


def read_table(path: Path) -> None:
    load_file(path)


# --- folders of models and adapters ----------------------------------------------------------------------------------


def write_configs(folder: Path) -> list[bytes]:
    small().model.save_pretrained(folder)  # type: ignore[operator]
    small().tokenizer.save_pretrained(folder)
    return [(folder / "config.json").read_bytes()]


def read_model_folder(path: Path) -> None:
    load_target(str(path.parent), device="cpu")


def write_tokenizers(folder: Path) -> list[bytes]:
    write_configs(folder)
    return [(folder / "tokenizer.json").read_bytes()]


def write_adapters(folder: Path) -> list[bytes]:
    prefix = "base_model.model.bert.encoder.layer.0.attention.self.query"
    tensors = {f"{prefix}.lora_A.weight": torch.zeros(2, 16), f"{prefix}.lora_B.weight": torch.zeros(16, 2)}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"], "task_type": "SEQ_CLS"}
    return [json.dumps(config).encode()]


def read_adapter_folder(path: Path) -> None:
    read_adapter(path.parent)


# --- command lines ---------------------------------------------------------------------------------------------------

LINES = [
    "list\nattacks\nlamp",
    "attack\nthe cat sat\n--attack\ntag\n--set\nsteps=1\n--device\ncpu\n--seed\n3\n--labels\n1",
    "attack\n--dataset\ncola\n--take\n0:2\n--batch-size\n2\n--fedavg\nsteps=2,lr=1e-3\n--defense\nnoise:0.01\n--attack\ndlg",
    "attack\n--update\nnone.safetensors\n--lengths\n8,9\n--kind\ngradient\n--budget\n5s\n--know\nlabels,lengths",
    "capture\na cat\n-o\nu.safetensors\n--lora\nr=8,alpha=16\n--precision\nbf16\n--send\nint8\n--clients\n2",
    "study\nshow\nnone.db\n--format\ncsv\n--by\nattack,defense\n--kind\nleakage-noise",
    "study\nrun\nnone.toml\n--workers\n2\n--wait\n-o\nmy.db",
    "invert\ntrain\n--model\ntiny\n--text\ncola\n-o\ninverter\n--tokens\n8\n--lr\n1e-3\n--hidden\n64,64",
    "audit\n--model\ntiny\n--data\ncola\n--take\n0:16\n--budget\n3m\n-o\naudit\n--fail-above\nrougeL=20\n--defense\nclip:1",
    "report\nnone.jsonl\n-o\npage.html\n--reveal",
    "images\nattack\n--take\n0:2\n--attack\nig\n--preset\nfast\n--size\n32\n--know\nlabels\n--picture\nfound.png",
    "images\ntrain-inverter\n--auxiliary\ncifar10-sample\n--count\n16\n-o\ninverters\n--set\nhidden=8,8\n--limit\n1s",
    "demo\n--lora\n--seed\n1\n--text\na cat",
]


def write_lines_of_command(folder: Path) -> list[bytes]:
    return [line.encode() for line in LINES]


@contextlib.contextmanager
def nothing_runs(*, small_models: bool = True) -> Iterator[None]:
    """Let commands check all their options, load the model and plan, but run nothing that takes long.

    Args:
        small_models: put a small model in the place of every other.
    """
    from gradleak.audit import scenario

    with (
        mock.patch("gradleak.cli.commands.attack.run_and_report"),
        mock.patch("gradleak.cli.commands.demo.perform", side_effect=GradleakError("not run")),
        mock.patch("gradleak.cli.commands.demo.perform_lora", side_effect=GradleakError("not run")),
        mock.patch("gradleak.studies.run_study", side_effect=GradleakError("not run")),
        mock.patch("gradleak.inversion.train_inverter", side_effect=GradleakError("not run")),
        mock.patch("gradleak.inversion.choose_rate", return_value=1e-3),
        mock.patch("gradleak.assessment.run.make_plan", side_effect=GradleakError("not run")),
        mock.patch("gradleak.vision.runs.ImageRun.run", side_effect=GradleakError("not run")),
        mock.patch("gradleak.vision.inverter_training.InverterTraining.run", side_effect=GradleakError("not run")),
        mock.patch("gradleak.vision.generator_training.train_generator", side_effect=GradleakError("not run")),
        mock.patch.object(scenario, "load_target", return_value=small()) if small_models else contextlib.nullcontext(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def read_command_line(path: Path) -> None:
    """Run the command line of a file, an argument a line, in the file's folder."""
    arguments = path.read_bytes().decode("utf-8", errors="surrogateescape").split("\n")
    if any(part.startswith(("/", "~")) or ".." in part or len(part) > 50_000 for part in arguments):
        return  # nothing outside the folder may be touched
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with nothing_runs():
            code = main(arguments)
    finally:
        os.chdir(before)
    assert code in (0, 2), f"exit code {code}"


READERS = {
    reader.name: reader
    for reader in (
        Reader("update", "u.safetensors", write_updates, read_update, mutated_safetensors),
        Reader("study", "s.toml", write_studies, read_study_file),
        Reader("database", "d.db", write_databases, read_database, mutated_database),
        Reader("csv", "d.csv", write_tables, read_table),
        Reader("tsv", "d.tsv", lambda folder: [c.replace(b",", b"\t") for c in write_tables(folder)], read_table),
        Reader("jsonl", "d.jsonl", write_lines, read_table),
        Reader("config", "config.json", write_configs, read_model_folder, mutated_json),
        Reader("tokenizer", "tokenizer.json", write_tokenizers, read_model_folder, mutated_json),
        Reader("adapter", "adapter_config.json", write_adapters, read_adapter_folder, mutated_json),
        Reader("command line", "arguments", write_lines_of_command, read_command_line),
        *RESULT_READERS,
        *NETWORK_READERS,
    )
}
