"""A command that takes long to start says so within a second, and never after it has printed something."""

from __future__ import annotations

import importlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradleak.cli import startup
from gradleak.cli.output.screen import Screen


def test_a_slow_start_is_announced(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "SILENCE", 0.01)
    startup.announce("loading …")
    time.sleep(0.3)
    startup.something_is_printed()
    assert capsys.readouterr().err == "loading …\n"


def test_nothing_is_announced_once_something_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    startup.announce("loading …")
    startup.something_is_printed()
    time.sleep(startup.SILENCE + 0.2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("connect", [pty.openpty, os.pipe], ids=["terminal", "pipe"])
def test_a_terminal_and_a_pipe_get_the_line_before_torch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Callable[[], tuple[int, int]]
) -> None:
    (tmp_path / "slow_plugin.py").write_text("import time\ntime.sleep(3)\nraise SystemExit('enough')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADLEAK_PLUGINS", "slow_plugin")
    reader, end = connect()
    command = [sys.executable, "-m", "gradleak", "list", "models"]
    process = subprocess.Popen(command, stderr=end, stdout=subprocess.DEVNULL)
    os.close(end)
    first = os.read(reader, 100).decode()
    process.wait(60)
    os.close(reader)
    assert first.startswith("gradleak: loading …")


def test_the_line_comes_before_torch_whose_import_stops_all_threads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "heavy_library.py").write_text("import sys\nprint('imported', file=sys.stderr)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(startup, "HEAVY", "heavy_library")
    monkeypatch.setattr(startup, "SILENCE", 60.0)
    finders = list(sys.meta_path)
    startup.announce("loading …")
    importlib.import_module("heavy_library")
    assert capsys.readouterr().err == "loading …\nimported\n"
    assert sys.meta_path == finders


def test_no_line_is_due_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    finders = list(sys.meta_path)
    startup.announce("loading …")
    startup.something_is_printed()
    assert sys.meta_path == finders
    assert capsys.readouterr().err == ""


def test_a_screen_that_has_printed_nothing_keeps_the_line_that_is_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "SILENCE", 0.05)
    startup.announce("loading …")
    screen = Screen()
    time.sleep(0.5)
    assert capsys.readouterr().err == "loading …\n"
    startup.announce("loading …")
    screen.line("here we are")
    time.sleep(0.5)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("here we are\n", "")
