"""Try bad inputs, and count tracebacks, raw control characters and files that changed; used by a slow test.

    python tests/fuzz/bad_inputs.py [--count 1000] [--verbose]      all of them by default

Every input is a command line that must be refused: options with odd values, and files that are broken in a known way.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from mutation import mutated, mutated_json, mutated_safetensors
from network_readers import (
    write_arrays,
    write_pictures,
    write_weights,
)
from readers import mutated_database, nothing_runs, small, write_databases, write_updates
from result_readers import write_records, write_rounds
from safetensors.torch import save_file

from gradleak.cli import main as gradleak

RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[31m\u202egnp\x9b"
ODD = [
    "",
    " ",
    EVIL,
    "nan",
    "-inf",
    "1e309",
    "1e-320",
    "9" * 30,
    "9" * 5_000,
    "-1",
    "a\0b",
    "\udcff",
    "x" * 20_000,
    "=",
    ",",
]
TEXT = "the cat sat on the mat"
OPTIONS = {  # options that take a value: every odd one must be refused, or mean something
    "attack": "attack preset set budget know model num-labels task model-seed lora adapter device embeddings fedavg "
    "precision send clients defense seed take batch-size labels text-column label-column json",
    "capture": "output before after seed dataset fedavg model lora adapter precision send clients defense take json",
    "audit": "data take batch-size labels text-column attack set know budget model num-labels task lora adapter device "
    "embeddings fedavg precision send clients defense seed output fail-above workers ray",
    "report": "output",
    "images attack": "dataset take batch-size labels attack preset set know budget model num-labels size model-seed "
    "device defense send seed picture json",
    "images train-inverter": "output auxiliary count model num-labels size model-seed defense send set limit seed json",
    "images train-generator": "output auxiliary count steps limit device seed",
    "demo": "text seed json",
    "list": "json",
    "study run": "output workers target device",
    "study show": "format by plot kind json",
    "invert train": "text other beta size held-out tokens hidden lr share shortest batch-size reduction output-layer "
    "batch epochs patience chunk defense output json",
}
BASES = {
    "attack": [TEXT],
    "capture": [TEXT, "-o", "u.safetensors"],
    "list": ["attacks"],
    "study run": ["quick"],
    "study show": ["sound.db"],
    "invert train": ["--text", "cola", "-o", "inverter"],
    "audit": ["--data", "cola", "--take", "0:4", "-o", "audit"],
    "report": ["sound.jsonl", "-o", "page.html"],
    "images attack": ["--take", "0:2"],
    "images train-inverter": ["--auxiliary", "cifar10-sample", "-o", "inverters"],
    "images train-generator": ["--auxiliary", "cifar10-sample", "-o", "generator.safetensors"],
    "demo": [],
}
FILES = 787
"""How many inputs `file_inputs` has, roughly."""
SETTINGS = ["steps", "lr", "tokens", "beams", "seed", "prior", "inverter", "distance", "init", "budget"]


def option_inputs() -> Iterator[list[str]]:
    """Yield command lines with an odd value for each option."""
    for command, options in OPTIONS.items():
        for option, value in product(options.split(), ODD):
            yield [*command.split(), *BASES[command], f"--{option}", value]
    for attack, setting, value in product(("tag", "lamp", "sieve", "lti"), SETTINGS, ODD[:11]):
        yield ["attack", TEXT, "--attack", attack, "--set", f"{setting}={value}"]


def file_inputs(folder: Path) -> Iterator[list[str]]:
    """Write broken files, and yield command lines that read them."""
    yield from _updates(folder)
    yield from _tables(folder)
    yield from _studies(folder)
    yield from _databases(folder)
    yield from _models(folder)
    yield from _records(folder)
    yield from _checkpoints(folder)
    yield from _images(folder)


def _updates(folder: Path) -> Iterator[list[str]]:
    chance = random.Random(1)
    path = folder / "u.safetensors"
    examples = write_updates(folder)
    keys = ["kind", "learning_rate", "steps", "clients", "send", "target.num_labels", "target.seed", "target.name"]
    for key, value in product(keys, [text for text in ODD if "\udcff" not in text]):
        stated = {"kind": "difference", "learning_rate": "0.1", "steps": "2", "target.name": "tiny"}
        save_file({EVIL: torch.zeros(2)}, path, metadata=stated | {key: value})
        yield ["attack", "--update", "u.safetensors"]
    for _ in range(150):
        path.write_bytes(mutated_safetensors(chance.choice(examples[:2]), chance))
        yield ["attack", "--update", "u.safetensors", "--attack", "tag", "--set", "steps=1"]
    for dtype in (torch.bool, torch.int64, torch.complex64, torch.float8_e5m2, torch.uint8):
        save_file({name: t.detach().to(dtype) for name, t in small().parameters.items()}, path)
        yield ["attack", "--update", "u.safetensors"]


def _tables(folder: Path) -> Iterator[list[str]]:
    contents = [
        b"",
        b"\xff\xfe",
        b"text,text\na,b\n",
        b"a,b\n1\n",
        f"{EVIL},x\n1,2\n".encode(),
        b'"open',
        b"text\n" + b"[" * 9,
    ]
    contents += [
        b"text,label\na,\n",
        b"\0" * 100,
        b"text\n\n\n",
        b'{"text": 1}',
        b"[1]",
        b'{"text": "\\ud800"}',
    ]
    chance = random.Random(2)
    contents += [mutated(b"text,label\nthe cat,1\na dog,\x1b[31m\n", chance) for _ in range(20)]
    for ending, content in product((".csv", ".tsv", ".jsonl", ".txt"), contents):
        (folder / f"data{ending}").write_bytes(content)
        yield ["attack", "--dataset", f"data{ending}", "--text-column", EVIL]


def _studies(folder: Path) -> Iterator[list[str]]:
    grid = '[[grid]]\ntarget = "tiny"\ndataset = "cola"\nattack = "tag"\n'
    values = ["1e400", "nan", "9" * 400, '"\\u001b[31m"', "[[[]]]", "{}", "-1", '""', "true", "[" * 3_000, "1979-05-27"]
    for key, value in product(
        ("target", "dataset", "attack", "seed", "batch_size", "client", "defense", "name"), values
    ):
        (folder / "s.toml").write_text(
            "".join(line for line in grid.splitlines(True) if not line.startswith(key)) + f"{key} = {value}\n"
        )
        yield ["study", "run", "s.toml"]
    for content in (b"", b"\0", b"\xff", b"[[grid]]", b"a = " + b"9" * 5_000, b'name = "\x1b"', b"x" * 5_000_000):
        (folder / "s.toml").write_bytes(content)
        yield ["study", "run", "s.toml"]


def _databases(folder: Path) -> Iterator[list[str]]:
    chance = random.Random(3)
    (example,) = write_databases(folder)
    for _ in range(60):
        (folder / "d.db").write_bytes(mutated_database(example, chance))
        yield ["study", "show", "d.db"]
    for statement in ("CREATE VIEW v AS SELECT 1", "DROP TABLE meta", "UPDATE cells SET config = '{'"):
        (folder / "d.db").write_bytes(example)
        with contextlib.closing(sqlite3.connect(folder / "d.db")) as file:
            file.execute(statement)
            file.commit()
        yield ["study", "show", "d.db"]


def _models(folder: Path) -> Iterator[list[str]]:
    for number, content in enumerate([b"{}", b"[]", b"{", b"\xff", b'{"model_type": "bert", "num_labels": 1000000000}',
                                      json.dumps({"model_type": EVIL}).encode(), b"[" * 50_000]):  # fmt: skip
        place = folder / f"model{number}"
        place.mkdir(exist_ok=True)
        (place / "config.json").write_bytes(content)
        yield ["attack", TEXT, "--model", place.name]
        yield ["attack", TEXT, "--model", "tiny", "--adapter", place.name]
        yield ["attack", TEXT, "--attack", "lamp", "--set", f"prior=./{place.name}"]
        (place / "adapter_config.json").write_bytes(content)
        yield ["attack", TEXT, "--adapter", place.name]


def _records(folder: Path) -> Iterator[list[str]]:
    chance = random.Random(4)
    for name, write in (("rounds.jsonl", write_rounds), ("audit.json", write_records)):
        examples = write(folder)
        contents = [b"", b"{}", b"[]", b"[" * 50_000, b"\xff", b'{"gradleak": "rounds", "schema": 1}']
        contents += [
            b'{"gradleak": "record", "schema": 1, "kind": "%s"}' % kind for kind in (b"audit", b"study", EVIL.encode())
        ]
        for content in contents + [mutated_json(chance.choice(examples), chance) for _ in range(40)]:
            (folder / name).write_bytes(content)
            yield ["report", name, "-o", "page.html", *chance.choice([[], ["--reveal"]])]


def _checkpoints(folder: Path) -> Iterator[list[str]]:
    chance = random.Random(5)
    (example,) = write_weights(folder)
    for number in range(40):
        (folder / "after.safetensors").write_bytes(mutated_safetensors(example, chance) if number else b"")
        files = ["--before", "before.safetensors", "--after", "after.safetensors"]
        yield ["capture", *files, "--fedavg", "steps=1,lr=0.1", "-o", "new.safetensors"]
    for files in (["--before", "before.safetensors"], ["--after", EVIL], ["--before", ".", "--after", "."]):
        yield ["capture", *files, "--fedavg", "steps=1,lr=0.1", "-o", "new.safetensors"]


def _images(folder: Path) -> Iterator[list[str]]:
    chance = random.Random(6)
    examples = write_arrays(folder)
    for _ in range(30):
        (folder / "images.npz").write_bytes(mutated(chance.choice(examples), chance))
        yield ["images", "attack", "--dataset", "images.npz:test", "--size", "8", "--model", "resnet20"]
    pictures = write_pictures(folder)
    for content in [b"", *(mutated(chance.choice(pictures), chance) for _ in range(30))]:
        (folder / "pictures" / "one.png").write_bytes(content)
        yield ["images", "attack", "--dataset", "pictures", "--labels", "0"]


def state(folder: Path) -> dict[str, str]:
    """Return a hash of each file and its mode."""
    return {
        str(path.relative_to(folder)): f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def harmless(arguments: list[str]) -> bool:
    """Return whether a command line is one that this script may try: it writes nothing, or a file that it names."""
    return not any(part.startswith("/") for part in arguments)


def attempt(arguments: list[str], folder: Path) -> list[str]:
    """Run a command line and return what was wrong with its answer."""
    before = state(folder)
    out, err = io.StringIO(), io.StringIO()
    with nothing_runs(small_models=False), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = gradleak(arguments)
    printed = out.getvalue() + err.getvalue()
    wrong = []
    if code not in (0, 2) or "Traceback" in printed:
        wrong.append(f"exit code {code}: {printed.strip()[-200:]}")
    if RAW.search(printed):
        wrong.append(f"a control character: {RAW.search(printed)!r}")
    if code == 2 and err.getvalue().count("\n") != 1:
        wrong.append(f"{err.getvalue().count(chr(10))} lines of errors")
    after = state(folder)
    lost = [name for name in before if after.get(name) != before[name]]
    if lost:
        wrong.append(f"changed {lost[0]}")
    if code == 2 and after.keys() - before.keys():
        wrong.append(f"left {sorted(after.keys() - before.keys())[0]!r} behind")
    for name in after.keys() - before.keys():
        (folder / name).unlink()
    return wrong


def try_inputs(count: int, verbose: bool = False) -> tuple[int, int, list[str]]:
    """Try bad inputs; return how many were tried and refused, and what was wrong with which."""
    tried, refused, wrong = 0, 0, []
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="gradleak-inputs-") as place:
        folder = Path(place)
        os.chdir(folder)
        try:
            (folder / "sound.db").write_bytes(write_databases(folder)[0])
            (folder / "sound.jsonl").write_bytes(write_rounds(folder)[0])
            for arguments in _spread([*option_inputs()], file_inputs(folder), count):
                if not harmless(arguments):
                    continue
                tried += 1
                found = attempt(arguments, folder)
                wrong += [f"{shown(arguments)}: {line}" for line in found]
                refused += not found
                if verbose:
                    print(tried, shown(arguments), found or "", flush=True)
        finally:
            os.chdir(here)
    return tried, refused, wrong


def _spread(options: list[list[str]], files: Iterator[list[str]], count: int) -> Iterator[list[str]]:
    """Yield about as many inputs as asked, chosen evenly; a file is written when it is asked for."""
    step = max(1, (len(options) + FILES) // count)
    yield from options[::step]
    for number, arguments in enumerate(files):
        if number % step == 0:
            yield arguments


def shown(arguments: list[str]) -> str:
    """Return a command line for people."""
    return " ".join(repr(part[:60]) for part in arguments)


def main() -> None:
    """Try the inputs, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="about so many; all by default")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    tried, sound, wrong = try_inputs(options.count, options.verbose)
    for line in wrong[:20]:
        print(line)
    print(f"{tried} inputs, {sound} answered as they should be, {len(wrong)} faults")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
