"""No file and no command line makes a reader crash: it reads, or refuses in one line.

`make fuzz SECONDS=3600` mutates for an hour with every reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_inputs import try_inputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import MOST_MEMORY, in_process
from readers import READERS
from strategies import STRATEGIES


@pytest.mark.parametrize("name", READERS)
def test_every_example_is_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    read = []
    for example in reader.examples(tmp_path):
        (tmp_path / reader.file).write_bytes(example)
        read.append(reader.try_reading(tmp_path / reader.file))
    assert any(read), "a reader that refuses everything finds nothing"


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_reader_reads_or_refuses(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = READERS[name]
    path = tmp_path_factory.mktemp("fuzz") / reader.file
    path.write_bytes(data.draw(STRATEGIES[name]))
    reader.try_reading(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_reader_reads_or_refuses_many(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader = READERS[name]
    path = tmp_path_factory.mktemp("fuzz") / reader.file
    path.write_bytes(data.draw(STRATEGIES[name]))
    reader.try_reading(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_no_mutation_crashes_a_reader(name: str, fuzz_seconds: float) -> None:
    found = in_process(name, seconds=fuzz_seconds, seed=int(fuzz_seconds))
    assert found["crashes"] == []
    assert found["mutations"] > 0
    assert found["MiB"] * 2**20 < MOST_MEMORY


@pytest.mark.parametrize("count", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_bad_inputs_are_one_clean_line_and_change_no_file(count: int) -> None:
    tried, sound, wrong = try_inputs(count)
    assert wrong == []
    assert tried == sound
    assert tried >= 0.9 * count
