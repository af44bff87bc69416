"""Hypothesis strategies of whatever gradleak reads: update files, study files, databases, tables and command lines.

Each yields the bytes of a file, sound or nearly so: parts of the right names with values of any kind.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing, suppress
from typing import Any

from hypothesis import strategies as st

from gradleak.studies.records.soundness import LATER, TABLES

ODD_TEXTS = ["", "\x1b[31m", "\u202e", "nan", "inf", "1e-320", "1e309", "-1", "9" * 30, "9" * 400, "a\0b", "\ud800"]
texts = st.one_of(st.sampled_from(ODD_TEXTS[:-1]), st.text(max_size=12))
numbers = st.one_of(st.integers(-5, 5), st.integers(), st.floats(), st.sampled_from([10**9, 10**30, 1e300]))
scalars = st.one_of(numbers, texts, st.booleans())
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))

# --- updates ---------------------------------------------------------------------------------------------------------

TENSORS = ["classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "\x1b[31m", "x"]
DTYPES = ["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "nonsense"]
METADATA = ["kind", "learning_rate", "steps", "clients", "send", "precision", "training.batch", "training.optimizer"]
METADATA += [f"target.{name}" for name in ("name", "task", "num_labels", "seed", "fingerprint", "lora", "trained_head")]
metadata_texts = st.one_of(
    texts, st.sampled_from(["gradient", "difference", "2", "0.1", "tiny", "int8", "r=4", "adamw"])
)


@st.composite
def update_files(draw: st.DrawFn) -> bytes:
    """Return a safetensors file whose header may say anything of its data."""
    data = draw(st.binary(max_size=64))
    header: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(TENSORS), max_size=3, unique=True)):
        ends = draw(st.tuples(st.integers(-1, 70), st.integers(-1, 70)))
        shape = draw(st.lists(st.integers(-1, 20), max_size=3))
        header[name] = {"dtype": draw(st.sampled_from(DTYPES)), "shape": shape, "data_offsets": list(ends)}
    stated = draw(st.dictionaries(st.sampled_from(METADATA), metadata_texts, max_size=8))
    header["__metadata__"] = draw(st.one_of(st.just(stated), values)) if draw(st.booleans()) else stated
    text = json.dumps(header).encode()
    size = draw(st.one_of(st.just(len(text)), st.integers(0, 2**64 - 1)))
    return size.to_bytes(8, "little") + text + data


# --- studies ---------------------------------------------------------------------------------------------------------

KEYS = {
    "target": st.sampled_from(["tiny", "tinny", {"name": "tiny", "num_labels": 3}]),
    "dataset": st.sampled_from(["cola", {"name": "cola", "take": "0:4"}, {"name": "sst2", "take": "4:"}]),
    "batch_size": st.integers(-1, 4),
    "client": st.sampled_from([{"dropout": True}, {"fedavg": {"steps": 2, "lr": 0.1}}, {"send": "int8"}]),
    "defense": st.sampled_from([[], "noise:0.1", ["clip:1", "noise:0.1"], "prune:7"]),
    "knowledge": st.sampled_from(["paper", [["labels"]], "labels"]),
    "attack": st.sampled_from(["tag", "lamp", {"name": "tag", "settings": {"steps": 3}}, "none"]),
    "seed": st.integers(-1, 3),
    "preset": st.sampled_from(["fast", "paper", "slow"]),
}


def toml(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


@st.composite
def study_files(draw: st.DrawFn) -> bytes:
    """Return a study of one grid, some of whose keys have values of any kind."""
    grid = {key: draw(values if draw(st.integers(0, 5)) == 0 else strategy) for key, strategy in KEYS.items()}
    for key in draw(st.lists(st.sampled_from(sorted(grid)), max_size=3, unique=True)):
        del grid[key]
    lines = [f"name = {toml(draw(texts))}"] if draw(st.booleans()) else []
    lines += ["[[grid]]", *(f"{key} = {toml(value)}" for key, value in grid.items())]
    return "\n".join(lines).encode("utf-8", errors="surrogatepass")


# --- databases -------------------------------------------------------------------------------------------------------

CONFIG_KEYS = ["kind", "target", "dataset", "batch_size", "client", "attack", "defenses", "knowledge", "hashes", "seed"]
SOUND: dict[str, Any] = {
    "kind": "attack",
    "target": {"name": "tiny"},
    "dataset": {"name": "cola", "take": "0:2"},
    "batch_size": 1,
    "client": {"dropout": False, "embeddings": "frozen"},
    "attack": {"name": "tag", "preset": "paper", "settings": {}},
    "defenses": [],
    "knowledge": [],
    "hashes": {},
}
sql_values = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.none(), st.binary(max_size=4), st.just("a"))


@st.composite
def databases(draw: st.DrawFn) -> bytes:
    """Return a file of records whose descriptions and numbers may be of any kind."""
    with closing(sqlite3.connect(":memory:")) as file:
        file.executescript(TABLES + (LATER if draw(st.booleans()) else ""))
        for number in range(draw(st.integers(0, 2))):
            changed = draw(st.dictionaries(st.sampled_from(CONFIG_KEYS), values, max_size=2))
            text = draw(st.one_of(st.just(json.dumps(SOUND | changed)), texts))
            row = [f"c{number}", draw(st.sampled_from(["attack", "utility"])), text, "done", None, 1]
            row += [draw(st.one_of(st.just(1.0), sql_values)), "now", "0.1", None, None]
            score = draw(st.one_of(st.just(50.0), sql_values))
            with suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):
                file.execute(f"INSERT INTO cells VALUES ({','.join('?' * 11)})", row)
                sentence = (f"c{number}", 0, 0, "a", "b", 1, score, 0.0, 0.0, 0.0, 0.0, 0.0)
                file.execute(f"INSERT INTO sentences VALUES ({','.join('?' * 12)})", sentence)
        file.commit()
        return file.serialize()


# --- tables ----------------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Return a CSV file with columns and cells of any text."""
    names = st.one_of(st.sampled_from(["text", "label", "sentence", "idx", ""]), texts)
    header = draw(st.lists(names, max_size=4))
    rows = draw(st.lists(st.lists(texts, max_size=4), max_size=4))
    text = io.StringIO()
    with suppress(csv.Error):
        csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode("utf-8", errors="surrogatepass")


