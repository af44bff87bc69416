"""Cells on a Ray cluster: many machines, one driver, which alone writes."""

from __future__ import annotations

import os
import socket
from typing import Any, Self

from gradleak.errors import GradleakError, missing_extra
from gradleak.plugins import VARIABLE
from gradleak.studies.execution.executors import Executor, Moved, Result
from gradleak.studies.execution.worker import Job, JobRunner, in_one_line
from gradleak.studies.records.outcome import Failure, Outcome

LOCAL = "local"


class RayCluster(Executor):
    """Runs cells on Ray, each on one core and, where the cluster has any, one GPU.

    The machines need gradleak and the models; sentences travel with the jobs.

    Args:
        address: of a running cluster, or `local` to start one on this machine.
        device: `auto`, `cpu` or `cuda`.
        cores: for `local`, how many cores it has; all by default.
    """

    def __init__(self, address: str = LOCAL, device: str = "auto", cores: int | None = None) -> None:
        self._ray = _import_ray()
        self._address = address
        self._device = device
        self._cores = cores
        self._pending: dict[Any, str] = {}  # from Ray's reference to the cell's id
        self._ours = False

    def __enter__(self) -> Self:
        """Connect, or start a cluster."""
        if not self._ray.is_initialized():
            self._connect()
            self._ours = True
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self._device != "cpu" else 0
        self.slots = max(1, gpus or int(resources.get("CPU", 1)))
        options = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_retries": 0, "max_calls": 0}
        self._do = self._ray.remote(**options)(_do)
        return self

    def end(self) -> None:
        """Stop what still runs, and leave the cluster."""
        for reference in self._pending:
            self._ray.cancel(reference, force=True)
        self._pending.clear()
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def submit(self, job: Job) -> None:
        """Hand the job to Ray."""
        plugins = os.environ.get(VARIABLE, "")
        self._pending[self._do.remote(job.anywhere(), self._device, plugins, os.getcwd())] = job.cell.id

    def wait(self, moved: Moved) -> Result:
        """Wait for any job; those under way tell nothing."""
        finished, _ = self._ray.wait(list(self._pending), num_returns=1)
        cell = self._pending.pop(finished[0])
        try:
            result: Outcome | Failure = self._ray.get(finished[0])
        except self._ray.exceptions.RayError as error:
            return cell, Failure(f"the Ray worker died: {in_one_line(error)}")
        return cell, result

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an audit tool sends nothing anywhere
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address == LOCAL:
            options |= {"num_cpus": self._cores, "include_dashboard": False}
        else:
            _reach(self._address)
        try:
            self._ray.init(address=self._address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise GradleakError(f"no Ray cluster at {self._address}: {in_one_line(error)}") from None


def _import_ray() -> Any:  # noqa: ANN401
    try:
        import ray
    except ImportError:
        raise missing_extra("Ray", "ray", "running a study on a cluster") from None
    return ray


def _reach(address: str) -> None:
    """Ray tries for a minute and then ends the process if nobody answers; ask first."""
    host, colon, port = address.rpartition(":")
    if address == "auto" or "://" in address or not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise GradleakError(f"no Ray cluster at {address}: {error}") from None


_workshops: dict[str, JobRunner] = {}  # Ray keeps its worker processes; a model stays loaded in each


def _do(job: Job, device: str, plugins: str, folder: str) -> Outcome | Failure:
    """Do a job on one core; what a Ray worker runs."""
    import torch

    torch.set_num_threads(1)
    os.environ[VARIABLE] = plugins
    return _workshops.setdefault(device, JobRunner(device, folder)).run(job)
