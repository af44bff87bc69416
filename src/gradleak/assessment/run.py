"""Run an audit in its folder: study.db with the records, audit.json and report.html made from them.

    outcome = run_audit(request, Path("audit"), InProcess(), watch=watch)

The folder belongs to one audit. The same request continues it; another one is refused, and nothing is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradleak.assessment.document import make_record
from gradleak.assessment.ladders import Ladder, ladders
from gradleak.assessment.plan import PLAN, AuditPlan, make_plan
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.runner import OnTrial
from gradleak.assessment.subject import SIZES, Subject, look
from gradleak.assessment.sweep import OWN, Sweep
from gradleak.assessment.training import Trainings
from gradleak.assessment.verdict import GateLimit
from gradleak.audit.threads import one_thread
from gradleak.errors import GradleakError
from gradleak.files import create_private
from gradleak.reports.page import draw
from gradleak.reports.record import AUDIT_FILE, PAGE_FILE, STORE_FILE, Record, write_private, write_record
from gradleak.studies.definition.library import Library
from gradleak.studies.execution.driver import RunOptions, open_session
from gradleak.studies.execution.events import EventListener
from gradleak.studies.execution.executors import Executor
from gradleak.studies.records.soundness import DATABASE_ERRORS, check_file, read_object
from gradleak.studies.report.recorded_study import read_address
from gradleak.version import __version__

KEY = "audit"
"""Name of the fact in study.db that says which audit it is."""


@dataclass(frozen=True)
class AuditWatch:
    """What is called while an audit runs.

    Attributes:
        planned: once, with what was found at the first look, before anything is attacked.
        trial: before each setting, and after it with its result.
        event: with every event of the study underneath.
    """

    planned: Callable[[Subject, AuditPlan, tuple[Ladder, ...]], None]
    trial: OnTrial
    event: EventListener


@dataclass(frozen=True)
class AuditOutput:
    """What an audit writes besides its records.

    Attributes:
        folder: the audit's folder.
        command: the command that repeats it, for the record.
        reveal: whether private words are written.
        gate: scores that must not be exceeded.
    """

    folder: Path
    command: str = ""
    reveal: bool = False
    gate: Sequence[GateLimit] = ()


def run_audit(
    request: AuditRequest,
    output: AuditOutput,
    executor: Executor,
    watch: AuditWatch,
    options: RunOptions | None = None,
    began: float | None = None,
) -> Record:
    """Run an audit or what is left of it, and write its record and its page.

    Args:
        request: what is audited.
        output: what is written, and where.
        executor: runs the attacks.
        watch: what is called meanwhile.
        options: how earlier results are treated.
        began: when the user's command began, by `time.perf_counter`, from where on the budget counts; now by default.

    Raises:
        GradleakError: if model or data cannot be used, the budget is too small, or the folder is another audit's.
        KeyboardInterrupt: after Ctrl-C; what is finished is recorded, and drawn if the own setup was measured.
    """
    began = time.perf_counter() if began is None else began
    store = output.folder / STORE_FILE
    check_folder(output.folder)
    before = stored_audit(store)
    _refuse_other(output.folder, before, request.identity())
    library = Library()
    subject = look(request, library, began)
    identity = {**request.identity(), **_contents(subject, library)}
    _refuse_other(output.folder, before, identity)
    if before is not None:
        subject, plan = subject.with_sizes(before["sizes"]), AuditPlan.from_dict(before["plan"])
    else:
        plan = make_plan(request, subject)
    every = ladders(subject, request.batch_size)
    watch.planned(subject, plan, every)
    _make_folder(output.folder)
    with (
        _private_files(),
        open_session(store, executor, library=library, listener=watch.event, options=options) as session,
    ):
        described = {"identity": identity, "sizes": subject.sizes(), "plan": plan.as_dict(), "version": __version__}
        session.store.describe({"name": "audit", "title": f"audit of {request.data.name}", KEY: json.dumps(described)})
        for prepared in (subject.texts.attacked, subject.texts.whole):
            library.put(prepared)
        trainings = Trainings(request, subject, plan, library, session)
        sweep = Sweep(request, subject, plan, every, session, library, trainings, watch.trial)
        try:
            # For the whole audit: the number of threads affects rounding.
            with one_thread() if subject.small else nullcontext():
                sweep.run()
        except KeyboardInterrupt:
            if OWN in sweep.results:
                _write(sweep, output, finished=False)
            raise
        return _write(sweep, output, finished=True)


def _write(sweep: Sweep, output: AuditOutput, *, finished: bool) -> Record:
    record = make_record(
        sweep,
        command=output.command,
        finished=finished,
        reveal=output.reveal,
        gate=output.gate,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_record(output.folder / AUDIT_FILE, record)
    write_private(output.folder / PAGE_FILE, draw(record))
    return record


def check_folder(folder: Path) -> None:
    """Raise a GradleakError if the folder cannot be that of an audit."""
    if folder.exists() and not folder.is_dir():
        raise GradleakError(f"{folder} is a file; give the name of a folder, new or of an earlier run of this audit")
    if not folder.absolute().parent.is_dir():
        raise GradleakError(f"{folder} cannot be made: there is no folder {folder.parent}")
    if (folder / STORE_FILE).exists():
        return
    found = [name for name in (AUDIT_FILE, PAGE_FILE) if (folder / name).exists()]
    if found:
        raise GradleakError(f"{folder} holds {found[0]} of another audit, but no {STORE_FILE}; give another folder")


def stored_audit(store: Path) -> dict[str, Any] | None:
    """Return identity, sizes and plan of the audit in a study's file; None if there is no file or it holds none."""
    if not store.exists():
        return None
    if store.is_file() and store.stat().st_size == 0:  # killed before anything was written
        return None
    try:
        with closing(sqlite3.connect(read_address(store), uri=True)) as file:
            check_file(file, store)
            row = file.execute("SELECT value FROM meta WHERE key = ?", (KEY,)).fetchone()
            empty = file.execute("SELECT count(*) FROM cells").fetchone()[0] == 0
    except DATABASE_ERRORS as error:
        raise GradleakError(f"{store} is not a study file ({error}); give another folder") from None
    if row is None and not empty:
        raise GradleakError(f"{store} holds a study, not an audit; give another folder")
    if row is None:
        return None
    found = read_object(row[0], store, "its audit", {"identity": {str: str}, "sizes": SIZES, "plan": PLAN})
    if min(found["plan"][name] for name in ("seconds", "patience", "sample", "probe")) <= 0:
        raise GradleakError(f"{store} is damaged: the plan of its audit leaves no time, or no sentences")
    return found


def _refuse_other(folder: Path, before: dict[str, Any] | None, identity: dict[str, str]) -> None:
    if before is None:
        return
    other = [name for name, value in identity.items() if before["identity"].get(name) != value]
    if other:
        raise GradleakError(
            f"{folder} holds another audit (other {', '.join(other)}): give another folder with -o, or the same options"
        )


def _contents(subject: Subject, library: Library) -> dict[str, str]:
    """Return hashes of what names stand for: the weights, and the texts."""
    texts = hashlib.sha256()
    for part in (subject.texts.attacked, subject.texts.whole):
        texts.update(json.dumps([part.texts, part.labels]).encode())
    return {"weights": library.weights_hash(subject.target), "texts": texts.hexdigest()}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise GradleakError(f"{folder} cannot be written: {error.strerror}") from None
    create_private(folder / STORE_FILE)  # SQLite gives its further files the mode of this one


class _private_files:  # noqa: N801 - used as a function
    """Let every file that is made in the body be readable by its owner alone, the lock included."""

    def __enter__(self) -> None:
        self._before = os.umask(0o077)

    def __exit__(self, *_: object) -> None:
        os.umask(self._before)
