"""`AuditProcess`: attacks in a process of its own, so that a round waits no longer than its caller allows."""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import gradleak
from gradleak.errors import GradleakError
from gradleak.exchange import named_tensors
from gradleak.monitoring.records import failed_record
from gradleak.monitoring.settings import AuditSettings
from gradleak.reports.record import ROUNDS_FILE
from gradleak.reports.rounds import RoundsLog

START_SECONDS = 300.0
"""Time for the process to start and load the model."""

GRACE_FACTOR, GRACE_SECONDS = 3.0, 120.0
"""An attack that takes longer than this many budgets, and so many seconds more, is ended from outside."""

RESTARTS = 3
"""How often a process that ended by itself is started again."""

LOG_FILE = "worker.log"


@dataclass(frozen=True)
class AuditJob:
    """The update of one client in one round; `message` holds it as the attack process receives it."""

    round: int
    client: str
    message: Mapping[str, Any] = field(repr=False)


class AuditProcess:
    """Hands weights to a process that attacks them, and collects what it answers.

    It never raises once it is ready: what fails is logged, and is a record of the audit's file.

    Args:
        settings: the audit's settings.
        folder: the audit's folder; rounds.jsonl and worker.log are in it.
        framework: `flower` or `flare`.
        logger: where failures are logged.
    """

    def __init__(self, settings: AuditSettings, folder: Path, framework: str, logger: logging.Logger) -> None:
        self.settings, self.folder, self.framework, self.logger = settings, folder, framework, logger
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise GradleakError(f"{folder} cannot be written: {error.strerror}") from None
        self.results: list[dict[str, Any]] = []
        self._pending: deque[AuditJob] = deque()
        self._head_since = time.monotonic()
        self._restarts = 0
        self._counter = 0
        self._process = _Spawned(settings, folder, framework)

    @property
    def pending(self) -> Sequence[AuditJob]:
        """Jobs that were not answered yet."""
        return tuple(self._pending)

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Wait until the process is ready, and let it compare the federation's arrays with the model.

        Raises:
            GradleakError: if the model cannot be loaded, or the arrays are not its weights.
        """
        answer = self._process.next_answer(START_SECONDS)
        if answer is None or "error" in answer:
            self._process.end()
            raise GradleakError(str((answer or {}).get("error") or self._process.obituary()))
        self._process.tell({"shapes": {name: list(shape) for name, shape in shapes.items()}})
        answer = self._process.next_answer(START_SECONDS)
        if answer is None or "misfit" in answer:
            self._process.end()
            raise GradleakError(str((answer or {}).get("misfit") or self._process.obituary()))

    def submit(
        self,
        number: int,
        before: Mapping[str, Any],
        after: Mapping[str, Mapping[str, Any]],
        **facts: Any,  # noqa: ANN401
    ) -> None:
        """Hand over what the server sent and what clients replied in one round.

        Args:
            number: the round.
            before: arrays by name that the server sent.
            after: the reply's arrays by name, by client.
            **facts: further keys of the jobs; `examples` may have a number for each client.
        """
        examples = facts.pop("examples", {})
        try:
            old = self._spool(f"before-{number}", before)
            for client, arrays in after.items():
                self._counter += 1
                new = self._spool(f"after-{self._counter}", arrays)
                message = {"job": self._counter, "round": number, "client": client, "before": old, "after": new}
                self._send(AuditJob(number, client, {**message, **facts, "examples": examples.get(client)}))
        except Exception as error:  # a full disk must not end the training
            self.logger.warning("audit of round %d failed: %s", number, error)

    def collect(self, wait: float, number: int | None = None) -> None:
        """Take answers into `results`, waiting at most so many seconds for those of a round, or of all.

        Args:
            wait: seconds.
            number: the round; None for all.
        """
        until = time.monotonic() + wait
        while self._pending:
            wanted = any(number is None or job.round == number for job in self._pending)
            left = until - time.monotonic() if wanted else 0.0
            answer = self._process.next_answer(max(0.0, min(left, 1.0)))
            if answer is not None and "job" in answer:
                self._settle(answer)
            elif self._process.ended:
                self._restart("the process of the audit ended by itself")
            elif time.monotonic() - self._head_since > GRACE_FACTOR * self.settings.budget + GRACE_SECONDS:
                self._restart("the attack did not end in time")
            elif left <= 0:
                return

    def close(self, wait: float = 0.0) -> None:
        """Wait for what is pending, and let the process end; after the wait it finishes on its own."""
        self.collect(wait)
        self._process.hang_up()
        if not self._pending:
            self._process.end()

    def kill(self) -> None:
        """End the process at once; what is pending is given up."""
        self._pending.clear()
        self._process.end()

    def _send(self, job: AuditJob) -> None:
        if not self._pending:
            self._head_since = time.monotonic()
        self._pending.append(job)
        self._process.tell(job.message)

    def _settle(self, answer: Mapping[str, Any]) -> None:
        done = next((job for job in self._pending if job.message["job"] == answer["job"]), None)
        if done is not None:
            self._pending.remove(done)
            self._forget(done)
        self._head_since = time.monotonic()
        self.results.append(dict(answer))

    def _restart(self, why: str) -> None:
        """Give the running job up, and the others to a new process."""
        self._process.end(keep=True)
        lost = self._pending.popleft()
        record = failed_record(lost.round, lost.client, f"{why}; see {self.folder / LOG_FILE}")
        self.results.append({**record, "job": lost.message["job"], "verified": False, "read": 0, "words": 0})
        self.logger.warning("audit of client %s in round %d failed: %s", lost.client, lost.round, record["error"])
        try:
            RoundsLog(self.folder / ROUNDS_FILE).append(record)
        except GradleakError as error:
            self.logger.warning("%s", error)
        self._restarts += 1
        waiting, self._pending = list(self._pending), deque()
        if self._restarts > RESTARTS:
            self.logger.warning("the audit is given up after %d restarts", RESTARTS)
            return
        self._process = _Spawned(self.settings, self.folder, self.framework, self._process.spool)
        for job in waiting:
            self._send(job)

    def _spool(self, name: str, arrays: Mapping[str, Any]) -> str:
        """Write arrays where the process finds them, readable by their owner alone."""
        path = self._process.spool / f"{name}.safetensors"
        if not path.exists():
            tensors: dict[str, Tensor] = named_tensors(arrays, name)
            save_file(
                {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}, path
            )
        return str(path)

    def _forget(self, done: AuditJob) -> None:
        """Remove the weights of a round that nothing pending needs."""
        before = done.message["before"]
        if all(job.message["before"] != before for job in self._pending):
            Path(before).unlink(missing_ok=True)


class _Spawned:
    """The process itself, a folder for the weights that it reads, and the lines that it answers."""

    def __init__(self, settings: AuditSettings, folder: Path, framework: str, spool: Path | None = None) -> None:
        self.spool = spool or Path(tempfile.mkdtemp(prefix="gradleak-audit-"))
        self.log_path = folder / LOG_FILE
        threads = str(settings.threads)
        source = str(Path(gradleak.__file__).resolve().parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(paths)}
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gradleak.monitoring.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        finally:
            os.close(descriptor)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._silent = False
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()
        first = {"settings": settings.as_dict(), "folder": str(folder), "framework": framework}
        self.tell({**first, "spool": str(self.spool)})

    @property
    def ended(self) -> bool:
        """Whether the process is gone and everything that it answered was taken."""
        return self._silent and self._answers.empty()

    def tell(self, line: Mapping[str, Any]) -> None:
        """Send one line; a process that is gone does not hear it, which `ended` shows."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            self._silent = True

    def next_answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer, or None if none comes in time or the process is gone."""
        try:
            answer = self._answers.get(timeout=seconds) if seconds > 0 else self._answers.get_nowait()
        except queue.Empty:
            return None
        if answer is None:
            self._silent = True
        return answer

    def obituary(self) -> str:
        """Return why the process ended, as far as its log tells."""
        lines = [
            line for line in self.log_path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        return (
            f"the process of the audit did not start: {lines[-1] if lines else 'no reason given'} (see {self.log_path})"
        )

    def hang_up(self) -> None:
        """Tell the process that no further job comes: it finishes what it has, and ends."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                self._silent = True

    def end(self, keep: bool = False) -> None:
        """End the process, and remove the weights that were handed over unless another process takes them."""
        self.hang_up()
        try:
            self.process.wait(timeout=0.0 if keep else 5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not keep:
            shutil.rmtree(self.spool, ignore_errors=True)

    def _listen(self, answers: IO[str]) -> None:
        for line in answers:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue
        self._answers.put(None)
