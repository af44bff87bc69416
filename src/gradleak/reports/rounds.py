"""Rounds of a running federation: the file that its audit appends to, and the record that is made of it.

    log = RoundsLog.open(Path("audit"), {"framework": "flower", "side": "server", "model": "./model", "attack": "auto"})
    log.append({"round": 1, "client": "17", "status": "done", "sentences": [{"reconstruction": "the patient …"}]})

rounds.jsonl holds the words and is private; docs/audit.md lists its keys. `gradleak report audit/` makes the record
and the page, without the words unless they are asked for.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.errors import GradleakError
from gradleak.files import OWNER_ONLY, read_bytes
from gradleak.reports.record import MARK, ROUNDS_FILE, SCHEMA, Record
from gradleak.reports.words import cleaned, sentence_record
from gradleak.version import __version__

HEADER_MARK = "rounds"
REQUIRED = ("framework", "side", "model", "attack")
STATUSES = ("done", "failed", "skipped")
SHOWN_SENTENCES = 40
LONG = 4
"""Words above which a sentence that is read exactly counts as a leak."""


@dataclass(frozen=True)
class RoundsLog:
    """The file of an audit of a running federation.

    Attributes:
        path: rounds.jsonl in the audit's folder.
    """

    path: Path

    @classmethod
    def open(cls, folder: Path, header: Mapping[str, Any]) -> RoundsLog:
        """Make the folder and the file with its header, or continue a file of the same model, framework and attack.

        Raises:
            GradleakError: if the header lacks a key, the file is that of another audit, or cannot be written.
        """
        missing = [key for key in REQUIRED if key not in header]
        if missing:
            raise GradleakError(f"the header of {ROUNDS_FILE} lacks {', '.join(missing)}")
        log = cls(folder / ROUNDS_FILE)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise GradleakError(f"{folder} cannot be made: {error.strerror}") from None
        whole = {"gradleak": HEADER_MARK, "schema": SCHEMA, "version": __version__, **header}
        if log._begin(whole):
            return log
        if not log.path.stat().st_size:
            log._write(whole)
            return log
        found, _ = read_rounds(log.path)
        other = [key for key in REQUIRED if found.get(key) != header[key]]
        if other:
            raise GradleakError(f"{log.path} is of another audit (other {', '.join(other)}); give another folder")
        return log

    def append(self, record: Mapping[str, Any]) -> None:
        """Append what was found of one client in one round, in one write.

        Raises:
            GradleakError: if round, client or status is missing, or the file cannot be written.
        """
        problem = _problem(record)
        if problem:
            raise GradleakError(f"a record of {ROUNDS_FILE} {problem}")
        self._write(record)

    def _begin(self, header: Mapping[str, Any]) -> bool:
        """Make the file, with its header from the start, and return whether it was not there.

        Clients on one machine begin at the same time; the name is given to a file that is written already.
        """
        if self.path.exists():
            return False
        try:
            descriptor, name = tempfile.mkstemp(prefix=".", dir=self.path.parent)
            os.close(descriptor)
            try:
                RoundsLog(Path(name))._write(header)
                os.link(name, self.path)
            finally:
                os.unlink(name)
        except FileExistsError:
            return False
        except OSError as error:
            raise GradleakError(f"{self.path} cannot be written: {error.strerror}") from None
        return True

    def _write(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
            try:
                os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise GradleakError(f"{self.path} cannot be written: {error.strerror}") from None


def read_rounds(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the records, sorted by round and client; the last record of both counts.

    A torn last line, of a writer that was killed, is left out.

    Raises:
        GradleakError: if there is no such file, or it is not one of rounds.
    """
    lines = list(_lines(path))
    if not lines or lines[0].get("gradleak") != HEADER_MARK:
        raise GradleakError(f"{path} is not a file of rounds: it has no header")
    if not isinstance(lines[0].get("schema"), int) or lines[0]["schema"] > SCHEMA:
        raise GradleakError(f"{path} was written by a newer gradleak: pip install --upgrade gradleak")
    latest = {(line["round"], str(line["client"])): line for line in lines[1:] if _problem(line) is None}
    return lines[0], [latest[key] for key in sorted(latest)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in read_bytes(path).split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _problem(record: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record; None if it can be drawn."""
    number = record.get("round")
    if not isinstance(number, int) or isinstance(number, bool):
        return f"needs a round that is a whole number, not {number!r}"
    if not isinstance(record.get("client"), str | int):
        return "needs a client"
    if record.get("status") not in STATUSES:
        return f"has the status {record.get('status')!r}; known: {', '.join(STATUSES)}"
    return None


def rounds_record(path: Path, *, reveal: bool = False) -> Record:
    """Return the record of an audit of rounds, made from its file.

    Args:
        path: rounds.jsonl.
        reveal: hold the words themselves.
    """
    header, lines = read_rounds(path)
    looks = [_look(line, reveal) for line in lines]
    shown = sorted(
        ({**sentence, "round": look["round"], "client": look["client"]} for look in looks for sentence in look["read"]),
        key=lambda sentence: -_weight(sentence),
    )
    for look in looks:
        look["read"] = len(look["read"])
    record: Record = {
        "gradleak": MARK,
        "schema": SCHEMA,
        "kind": "rounds",
        "title": f"Audit of {header['model']} in {header['framework']}",
        "revealed": reveal,
        "finished": True,
        "verdict": _verdict(looks),
        "threat_model": _threat_model(header),
        "rounds": looks,
        "sentences": shown[:SHOWN_SENTENCES],
        "sentences_total": len(shown),
        "capacity": _capacity(header),
        "measured": _measured(header, lines),
    }
    return cleaned(record)


def _look(line: Mapping[str, Any], reveal: bool) -> dict[str, Any]:
    """Return what the record holds of one client in one round."""
    found = [
        sentence_record(each.get("reference"), each.get("reconstruction"), each.get("scores"), reveal=reveal)
        for each in line.get("sentences") or ()
    ]
    known = [sentence for sentence in found if sentence["scores"] is not None]
    return {
        "round": line["round"],
        "client": str(line["client"]),
        "status": line["status"],
        "error": line.get("error"),
        "rougeL": sum(s["scores"]["rougeL"] for s in known) / len(known) if known else None,
        "exact": sum(bool(s["scores"].get("exact")) for s in known) if known else None,
        "verified": bool(line.get("verified")),
        "words": sum(s["read_words"] for s in found),
        "examples": line.get("examples"),
        "refused": bool(line.get("refused")),
        "epsilon": line.get("epsilon"),
        "warnings": list(line.get("warnings") or ()),
        "verdict": line.get("verdict"),
        "seconds": line.get("seconds"),
        "read": found,
    }


def _weight(sentence: Mapping[str, Any]) -> float:
    scores = sentence["scores"]
    return float(scores["rougeL"] if scores else 0.0) + min(1.0, sentence["read_words"] / 1000)


def leaked(look: Mapping[str, Any]) -> bool:
    """Return whether text of a client was read in a round: verified, or a sentence word for word."""
    return bool(look["verified"] or look["exact"])


def _verdict(looks: list[dict[str, Any]]) -> dict[str, str]:
    done = [look for look in looks if look["status"] == "done"]
    hit = [look for look in done if leaked(look)]
    clients = len({look["client"] for look in hit})
    tried = f"{len(done)} updates of {len({look['client'] for look in done})} clients were attacked"
    if not done:
        return {"level": "unknown", "sentence": "No update of this federation has been attacked yet.", "detail": ""}
    if not hit:
        return {
            "level": "holds",
            "sentence": "No text of a client was read with certainty from the updates of this federation.",
            "detail": f"{tried}. What could not be read today may be readable by a better attack.",
        }
    who = "1 client" if clients == 1 else f"{clients} clients"
    return {
        "level": "leaks",
        "sentence": f"Text of {who} was read from updates of this federation, first in round {hit[0]['round']}.",
        "detail": f"{tried}; text was read from {len(hit)} of them.",
    }


def _threat_model(header: Mapping[str, Any]) -> dict[str, Any]:
    seen = {
        "server": "The attacker is the server: it has the model before the round and each client's reply.",
        "client": "The audit runs at the client, who attacks its own update and knows the truth to compare with.",
    }.get(str(header["side"]), str(header["side"]))
    protocol = header.get("protocol")
    return {
        "assumed": [
            seen,
            *([f"It knows how clients train: {protocol}."] if protocol else []),
            *(header.get("assumed") or ()),
        ],
        "not_tested": [
            *(header.get("not_tested") or ()),
            "Rounds and clients that were not sampled, and attacks that combine several rounds.",
        ],
    }


def _capacity(header: Mapping[str, Any]) -> dict[str, Any]:
    capacity: dict[str, Any] = {key: header.get(key) for key in ("hidden", "rank", "parameters")}
    if capacity["hidden"]:
        rank = f" The adapter's rank is {capacity['rank']}." if capacity["rank"] else ""
        capacity["lines"] = [
            f"With fewer tokens than the {capacity['hidden']:,} dimensions of a layer's input, the words of an update "
            f"can be solved for; beyond that an attack has to search.{rank}"
        ]
    return capacity


def _measured(header: Mapping[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [float(line["seconds"]) for line in lines if isinstance(line.get("seconds"), int | float)]
    facts = ("model", "model_hash", "family", "parameters", "framework", "attack", "budget", "seed", "protocol")
    return {
        "facts": [[key.replace("_", " "), str(header[key])] for key in facts if header.get(key) is not None],
        "commands": [header["command"]] if header.get("command") else [],
        "version": header.get("version"),
        "machine": dict(header.get("machine") or {}),
        "seconds": round(sum(seconds), 1),
        "finished_at": next((line["at"] for line in reversed(lines) if line.get("at")), None),
    }
