"""`gradleak report`: draw the page of an audit, of a study's file, or of a running federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.options.audit import Reveal
from gradleak.cli.options.parse import check_outputs
from gradleak.cli.options.shared import OUTPUT, Quiet
from gradleak.cli.output.screen import Screen
from gradleak.errors import GradleakError
from gradleak.files import refused_as

if TYPE_CHECKING:
    from gradleak.reports.record import Record

SIGNATURE = b"Drawn by gradleak"

Source = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|audit.json|STUDY.db|rounds.jsonl",
        help="The folder or record of an audit, a study's file, or what an audit of a federation has written.",
        show_default=False,
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.html",
        help="The page.",
        show_default="report.html beside what is drawn",
        rich_help_panel=OUTPUT,
    ),
]


def report(source: Source, output: Page = None, reveal: Reveal = False, quiet: Quiet = False) -> None:
    """Draw the page again: one HTML file, without private words unless --reveal."""
    from jinja2 import TemplateError

    from gradleak.reports.page import draw
    from gradleak.reports.record import AUDIT_FILE, PAGE_FILE, write_private, write_record

    folder = source if source.is_dir() else source.parent
    path = output or folder / PAGE_FILE
    check_outputs([("--output", path)], [source] if source.is_file() else [])
    _check_ours(path)
    with refused_as(f"{source} is damaged and cannot be drawn", TemplateError):
        record = _record(source, reveal)
        page, sentence = draw(record), str(record["verdict"]["sentence"])
        if record["kind"] == "rounds" and source.name != AUDIT_FILE:
            _check_rounds(folder / AUDIT_FILE)
            write_record(folder / AUDIT_FILE, record)
        write_private(path, page)
    Screen(quiet, path).line(f"{sentence}\n{path}")


def _record(source: Path, reveal: bool) -> Record:
    """Return the record behind a folder or a file."""
    from gradleak.reports.record import AUDIT_FILE, ROUNDS_FILE, STORE_FILE, read_record
    from gradleak.reports.rounds import rounds_record

    if source.is_dir():
        names = [name for name in (ROUNDS_FILE, AUDIT_FILE, STORE_FILE) if (source / name).is_file()]
        if not names:
            raise GradleakError(
                f"{source} holds no {AUDIT_FILE}, {STORE_FILE} or {ROUNDS_FILE}: it is no audit's folder"
            )
        source = source / names[0]
    if source.suffix == ".jsonl":
        return rounds_record(source, reveal=reveal)
    if source.suffix != ".json":
        from gradleak.assessment.recorded import study_record

        return study_record(source, reveal=reveal)
    record = read_record(source)
    if not reveal or record["revealed"]:
        return record if reveal else without_words(record)
    if record["kind"] == "rounds":
        return rounds_record(source.with_name(ROUNDS_FILE), reveal=True)
    from gradleak.assessment.recorded import reveal_words

    return reveal_words(record, source.with_name(STORE_FILE))


def without_words(record: Record) -> Record:
    """Return a record without private words, which a record made with --reveal holds."""
    hidden = ("reference", "read")
    sentences = [{key: value for key, value in each.items() if key not in hidden} for each in record["sentences"]]
    return {**record, "revealed": False, "sentences": sentences}


def _check_rounds(path: Path) -> None:
    """Refuse to replace a record that is not of rounds: an audit's own, or what others have written."""
    from gradleak.reports.record import read_record

    if path.exists() and read_record(path)["kind"] != "rounds":
        raise GradleakError(f"{path} is the record of another audit and is not overwritten; move one of them")


def _check_ours(path: Path) -> None:
    """Refuse to replace a page that gradleak has not drawn."""
    if path.is_file() and SIGNATURE not in path.read_bytes():
        raise GradleakError(f"{path} is not a page of gradleak and is not overwritten; give another file with -o")
