from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_records import rounds_file

from gradleak.errors import GradleakError
from gradleak.reports.rounds import RoundsLog, read_rounds, rounds_record

HEADER = {"framework": "flower", "side": "server", "model": "tiny", "attack": "auto"}
SECRET = "the patient was given ten milligrams"


def look(**keys: Any) -> dict[str, Any]:
    return {
        "round": 1,
        "client": "a",
        "status": "done",
        "sentences": [{"reconstruction": SECRET}],
        "verified": True,
    } | keys


def test_log_is_private_and_its_records_are_read_back_in_order(tmp_path: Path) -> None:
    log = RoundsLog.open(tmp_path / "audit", HEADER)
    log.append(look(round=2))
    log.append(look(round=1, client="b"))
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    header, found = read_rounds(log.path)
    assert header["framework"] == "flower"
    assert [(each["round"], each["client"]) for each in found] == [(1, "b"), (2, "a")]


def test_later_record_of_a_client_and_round_replaces_the_earlier(tmp_path: Path) -> None:
    log = RoundsLog.open(tmp_path, HEADER)
    log.append(look(status="failed"))
    log.append(look(status="done"))
    assert [each["status"] for each in read_rounds(log.path)[1]] == ["done"]


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    log = RoundsLog.open(tmp_path, HEADER)
    log.append(look())
    whole = log.path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - 20, -1):
        log.path.write_bytes(whole[:cut])
        assert len(read_rounds(log.path)[1]) <= 1
    log.path.write_bytes(whole + whole[-30:-10])
    assert len(read_rounds(log.path)[1]) == 1


def test_log_of_the_same_audit_is_continued_and_that_of_another_refused(tmp_path: Path) -> None:
    RoundsLog.open(tmp_path, HEADER).append(look())
    RoundsLog.open(tmp_path, HEADER).append(look(round=2))
    assert len(read_rounds(tmp_path / "rounds.jsonl")[1]) == 2
    with pytest.raises(GradleakError, match="is of another audit \\(other model\\)"):
        RoundsLog.open(tmp_path, HEADER | {"model": "other"})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (look(round="1"), "needs a round that is a whole number"),
        (look(client=None), "needs a client"),
        (look(status="cake"), "has the status 'cake'"),
    ],
)
def test_record_that_could_not_be_drawn_is_refused(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    log = RoundsLog.open(tmp_path, HEADER)
    with pytest.raises(GradleakError, match=message):
        log.append(record)
    assert read_rounds(log.path)[1] == []


def test_header_must_say_what_was_audited(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="lacks framework, side"):
        RoundsLog.open(tmp_path, {"model": "tiny", "attack": "auto"})
    assert not (tmp_path / "rounds.jsonl").exists()


def test_other_file_is_no_file_of_rounds(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    with pytest.raises(GradleakError, match="it has no header"):
        read_rounds(tmp_path / "rounds.jsonl")


def test_words_are_in_the_record_only_if_they_are_asked_for(tmp_path: Path) -> None:
    log = RoundsLog.open(tmp_path, HEADER)
    log.append(look())
    hidden, shown = (json.dumps(rounds_record(log.path, reveal=reveal)) for reveal in (False, True))
    assert "milligrams" not in hidden
    assert "milligrams" in shown


def test_verdict_says_whose_text_was_read_and_when(tmp_path: Path) -> None:
    log = RoundsLog.open(tmp_path, HEADER)
    assert rounds_record(log.path)["verdict"]["level"] == "unknown"
    log.append(look(verified=False, sentences=[]))
    assert rounds_record(log.path)["verdict"]["level"] == "holds"
    log.append(look(round=4))
    verdict = rounds_record(log.path)["verdict"]
    assert verdict["level"] == "leaks"
    assert "1 client" in verdict["sentence"]
    assert "round 4" in verdict["sentence"]


def test_means_are_over_sentences_with_a_truth(tmp_path: Path) -> None:
    record = rounds_record(rounds_file(tmp_path, rounds=2, clients=1))
    assert all(each["rougeL"] is not None for each in record["rounds"])
    assert record["sentences_total"] == 2


def test_clients_that_begin_at_the_same_time_write_one_header(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        logs = list(pool.map(lambda _: RoundsLog.open(tmp_path, HEADER), range(64)))
    logs[0].append({"round": 1, "client": "a", "status": "done"})
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.jsonl"]
