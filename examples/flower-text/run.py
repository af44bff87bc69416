"""Run the app with `flwr run` in Flower's simulation, with the classifier and with LoRA, and say what the audit found.

python run.py                    both, with the audit; exits with 1 unless a client's sentence was named exactly
python run.py --kind classifier  one of them
python run.py --without          without the audit, to compare the time of a round

A SuperLink is started for it on free ports. It ends with this script, and so does all that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from flower_text.task import round_texts

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sys.executable).parent
CLIENTS, ROUNDS, TEXTS_A_ROUND, START_SECONDS, STOP_SECONDS = 3, 2, 2, 120.0, 10.0
RUN_CONFIG = {
    "classifier": 'batch=1 steps=2 audit-clients=3 budget="20s"',
    "lora": 'batch=2 steps=1 audit-clients=1 budget="20s"',
}
"""Two texts of a client in a round either way: one in each of two steps, or both in one."""


def main() -> int:
    """Run the app, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("classifier", "lora"), help="one of the models; both by default")
    parser.add_argument("--directory", type=Path, default=Path("audit"), help="where the audits write")
    parser.add_argument("--without", action="store_true", help="train without the audit")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    kinds = [given.kind] if given.kind else ["classifier", "lora"]
    exact = 0
    with superlink() as environment:
        for kind in kinds:
            folder = given.directory.resolve() / kind
            shutil.rmtree(folder, ignore_errors=True)
            started = time.monotonic()
            seconds = train(kind, folder, environment, audit=not given.without)
            print(f"\n{kind}: {time.monotonic() - started:.0f} s, of which {seconds:.1f} s were the rounds")
            exact += 0 if given.without else report(kind, folder)
    return 0 if exact or given.without else 1


@contextmanager
def superlink() -> Iterator[dict[str, str]]:
    """Start a SuperLink of our own, and yield the environment in which `flwr` finds it."""
    home = Path(tempfile.mkdtemp(prefix="flower-text-"))
    http, control = free_port(), free_port()
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', '')}",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    command = [str(SCRIPTS / "flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--control-api-address", f"127.0.0.1:{control}", "--host", "127.0.0.1", "--port", str(http)]
    command += ["--disable-runtime-dependency-installation"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{http}/health", process)
        yield environment
    finally:
        stop(process)
        shutil.rmtree(home, ignore_errors=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the SuperLink and what it started: a simulation has a session of its own, and outlives it otherwise."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    process.terminate()
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, running = psutil.wait_procs(started, STOP_SECONDS)
    for child in running:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait(30)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the SuperLink answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the SuperLink did not start")


def train(kind: str, folder: Path, environment: Mapping[str, str], *, audit: bool) -> float:
    """Run the app, show its log, and return the seconds that its rounds took."""
    config = f'kind="{kind}" directory="{folder}" audit={str(audit).lower()} {RUN_CONFIG[kind]}'
    command = [str(SCRIPTS / "flwr"), "run", str(HERE), "--stream", "-c", config]
    command += ["--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1"]
    seconds = 0.0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            for line in run.stdout or ():
                print(line, end="", flush=True)
                if found := re.search(r"Strategy execution finished in ([\d.]+)s", line):
                    seconds = float(found.group(1))
        except BaseException:
            run.kill()  # `with` would wait for its end
            raise
    if not seconds:
        raise SystemExit("the run did not finish; its log is above")
    return seconds


def report(kind: str, folder: Path) -> int:
    """Print what the audit read beside what clients trained on, and return how many sentences are exactly theirs."""
    truth = {
        " ".join(re.findall(r"\w+", text.lower()))
        for partition in range(CLIENTS)
        for number in range(1, ROUNDS + 1)
        for text in round_texts(partition, number, TEXTS_A_ROUND)[0]
    }
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    exact = 0
    for record in sorted(map(json.loads, lines), key=lambda record: (record["round"], record["client"])):
        print(f"round {record['round']}, client {record['client']}: {outcome(record)}")
        for sentence in record["sentences"]:
            right = " ".join(re.findall(r"\w+", (sentence["reconstruction"] or "").lower())) in truth
            exact += right
            print(f"    {'exact' if right else '     '}  {sentence['reconstruction']}")
    print(f"{exact} sentences of {len(truth)} were named exactly by the audit of the {kind}.")
    return exact


def outcome(record: Mapping[str, Any]) -> str:
    """Return the state of a record in words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['error']}"
    return f"{'proven' if record['verified'] else 'not proven'}, {record['seconds']:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
