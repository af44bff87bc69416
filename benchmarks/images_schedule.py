"""The stages of `images.py` within a limit of time on one GPU: the most important first, a few side by side.

    python benchmarks/images_schedule.py --data packed --out results --seconds 540

A stage starts when a slot is free, what it needs is there, and its own limit still fits. What is done before, or is
recorded in the folder `--earlier` (a `records.json` of an earlier run), is skipped: the same command goes on where it
stopped. At the end the folder `--pack` gets few and small files: records.json, pictures*.npz (bytes), the generator and
a log of all stages; `images.py --stage score` reads them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from images import COLUMNS, collected
from packed_images import read_packed

LARGEST = 15 * 2**20  # bytes of a file of pictures
PACKING = 12.0  # seconds at the end
START = 12.0  # seconds until a process computes


@dataclass(frozen=True)
class StageJob:
    """A stage: its options for `images.py`, the seconds that it takes in all, and the file that it leaves or needs."""

    stage: str
    options: tuple[str, ...]
    seconds: float
    leaves: str
    needs: str = ""


def gi_gip(defense: str, seconds: int) -> StageJob:
    """Return the attack of GI-GIP under a defense."""
    limit = ("--seconds", str(seconds))
    leaves = f"scores-gi-gip-{defense}.json"
    return StageJob(f"attack:gi-gip:{defense}", limit, seconds + START, leaves, "generator.safetensors")


def variant(tag: str, defense: str, *options: str, rounds: int = 1, images: int = 1) -> StageJob:
    """Return a short training of an inverter and its attack on 500 images; all variants have the same limits."""
    limits = ("--seconds", "18", "--matching-seconds", "9", "--refiner-seconds", "9", "--take", "500")
    chosen = (*limits, "--rounds", str(rounds), "--images", str(images), "--tag", f"{tag}-", *options)
    seconds = START + 30 + (20 + 8 * images) * rounds
    return StageJob(f"train:{defense}", chosen, seconds, f"scores-{tag}-lti-{defense}.json")


def jobs(generator_seconds: int, gip_seconds: int) -> list[StageJob]:
    """Return all stages, the most important first."""
    limit = ("--seconds", str(generator_seconds))
    first = StageJob("generator", limit, generator_seconds + START, "generator.safetensors")
    attacks = [gi_gip(defense, gip_seconds if defense == "none" else gip_seconds // 2) for defense in COLUMNS]
    sizes = [
        variant(f"size-{count}", defense, "--auxiliary", str(count))
        for defense in ("sign", "noise")
        for count in (50_000, 5_000, 500)
    ]
    batches = [variant("batch4", defense, images=4) for defense in ("none", "sign", "noise")]
    shifts = [variant(f"beta-{beta}", "sign", "--beta", beta) for beta in ("1", "0.01", "0")]
    large = ("--model", "resnet20", "--hidden", "1000,1000", "--batch", "256")
    larger = [variant("resnet20", defense, *large, rounds=0) for defense in ("none", "noise")]
    rest = [
        *(variant(f"beta-{beta}", "noise", "--beta", beta) for beta in ("1", "0.01", "0")),
        *(
            variant(f"size-{count}", defense, "--auxiliary", str(count))
            for defense in ("pruning", "none")
            for count in (50_000, 5_000, 500)
        ),
        variant("batch4", "pruning", images=4),
    ]
    return [first, *attacks, *sizes, *batches, *shifts, *larger, *rest]


class Schedule:
    """Runs stages as processes until the time is up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.slots = Path(options.out), options.slots
        self.began, self.until = time.monotonic(), time.monotonic() + options.seconds - PACKING
        self.running: list[tuple[StageJob, subprocess.Popen[bytes]]] = []
        self.out.mkdir(parents=True, exist_ok=True)
        self.data = self.out / "cifar10.npz"
        if not self.data.exists():
            source = Path(options.data)
            np.savez(self.data, **(read_packed(source) if source.is_dir() else dict(np.load(source))))
        self.say("data is there")

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"[schedule {time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def run(self, waiting: list[StageJob]) -> None:
        """Run the stages that fit."""
        while waiting or self.running:
            self._collect()
            ready = [job for job in waiting if not job.needs or (self.out / job.needs).exists()]
            # What had to wait for another stage is more important than the slots.
            if ready and (ready[0].needs or len(self.running) < self.slots):
                waiting.remove(ready[0])
                if time.monotonic() + ready[0].seconds < self.until:
                    self._start(ready[0])
                else:
                    self.say(f"no time for {ready[0].leaves}")
            elif not self.running and not ready:
                break  # what is left needs what is not there
            else:
                time.sleep(0.2)
            if time.monotonic() > self.until:
                break
        for job, process in self.running:
            process.kill()
            self.say(f"ended before it was done: {job.leaves}")

    def _start(self, job: StageJob) -> None:
        script = Path(__file__).with_name("images.py")
        fixed = ["--data", str(self.data), "--out", str(self.out), "--stage", job.stage]
        with (self.out / "log.txt").open("ab") as log:
            process = subprocess.Popen([sys.executable, str(script), *fixed, *job.options], stdout=log, stderr=log)
        self.running.append((job, process))
        self.say(f"started {job.leaves}")

    def _collect(self) -> None:
        for job, process in list(self.running):
            if process.poll() is not None:
                self.running.remove((job, process))
                self.say(f"{job.leaves}: exit {process.returncode}")


