"""The example's runner: what it starts ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

RUNNER = Path(__file__).parents[2] / "examples" / "flower-text" / "run.py"
START_SECONDS = 180.0


def simulation_of(runner: psutil.Process) -> psutil.Process | None:
    """Return the process of the simulation, once it has started Ray's."""
    for child in runner.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie is one, too
            if "flwr-simulation" in " ".join(child.cmdline()) and len(child.children()) > 1:
                return child
    return None


def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), "--kind", "classifier", "--without", "--directory", str(tmp_path / "audit")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        runner, until = psutil.Process(process.pid), time.monotonic() + START_SECONDS
        while simulation_of(runner) is None and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.2)
        started = runner.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    _, running = psutil.wait_procs(started, 10)
    try:
        assert running == []
    finally:
        for left in running:
            left.kill()
