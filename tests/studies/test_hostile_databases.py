"""Study files from anywhere: one line that names the file, whatever is in it, and the file stays as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from study_tools import small_study as run_small_study
from test_summary import small_study

from gradleak.cli import main
from gradleak.errors import GradleakError
from gradleak.studies.records.store import Store

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x"
CELLS = "id, kind, config, status, error, attempts, seconds, finished_at, version, model_hash, machine"
DAMAGE = {
    "broken JSON": "UPDATE cells SET config = '{'",
    "JSON of another kind": "UPDATE cells SET config = '[1]'",
    "deep JSON": f"UPDATE cells SET config = '{'[' * 50_000}'",
    "no description": "UPDATE cells SET config = '{}'",
    "a number of 5,000 digits": f"UPDATE cells SET config = json_set(config, '$.batch_size', json('{'9' * 5_000}'))",
    "a target that is a number": "UPDATE cells SET config = json_set(config, '$.target', 1)",
    "a target without a name": "UPDATE cells SET config = json_set(config, '$.target', json('{}'))",
    "defenses that are a text": "UPDATE cells SET config = json_set(config, '$.defenses', 'noise')",
    "an endless range": "UPDATE cells SET config = json_set(config, '$.dataset.take', '0:999999999999')",
    "a range that is none": "UPDATE cells SET config = json_set(config, '$.dataset.take', 'a:b')",
    "dropout in words": "UPDATE cells SET config = json_set(config, '$.client.dropout', 'much')",
    "settings in a list": "UPDATE cells SET config = json_set(config, '$.attack.settings', json('[1]'))",
    "hashes in a list": "UPDATE cells SET config = json_set(config, '$.hashes', json('[1]'))",
    "a description that is bytes": "UPDATE cells SET config = x'00ff'",
    "seconds in words": "UPDATE cells SET seconds = 'long'",
    "endless seconds": "UPDATE cells SET seconds = 9e999",
    "a version that is a number": "UPDATE cells SET version = x'01'",
    "a score in words": "UPDATE sentences SET rouge1 = 'high'",
    "no score": "UPDATE sentences SET rouge1 = NULL",
    "an endless score": "UPDATE sentences SET rouge1 = -9e999",
    "a batch in words": "UPDATE sentences SET batch = 'first' WHERE rowid = 1",
    "utility in words": "UPDATE utility SET mcc = 'good'",
    "stale cells in a list": "INSERT OR REPLACE INTO meta VALUES ('stale', '[]')",
    "broken list of stale cells": "INSERT OR REPLACE INTO meta VALUES ('stale', '{')",
    "a fact that is bytes": "INSERT INTO meta VALUES ('title', x'ff')",
    "text that is not UTF-8": "UPDATE cells SET version = CAST(x'ff' AS TEXT)",
    "no cells": "DROP TABLE cells",
    "no sentences": "DROP TABLE sentences",
    "no utilities": "DROP TABLE utility",
    "no facts": "DROP TABLE meta",
    "a renamed column": "ALTER TABLE cells RENAME COLUMN config TO conf",
    "another column": "ALTER TABLE cells ADD COLUMN more AS (length(zeroblob(1000000000)))",
    "a view": f"CREATE VIEW more AS {ENDLESS} FROM n",
    "an endless view": f"DROP TABLE sentences; CREATE VIEW sentences AS {ENDLESS} AS cell_id FROM n",
    "a trigger": "CREATE TRIGGER gone AFTER INSERT ON cells BEGIN DELETE FROM sentences; END",
    "a virtual table": "CREATE VIRTUAL TABLE words USING fts5(text)",
    "a table of others": "CREATE TABLE photos (name)",
}


@pytest.fixture
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = small_study(tmp_path / "bad\x1b[31m.db")
    with closing(sqlite3.connect(path)) as file:
        file.executescript(request.param)
        file.commit()
    return path


@pytest.mark.parametrize("damaged", DAMAGE.values(), ids=DAMAGE, indirect=True)
def test_a_damaged_file_is_one_line_that_names_it(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = damaged.read_bytes()
    assert main(["study", "show", str(damaged)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "bad␛[31m.db" in said.err
    assert "\x1b" not in said.err
    assert damaged.read_bytes() == before
    assert [path.name for path in damaged.parent.iterdir()] == [damaged.name]


@pytest.mark.parametrize("name", ["broken JSON", "no cells", "an endless view", "a trigger", "hashes in a list"])
def test_a_run_does_not_go_on_in_a_damaged_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_small_study(tmp_path)
    path = tmp_path / "my.db"
    with Store(path) as store, store._transaction():
        store._connection.execute(
            f"INSERT INTO cells ({CELLS}) VALUES ('a', 'attack', '{{}}', 'done', '', 1, 1, '', '', '', '')"
        )
    with closing(sqlite3.connect(path)) as file:
        file.executescript(DAMAGE[name])
        file.commit()
    capsys.readouterr()
    assert main(["study", "run", str(tmp_path / "small.toml"), "-o", str(path), "--device", "cpu", "-q"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "my.db is " in said.err


def test_damaged_pages_are_noticed(tmp_path: Path) -> None:
    path = small_study(tmp_path / "my.db")
    content = bytearray(path.read_bytes())
    for place in range(4096 + 100, len(content), 512):
        content[place] ^= 0xFF
    path.write_bytes(content)
    assert main(["study", "show", str(path)]) == 2


def test_records_are_their_owners_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "my.db") as store:
        store.describe({"title": "secret"})
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_link_in_the_place_of_new_records_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GradleakError, match=r"link\.db is a link to a file that is not there"):
        Store(tmp_path / "link.db")
    assert not (tmp_path / "elsewhere").exists()
