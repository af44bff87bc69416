"""Executors: run cells in this process, or in worker processes of this machine; `ray_cluster` has the one for Ray.

The driver submits jobs and waits for one result at a time; an executor never touches the store. If a worker dies, its
job is returned as a failure.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

import torch

from gradleak.errors import GradleakError
from gradleak.exchange import Progress
from gradleak.studies.execution.worker import Job, JobRunner
from gradleak.studies.records.outcome import Failure, Outcome
from gradleak.targets import resolve_device

Result = tuple[str, Outcome | Failure]
OnProgress = Callable[[str, Progress], None]  # called with the id of the cell
WORKER_READY = "ready"  # the first message of a worker process
MAX_STARTUP_FAILURES = 5  # workers that die in succession before they are ready, until the run is given up


class Executor(ABC):
    """Runs jobs, at most `slots` at a time. A context manager, which ends all workers on exit."""

    slots: int = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:  # noqa: B027 - an executor without workers has nothing to end
        """End all workers at once, busy or not."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Accept a job; the driver keeps at most `slots` jobs submitted."""

    @abstractmethod
    def wait(self, on_progress: OnProgress) -> Result:
        """Wait for a cell to finish, and return its id and its result; report the progress of running ones."""


class InProcess(Executor):
    """Runs cells in this process, one at a time.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    def __init__(self, device: str = "auto") -> None:
        resolve_device(device)  # raises if it is not available, or every cell would fail
        self._runner = JobRunner(device)
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Queue the job; `wait` runs it."""
        self._jobs.append(job)

    def wait(self, on_progress: OnProgress) -> Result:
        """Run the first job of the queue."""
        job = self._jobs.popleft()
        return job.cell.id, self._runner.run(job, lambda progress: on_progress(job.cell.id, progress))


class Worker:
    """A worker process, and the pipe to it."""

    def __init__(self, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, remote = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(remote, device, threads), daemon=True)
        with _without_interrupts():
            self.process.start()
        remote.close()  # only the worker holds its end: if it dies, the pipe is closed
        self.ready = False
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        """Send the worker a job."""
        self.job = job
        with suppress(OSError):  # it died while idle; `wait` sees the closed pipe
            self.pipe.send(job)

    def end(self) -> None:
        """Kill the process: a worker holds nothing that must be saved."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Processes(Executor):
    """Runs cells in worker processes of this machine, which share its cores equally.

    Workers import the main module again: a script that uses this class needs `if __name__ == "__main__":`.

    Args:
        workers: number of processes.
        device: `auto`, `cpu`, `cuda` (GPUs are assigned to workers in turn) or `cuda:N`.
    """

    def __init__(self, workers: int, device: str = "auto") -> None:
        resolve_device(device)  # raises if it is not available, or every cell would fail
        self.slots = workers
        self._device = device
        self._threads = max(1, _cores() // workers)
        self._workers: dict[int, Worker] = {}  # by slot
        self._startup_failures = 0  # in succession

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def submit(self, job: Job) -> None:
        """Give the job to an idle worker, or to a new one."""
        idle = next((worker for worker in self._workers.values() if worker.job is None), None)
        (idle or self._spawn(next(slot for slot in range(self.slots) if slot not in self._workers))).give(job)

    def wait(self, on_progress: OnProgress) -> Result:
        """Receive messages of busy workers until one is a result."""
        while True:
            busy = {worker.pipe: (slot, worker) for slot, worker in self._workers.items() if worker.job is not None}
            for pipe in connection.wait(list(busy)):
                result = self._receive(*busy[pipe], on_progress)  # type: ignore[index]
                if result is not None:
                    return result

    def _receive(self, slot: int, worker: Worker, on_progress: OnProgress) -> Result | None:
        """Receive one message of a worker, or notice that it died; return the result if there is one."""
        job = worker.job
        assert job is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            how = self._reap(slot)
            if worker.ready:
                return job.cell.id, Failure(f"the worker process died {how}")
            self._startup_failures += 1
            if self._startup_failures >= MAX_STARTUP_FAILURES:
                raise GradleakError(f"no worker process gets to work: they all die at the start, {how}") from None
            self._spawn(slot).give(job)  # it died before it saw the cell, which costs the cell no attempt
            return None
        if message == WORKER_READY:
            worker.ready, self._startup_failures = True, 0
            return None
        if isinstance(message, Progress):
            on_progress(job.cell.id, message)
            return None
        worker.job = None
        return job.cell.id, message

    def _spawn(self, slot: int) -> Worker:
        """Start a worker process."""
        self._workers[slot] = Worker(self._device_of(slot), self._threads)
        return self._workers[slot]

    def _reap(self, slot: int) -> str:
        """Remove a dead worker, and return how it died."""
        worker = self._workers.pop(slot)
        worker.process.join(timeout=10)
        code = worker.process.exitcode
        worker.end()
        return f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"

    def _device_of(self, slot: int) -> str:
        count = torch.cuda.device_count()
        return f"cuda:{slot % count}" if self._device in ("auto", "cuda") and count > 1 else self._device


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serve(pipe: Connection, device: str, threads: int) -> None:
    """Run jobs until the pipe is closed: the main function of a worker process."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    runner = JobRunner(device)
    pipe.send(WORKER_READY)
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        pipe.send(runner.run(job, pipe.send))


def _die_with_parent() -> None:
    """Exit when the driver ends: one that was killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in the body: a process started there ignores Ctrl-C, which the driver alone handles."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
