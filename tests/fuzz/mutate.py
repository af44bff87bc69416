"""Read mutated files with every reader, and count what is not refused in one line; used by the slow tests.

    python tests/fuzz/mutate.py --count 20000            a number of mutations for each reader
    python tests/fuzz/mutate.py --seconds 3600 --reader update

Each reader runs in a process of its own, so that a crash and the memory it takes are seen from outside.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

MOST_MEMORY = 2 * 2**30


def mutate(name: str, count: int | None, seconds: float | None, seed: int) -> dict[str, Any]:
    """Mutate files of one reader in this process, and return what happened."""
    from readers import READERS

    reader = READERS[name]
    chance = random.Random(seed)
    crashes: list[str] = []
    read = number = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gradleak-fuzz-") as place:
        folder = Path(place)
        path, examples = folder / reader.file, reader.examples(folder)
        for example in examples:
            path.write_bytes(example)
            reader.try_reading(path)
        while (count is None or number < count) and (seconds is None or time.monotonic() - began < seconds):
            number += 1
            content = reader.mutate(chance.choice(examples), chance)
            path.write_bytes(content)
            try:
                read += reader.try_reading(path)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                frames = traceback.extract_tb(error.__traceback__)
                place_of = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
                crashes.append(f"mutation {number} of seed {seed}: {type(error).__name__} at {place_of}: {error}"[:300])
    return {
        "reader": name,
        "mutations": number,
        "read": read,
        "crashes": crashes,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": round(time.monotonic() - began, 1),
    }


def in_process(name: str, **options: float | None) -> dict[str, Any]:
    """Mutate files of one reader in a process of its own."""
    given = [part for key, value in options.items() if value is not None for part in (f"--{key}", str(value))]
    command = [sys.executable, __file__, "--here", name, *given]
    answer = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    if answer.returncode:
        return {"reader": name, "mutations": 0, "crashes": [f"the process died: {answer.stderr[-2000:]}"], "MiB": 0}
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Mutate files of one reader or of all, and print a line for each."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", help="one of tests/fuzz/readers.py; all by default")
    parser.add_argument("--here", metavar="READER", help="in this process, with the result as JSON")
    parser.add_argument("--count", type=int, help="mutations for each reader")
    parser.add_argument("--seconds", type=float, help="time for each reader")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.count is None and options.seconds is None:
        options.count = 20_000
    if options.here:
        print(json.dumps(mutate(options.here, options.count, options.seconds, options.seed)))
        return
    from readers import READERS

    bad = 0
    for name in [options.reader] if options.reader else READERS:
        found = in_process(name, count=options.count, seconds=options.seconds, seed=options.seed)
        print(
            {key: value for key, value in found.items() if key != "crashes"},
            len(found["crashes"]),
            "crashes",
            flush=True,
        )
        for crash in found["crashes"][:5]:
            print("  ", crash, flush=True)
        bad += len(found["crashes"]) + (found["MiB"] * 2**20 >= MOST_MEMORY)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
