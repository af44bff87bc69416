"""Where cells run: in this process, in worker processes of this machine, or (see `cluster`) on Ray.

The driver hands out jobs and waits for results, one at a time; an executor never touches the store. A job whose worker
dies comes back as a failure like any other.
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
Moved = Callable[[str, Progress], None]
READY = "ready"
STILLBORN = 5  # workers that die one after the other before they are ready: something is wrong with all of them


class Executor(ABC):
    """Runs jobs, at most `slots` at a time. A context manager: leaving it ends every worker."""

    slots: int = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:  # noqa: B027 - an executor without workers has nothing to end
        """End every worker, whatever it does."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Take a job; the driver never gives more than `slots` at a time."""

    @abstractmethod
    def wait(self, moved: Moved) -> Result:
        """Return the id and the result of a cell that finished; tell `moved` of those under way."""


class InProcess(Executor):
    """Runs cells one after the other in this process.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    def __init__(self, device: str = "auto") -> None:
        resolve_device(device)  # refuses one that is not here, before every cell fails on it
        self._workshop = JobRunner(device)
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Keep the job until it is waited for."""
        self._jobs.append(job)

    def wait(self, moved: Moved) -> Result:
        """Do the job."""
        job = self._jobs.popleft()
        return job.cell.id, self._workshop.run(job, lambda progress: moved(job.cell.id, progress))


class Worker:
    """A process that does jobs, and the line to it."""

    def __init__(self, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, remote = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(remote, device, threads), daemon=True)
        with _without_interrupts():
            self.process.start()
        remote.close()  # the worker's end is the only one: when it dies, the line ends
        self.ready = False
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        """Hand the worker a job."""
        self.job = job
        with suppress(OSError):  # it died idle; the line's end says so to whoever waits
            self.line.send(job)

    def end(self) -> None:
        """End the process, whatever it does: it has nothing to lose."""
        self.process.kill()
        self.process.join()
        self.line.close()


class Processes(Executor):
    """Runs cells in worker processes of this machine, each with its share of the cores.

    Workers import the main module anew: a script that uses them starts under `if __name__ == "__main__":`.

    Args:
        workers: how many.
        device: `auto`, `cpu`, `cuda` (the workers share the GPUs out among them) or `cuda:N`.
    """

    def __init__(self, workers: int, device: str = "auto") -> None:
        resolve_device(device)  # refuses one that is not here, before every cell fails on it
        self.slots = workers
        self._device = device
        self._threads = max(1, _cores() // workers)
        self._workers: dict[int, Worker] = {}  # by place
        self._stillborn = 0

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def submit(self, job: Job) -> None:
        """Give the job to an idle worker, or to a new one."""
        idle = next((worker for worker in self._workers.values() if worker.job is None), None)
        (idle or self._hire(next(place for place in range(self.slots) if place not in self._workers))).give(job)

    def wait(self, moved: Moved) -> Result:
        """Listen to all workers that have a job."""
        while True:
            busy = {worker.line: (place, worker) for place, worker in self._workers.items() if worker.job is not None}
            for line in connection.wait(list(busy)):
                result = self._hear(*busy[line], moved)  # type: ignore[index]
                if result is not None:
                    return result

    def _hear(self, place: int, worker: Worker, moved: Moved) -> Result | None:
        """Take a message of a worker, or its death; return a result if it is one."""
        job = worker.job
        assert job is not None
        try:
            message = worker.line.recv()
        except (EOFError, OSError):
            how = self._bury(place)
            if worker.ready:
                return job.cell.id, Failure(f"the worker process died {how}")
            self._stillborn += 1
            if self._stillborn >= STILLBORN:
                raise GradleakError(f"no worker process gets to work: they all die at the start, {how}") from None
            self._hire(place).give(job)  # the cell has nothing to do with it
            return None
        if message == READY:
            worker.ready, self._stillborn = True, 0
            return None
        if isinstance(message, Progress):
            moved(job.cell.id, message)
            return None
        worker.job = None
        return job.cell.id, message

    def _hire(self, place: int) -> Worker:
        self._workers[place] = Worker(self._device_of(place), self._threads)
        return self._workers[place]

    def _bury(self, place: int) -> str:
        """Put a dead worker away, and return how it died."""
        worker = self._workers.pop(place)
        worker.process.join(timeout=10)
        code = worker.process.exitcode
        worker.end()
        return f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"

    def _device_of(self, place: int) -> str:
        count = torch.cuda.device_count()
        return f"cuda:{place % count}" if self._device in ("auto", "cuda") and count > 1 else self._device


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serve(line: Connection, device: str, threads: int) -> None:
    """Do jobs until the line ends; what a worker process runs."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    workshop = JobRunner(device)
    line.send(READY)
    while True:
        try:
            job: Job = line.recv()
        except EOFError:
            return
        line.send(workshop.run(job, line.send))


def _die_with_parent() -> None:
    """A driver that was killed cannot end its workers; they must not go on for hours."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start a process that Ctrl-C does not reach: the driver alone decides what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