def pack(out: Path, folder: Path) -> None:
    """Copy what is worth keeping into a few files of limited size."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = collected(out)
    (folder / "records.json").write_text(json.dumps({name: record for name, (record, _) in runs.items()}))
    pictures = {name: found for name, (_, found) in runs.items() if found is not None}
    # Answers after fewer rounds are scored in the records and need no pictures.
    kept = sorted((name for name in pictures if "lti0" not in name), key=lambda name: not name.startswith("gi-gip"))
    part: dict[str, Any] = {}
    number = 0
    for name in [*kept, ""]:
        if not name or sum(found.nbytes for found in part.values()) + pictures[name].nbytes > LARGEST:
            np.savez_compressed(folder / f"pictures{number}.npz", **part)
            part, number = {}, number + 1
        if name:
            part[name] = pictures[name]
    for name in ("generator.safetensors", "log.txt"):
        if (out / name).exists():
            shutil.copy(out / name, folder / name)


def main() -> None:
    """Run the schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--pack", help="folder of the files to keep; --out if not given")
    parser.add_argument("--earlier", help="folder with records.json, and generator.safetensors, of an earlier run")
    parser.add_argument("--seconds", type=float, required=True, help="for everything")
    parser.add_argument("--slots", type=int, default=4, help="stages side by side")
    parser.add_argument("--generator-seconds", type=int, default=150)
    parser.add_argument("--gip-seconds", type=int, default=280, help="without a defense; half of it under one")
    parser.add_argument(
        "--only", default="", help="stages whose file's name contains one of these, with commas between"
    )
    options = parser.parse_args()
    schedule = Schedule(options)
    earlier: set[str] = set()
    if options.earlier:
        earlier = {f"scores-{name}.json" for name in json.loads((Path(options.earlier) / "records.json").read_text())}
        if (Path(options.earlier) / "generator.safetensors").exists():
            shutil.copy(Path(options.earlier) / "generator.safetensors", schedule.out / "generator.safetensors")
    parts = [part for part in options.only.split(",") if part]
    chosen = [
        job
        for job in jobs(options.generator_seconds, options.gip_seconds)
        if job.leaves not in earlier
        and not (schedule.out / job.leaves).exists()
        and (not parts or any(part in job.leaves for part in parts))
    ]
    schedule.run(chosen)
    pack(schedule.out, Path(options.pack or options.out))
    schedule.say("packed")


if __name__ == "__main__":
    main()
