"""Record what every attack and preset finds on `tiny` for fixed seeds, and compare with what was recorded.

    python tests/golden/record.py            compare with findings.json; exit 1 where anything differs
    python tests/golden/record.py --write    record anew, after a change that is meant to change results
    python tests/golden/record.py --only lamp grab      some attacks alone

A refactoring keeps all of it: texts, labels, notes and verdicts to the last character, losses to 1e-6. Rounding
differs from one kind of processor to another, so this is a check of one machine before and after a change, no test.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

import gradleak as gl
from gradleak.attacks import ATTACKS, find_attack
from gradleak.defenses import parse_defense
from gradleak.exchange import Knowledge, Reconstruction, Update
from gradleak.federation import FedAvg
from gradleak.inversion import InverterTrainer, PseudoText, Recipe
from gradleak.inverters.storage import save_inverter
from gradleak.priors import marginal_distribution

FILE = Path(__file__).with_name("findings.json")
TOLERANCE = 1e-6
TEMPORARY = re.compile(r"[^\s']*gradleak-golden-\w+")
"""The folder of the inverters, which errors name and which is another one in each run."""

ONE = [["the cat sat on the mat"]]
THREE = [["the cat sat on the mat"], ["she was late again"], ["a dog ran over the old stone bridge"]]
PAIR = [["the book is on the table", "we met at noon"]]
PAIRS = [*PAIR, ["he sold it to her", "nobody knew that the old man was ill"]]
FOUR = [["the book is on the table", "we met at noon", "he sold it to her", "it rained all day"]]


@dataclass(frozen=True)
class Scene:
    """Some updates, and what the attacker is told of them.

    Attributes:
        batches: the private texts of each update.
        client: arguments of the client.
        defense: what is done to the update, as the command line writes it.
        known: the facts that the attacker is told.
        sent: the type that the update is sent in.
    """

    batches: list[list[str]]
    client: Mapping[str, Any] = field(default_factory=dict)
    defense: str | None = None
    known: tuple[str, ...] = ("labels", "lengths")
    sent: torch.dtype = torch.float32


SCENES: dict[str, Scene] = {
    "three updates": Scene(THREE, {"embeddings": "trained"}),
    "pairs": Scene(PAIRS, {"embeddings": "trained"}),
    "frozen": Scene(ONE),
    "four": Scene(FOUR, {"embeddings": "words-frozen"}),
    "nothing told": Scene(PAIR, {"embeddings": "trained"}, known=("batch_size",)),
    "longest told": Scene(ONE, {"embeddings": "trained"}, known=("longest",)),
    "dropout": Scene(PAIRS, {"dropout": True, "embeddings": "trained"}, known=("labels", "lengths", "dropout")),
    "dropout, one": Scene(ONE, {"dropout": True}),
    "noise": Scene(ONE, {"embeddings": "trained"}, "noise:0.0005"),
    "pruned": Scene(ONE, {"embeddings": "trained"}, "prune:0.9"),
    "clipped": Scene(ONE, {"embeddings": "trained"}, "clip:0.5"),
    "bfloat16": Scene(ONE, {"embeddings": "trained"}, sent=torch.bfloat16),
    "local steps": Scene(PAIR, {"fedavg": FedAvg(steps=2, lr=1e-3), "embeddings": "trained"}),
}
FULL = ("three updates", "pairs", "dropout", "nothing told", "noise")
"""Where presets beside the default run, too."""

DESCENT = {"steps": 24, "starts": 6, "permutations": 6, "moves": 6, "steps_per_round": 8}
QUICK: dict[str, dict[str, Any]] = {
    "dlg": {"steps": 20},
    "tag": {"steps": 20},
    "lamp": {**DESCENT, "polish": 1},
    "lamp-l2l1": {**DESCENT, "polish": 1},
    "grab": {"steps": 12, "starts": 6, "permutations": 6, "rounds": 2, "passes": 2, "polish": 1},
    "edr": {"iterations": 12.0, "starts": 2, "adjustments": 4, "attempts": 1},
    "fet": {"population": 24, "generations": 8, "hall_of_fame": 2, "iterations": 2, "rounds": 4, "attempts": 1},
    "mosaic": {},
    "sieve": {"starts": 40},
    "auto": {"budget": 1e6},
    "lti": {},
    "lti-p": {},
}
"""Settings that shorten an attack: each step is taken, if not as often."""

UNSHORTENED = {"paper": ("polish", "rounds")}
"""Settings of presets that do without a step: they are not switched on."""

AUTO = ("frozen", "pairs", "clipped", "dropout, one")
"""Scenes that `auto` ends early: elsewhere it runs other attacks in full."""


def main() -> None:
    """Compare, or record anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record anew")
    parser.add_argument("--only", nargs="+", default=list(QUICK), choices=list(QUICK), metavar="ATTACK")
    arguments = parser.parse_args()
    jobs = [job for job in _jobs() if job[0] in arguments.only]
    found: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(2, initializer=_one_thread) as pool:
        for number, (key, outcome, seconds) in enumerate(pool.imap_unordered(_run, jobs), 1):
            found[key] = outcome
            print(f"{number} of {len(jobs)}: {key}, {seconds:.1f} s", file=sys.stderr)
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if arguments.write:
        kept = {key: value for key, value in recorded.items() if key.split(":")[0] not in arguments.only}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((kept | found).items())]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    wanted = {key: value for key, value in recorded.items() if key.split(":")[0] in arguments.only}
    differences = [f"{key}: {line}" for key in sorted(wanted | found) for line in _compare(wanted, found, key)]
    print("\n".join(differences) or f"{len(found)} findings are as recorded")
    sys.exit(bool(differences))


