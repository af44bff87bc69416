"""The executor that runs cells on a Ray cluster; only the driver writes records."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any, Self

from gradleak.errors import GradleakError, missing_extra
from gradleak.plugins import VARIABLE
from gradleak.studies.execution.executors import Executor, OnProgress, Result
from gradleak.studies.execution.worker import Job, JobRunner, in_one_line
from gradleak.studies.records.outcome import Failure, Outcome

LOCAL = "local"


class RayCluster(Executor):
    """Runs cells on Ray, each on one core and, where the cluster has any, one GPU.

    The machines need gradleak and the models; sentences are sent with the jobs.

    Args:
        address: of a running cluster, or `local` to start one on this machine.
        device: `auto`, `cpu` or `cuda`.
        cores: number of cores of a `local` cluster; all by default.
    """

    def __init__(self, address: str = LOCAL, device: str = "auto", cores: int | None = None) -> None:
        self._ray = _import_ray()
        self._address = address
        self._device = device
        self._cores = cores
        self._pending: dict[Any, str] = {}  # the cell's id by Ray's reference
        self._connected_here = False

    def __enter__(self) -> Self:
        """Connect to the cluster, or start one."""
        if not self._ray.is_initialized():
            self._connect()
            self._connected_here = True
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self._device != "cpu" else 0
        self.slots = max(1, gpus or int(resources.get("CPU", 1)))
        options = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_retries": 0, "max_calls": 0}
        self._run_job = self._ray.remote(**options)(_run_job)
        return self

    def end(self) -> None:
        """Cancel running jobs, and disconnect."""
        for reference in self._pending:
            self._ray.cancel(reference, force=True)
        self._pending.clear()
        if self._connected_here:
            self._ray.shutdown()
            self._connected_here = False

    def submit(self, job: Job) -> None:
        """Submit the job to Ray."""
        plugins = os.environ.get(VARIABLE, "")
        self._pending[self._run_job.remote(job.anywhere(), self._device, plugins, os.getcwd())] = job.cell.id

    def wait(self, on_progress: OnProgress) -> Result:
        """Wait for any job; Ray reports no progress of running ones."""
        finished, _ = self._ray.wait(list(self._pending), num_returns=1)
        cell = self._pending.pop(finished[0])
        try:
            result: Outcome | Failure = self._ray.get(finished[0])
        except self._ray.exceptions.RayError as error:
            return cell, Failure(f"the Ray worker died: {in_one_line(error)}")
        return cell, result

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an audit tool sends no statistics
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address == LOCAL:
            options |= {"num_cpus": self._cores, "include_dashboard": False}
        else:
            _check_reachable(self._address)
        before, terminated = signal.getsignal(signal.SIGTERM), False
        try:
            self._ray.init(address=self._address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise GradleakError(f"no Ray cluster at {self._address}: {in_one_line(error)}") from None
        except SystemExit:  # by Ray's own handler of SIGTERM, which is there while it starts
            terminated = True
        finally:
            # Ray answers SIGTERM with a dump of its C++ stack; the driver ends as it does everywhere.
            if threading.current_thread() is threading.main_thread() and before is not None:
                signal.signal(signal.SIGTERM, before)
        if terminated:
            self._ray.shutdown()
            signal.raise_signal(signal.SIGTERM)


def _import_ray() -> Any:  # noqa: ANN401 - a module without types
    try:
        import ray
    except ImportError:
        raise missing_extra("Ray", "ray", "running a study on a cluster") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at `host:port`: Ray itself would try for a minute and then end the process."""
    host, colon, port = address.rpartition(":")
    if address == "auto" or "://" in address or not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise GradleakError(f"no Ray cluster at {address}: {error}") from None


_runners: dict[str, JobRunner] = {}  # Ray reuses its worker processes, in which models stay loaded


def _run_job(job: Job, device: str, plugins: str, folder: str) -> Outcome | Failure:
    """Run a job on one core: the function that a Ray worker executes."""
    import torch

    torch.set_num_threads(1)
    os.environ[VARIABLE] = plugins
    return _runners.setdefault(device, JobRunner(device, folder)).run(job)
