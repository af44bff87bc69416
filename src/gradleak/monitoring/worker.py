"""The process that attacks: reads jobs as lines of JSON, writes records, and answers without the words.

Started by `AuditProcess` as `python -m gradleak.monitoring.worker`. The first line has the settings; every further line
is a job. When its input ends, it finishes what was asked, removes the weights that were handed over, and ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from gradleak.errors import GradleakError
from gradleak.exchange.update import read_tensors
from gradleak.monitoring.examination import check_shapes, examine_update, summary_of
from gradleak.monitoring.records import failed_record, header_of
from gradleak.monitoring.settings import AuditSettings
from gradleak.reports.rounds import RoundsLog
from gradleak.targets import Target

NICENESS = 10
"""The audit yields to the training that it watches."""


class AuditWorker:
    """Attacks one update after the other.

    Args:
        first: the settings, the audit's folder, and the framework.
        answers: where answers go, one line of JSON each.
    """

    def __init__(self, first: Mapping[str, Any], answers: IO[str]) -> None:
        self.answers = answers
        self.settings = AuditSettings(**first["settings"])
        torch.set_num_threads(self.settings.threads)
        self.target = self.settings.load()
        self.header = header_of(self.settings, self.target, first["framework"], "server")
        self.log = RoundsLog.open(Path(first["folder"]), self.header)
        self.answer({"ready": self.target.name})

    def answer(self, line: Mapping[str, Any]) -> None:
        """Send one line; a parent that is gone does not hear it, and the records are written all the same."""
        with suppress(OSError, ValueError):
            self.answers.write(json.dumps(line) + "\n")
            self.answers.flush()

    def handle(self, line: Mapping[str, Any]) -> None:
        """Answer one line of the parent: a check of shapes, or a job."""
        if "shapes" in line:
            self.answer(_checked(self.target, line["shapes"]))
            return
        number, client = int(line["round"]), str(line["client"])
        try:
            record = self._examined(line)
        except GradleakError as error:
            record = failed_record(number, client, str(error))
        except Exception as error:  # a failure of the audit must not end it
            record = failed_record(number, client, f"{type(error).__name__}: {' '.join(str(error).split())}")
        record = {"round": number, "client": client, "examples": line.get("examples"), **record}
        record["notes"] = [*line.get("notes", ()), *record.get("notes", ())]
        self.log.append(record)
        self.answer({"job": line["job"], **summary_of(record)})

    def _examined(self, line: Mapping[str, Any]) -> dict[str, Any]:
        after = Path(line["after"])
        try:
            old, new = read_tensors(line["before"])[0], read_tensors(after)[0]
        finally:
            after.unlink(missing_ok=True)
        return examine_update(self.target, old, new, self.settings, clients=int(line.get("clients", 1)))


def _checked(target: Target, shapes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        check_shapes(target, shapes)
    except GradleakError as error:
        return {"misfit": str(error)}
    return {"fits": True}


def main() -> None:
    """Serve the parent process until its input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    with suppress(OSError):
        os.nice(NICENESS)
    first = json.loads(sys.stdin.readline())
    spool = Path(first["spool"])
    try:
        worker = AuditWorker(first, answers)
        for line in sys.stdin:
            worker.handle(json.loads(line))
    except GradleakError as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.flush()
    except KeyboardInterrupt:
        pass
    finally:
        if sys.stdin.readable() and not spool.is_symlink():
            shutil.rmtree(spool, ignore_errors=True)


if __name__ == "__main__":
    main()