def _jobs() -> Iterator[tuple[str, str, str]]:
    for attack in QUICK:
        kind = ATTACKS[attack]
        for preset in kind.presets:
            for scene in SCENES:
                if attack == "auto" and scene not in AUTO:
                    continue
                if preset == kind.default_preset() or (scene in FULL and attack not in ("auto", "lti", "lti-p")):
                    yield attack, preset, scene


def _run(job: tuple[str, str, str]) -> tuple[str, Any, float]:
    name, preset, scene = job
    started = time.perf_counter()
    try:
        outcome: Any = [_recorded(result) for result in _attacked(name, preset, SCENES[scene])]
    except gl.GradleakError as error:
        outcome = str(error)
    return f"{name}:{preset}:{scene}", outcome, time.perf_counter() - started


def _attacked(name: str, preset: str, scene: Scene) -> list[Reconstruction]:
    kind = find_attack(name)
    kept = UNSHORTENED.get(preset, ())
    wanted = {key: value for key, value in QUICK[name].items() if key not in kept and kind.has_setting(key)}
    settings = {key: str(value) for key, value in wanted.items()}
    if name in ("lti", "lti-p"):
        settings["inverter"] = _inverter()
    updates, knowledge = zip(*_captured(scene), strict=True)
    return kind.with_settings(preset, settings).many(_target(), updates, knowledge, seed=3)


def _captured(scene: Scene) -> Iterator[tuple[Update, Knowledge]]:
    target = _target()
    client = gl.Client(target, **{"embeddings": "frozen", "seed": 5} | dict(scene.client))
    for texts in scene.batches:
        labels = [number % target.num_labels for number in range(len(texts))]
        update = client.update(texts, labels)
        if scene.defense:
            update = parse_defense(scene.defense).apply(update, torch.Generator().manual_seed(9))
        update = update.to("cpu", scene.sent)
        lengths = target.encode(texts).lengths
        facts = {
            "labels": labels,
            "lengths": lengths,
            "longest": max(lengths),
            "batch_size": len(texts),
            "dropout": max(target.dropouts.values()) if scene.client.get("dropout") else 0.0,
        }
        yield update, Knowledge(**{name: facts[name] for name in scene.known})


@cache
def _target() -> gl.Target:
    return gl.load_target("tiny")


@cache
def _inverter() -> str:
    """Return an inverter that has learnt nothing: what it finds is fixed, and quick to have."""
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp(prefix="gradleak-golden-"))
    recipe = Recipe(
        tokens=12, shortest=4, sequences=2, hidden=(8,), reduction="hash", share=0.001, direct=False, chunk=4
    )
    stream = PseudoText(_target(), marginal_distribution(_target(), ["the cat sat on the mat"]), recipe.shape)
    save_inverter(InverterTrainer.fresh(_target(), recipe, stream, 1).inverter, folder / "inverter")
    return str(folder)


def _recorded(result: Reconstruction) -> dict[str, Any]:
    return {
        "texts": result.texts,
        "ids": result.token_ids,
        "labels": result.labels,
        "loss": result.loss,
        "history": [[snapshot.step, snapshot.loss] for snapshot in result.history][:: max(1, len(result.history) // 4)],
        "notes": result.notes,
        "proven": [result.verified, result.complete, result.labels_verified, *result.copies],
        "verdict": result.verdict,
    }


def _compare(wanted: Mapping[str, Any], found: Mapping[str, Any], key: str) -> Iterator[str]:
    if key not in found or key not in wanted:
        yield "was not run" if key not in found else "was not recorded"
        return
    yield from _differences(wanted[key], json.loads(json.dumps(found[key])), "")


def _differences(wanted: Any, found: Any, at: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        for name in wanted:
            yield from _differences(wanted[name], found[name], f"{at}.{name}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(one, other, f"{at}[{number}]")
    elif isinstance(wanted, float) and isinstance(found, float):
        if not math.isclose(wanted, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{at} is {found!r}, was {wanted!r}"
    elif isinstance(wanted, str) and isinstance(found, str):
        if TEMPORARY.sub("DIR", wanted) != TEMPORARY.sub("DIR", found):
            yield f"{at} is {found!r}, was {wanted!r}"
    elif wanted != found:
        yield f"{at} is {found!r}, was {wanted!r}"


def _one_thread() -> None:
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