# --- command lines ---------------------------------------------------------------------------------------------------

COMMANDS = [["attack"], ["capture"], ["demo"], ["list"], ["study", "run"], ["study", "show"], ["invert", "train"], []]
OPTIONS = [
    "--attack", "--preset", "--set", "--budget", "--know", "--lengths", "--kind", "--model", "--num-labels", "--task",
    "--model-seed", "--lora", "--adapter", "--device", "--dropout", "--embeddings", "--fedavg", "--precision", "--send",
    "--clients", "--defense", "--seed", "--dataset", "--take", "--batch-size", "--labels", "--text-column", "--json",
    "--quiet", "-o", "--format", "--by", "--plot", "--workers", "--text", "--tokens", "--lr", "--hidden", "--update",
]  # fmt: skip
WORDS = [
    "tag", "fast", "steps=1", "5s", "labels", "8,9", "gradient", "tiny", "3", "causal-lm", "r=4", "cpu", "frozen",
    "steps=2,lr=0.1", "bf16", "int8", "noise:0.1", "0", "cola", "0:2", "0,1", "text", "-", "out.json", "csv", "attacks",
]  # fmt: skip


@st.composite
def command_lines(draw: st.DrawFn) -> bytes:
    """Return a command line, an argument a line, of true options with values that may be of another one."""
    words = st.one_of(st.sampled_from(WORDS), texts)
    parts = list(draw(st.sampled_from(COMMANDS)))
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=5)):
        parts += [option, draw(words)]
    parts += draw(st.lists(words, max_size=2))
    return "\n".join(parts).encode("utf-8", errors="surrogatepass")


STRATEGIES = {
    "update": update_files(),
    "study": study_files(),
    "database": databases(),
    "csv": tables(),
    "command line": command_lines(),
}
"""By the names of the readers."""
