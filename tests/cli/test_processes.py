"""What only a process of its own can show: signals at any moment, odd standard streams, errors that nobody foresaw."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradleak.cli import interrupts

SECRET = "my secret text"


def gradleak(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradleak", *arguments]
    return subprocess.run(command, check=False, text=True, timeout=120, **{"capture_output": True} | options)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that is imported before any command runs: it can stand for an error anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADLEAK_PLUGINS", "odd_plugin")
    return tmp_path / "odd_plugin.py"


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_during_the_start_is_one_line(plugin: Path, number: signal.Signals, word: str) -> None:
    plugin.write_text(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n")
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stdout) == (128 + number, "")
    assert answer.stderr.strip() == f"gradleak: {word}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_import_of_the_application_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    (tmp_path / "typer.py").write_text(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    answer = gradleak("--help")
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (128 + number, "", 1)


def test_little_is_imported_before_interrupts_are_handled() -> None:
    script = "import sys; old = {*sys.modules}; import gradleak.cli; print(*{*sys.modules} - old)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "gradleak.cli.interrupts" in loaded
    assert {"typing", "difflib", "importlib.resources", "gradleak.cli.startup", "typer"} & {*loaded} == set()


IN_A_COMMAND = "import gradleak.cli.app as app\n{body}\napp.listing.LISTS['models'] = command\n"
DROPPED = """
import os, time
class Finalised:
    def __del__(self) -> None:
        os.kill(os.getpid(), {number})
        time.sleep(0.01)
def command(*_: object) -> None:
    Finalised()
    for _ in range(100):
        time.sleep(0.1)
    os._exit(7)
"""
SWALLOWED = """
import os, time
def command(*_: object) -> None:
    try:
        os.kill(os.getpid(), {number})
        time.sleep(60)
    except BaseException:
        pass
    for _ in range(100):
        time.sleep(0.1)
    os._exit(7)
"""
TURNED = """
import os, time
def command(*_: object) -> None:
    try:
        os.kill(os.getpid(), {number})
        time.sleep(60)
    except BaseException:
        raise ModuleNotFoundError("a library that imports others") from None
"""


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize("body", [DROPPED, SWALLOWED, TURNED], ids=["dropped", "swallowed", "turned"])
def test_a_signal_that_code_of_others_does_not_let_through_ends_the_command(
    plugin: Path, body: str, number: signal.Signals, word: str
) -> None:
    plugin.write_text(IN_A_COMMAND.format(body=body.format(number=int(number))))
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stdout, answer.stderr) == (128 + number, "", f"gradleak: {word}\n")


def test_results_that_cannot_be_written_after_an_interrupt_are_named(plugin: Path) -> None:
    body = (
        "import os, signal, time\nfrom gradleak.errors import GradleakError\n"
        "def command(*_: object) -> None:\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        raise GradleakError('o.json cannot be written')\n"
    )
    plugin.write_text(IN_A_COMMAND.format(body=body))
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGTERM, "gradleak: o.json cannot be written\n")


def test_a_second_sigterm_waits_until_partial_results_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with interrupts.terminable():
        with pytest.raises(interrupts.Interruption):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
        with pytest.raises(interrupts.Interruption):
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.terminable():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interrupts.interrupted()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_command_does_not_change_its_exit_code(plugin: Path, number: signal.Signals) -> None:
    plugin.write_text(f"import atexit, os\natexit.register(os.kill, os.getpid(), {int(number)})\n")
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(("arguments", "code"), [(["list", "models"], 0), (["list", "nothing"], 2)])
def test_a_standard_error_that_cannot_be_written_changes_nothing(arguments: list[str], code: int) -> None:
    with open("/dev/full", "w") as full:
        answer = gradleak(*arguments, capture_output=False, stdout=subprocess.PIPE, stderr=full)
    assert answer.returncode == code
    assert bool(answer.stdout) is (code == 0)


def test_an_unforeseen_error_is_one_line_without_the_text_and_debug_shows_the_traceback(plugin: Path) -> None:
    plugin.write_text(
        "import gradleak.cli.app as app\n"
        "def fail(*_: object) -> None:\n"
        f"    private = {SECRET!r}\n"
        "    raise ZeroDivisionError(private + '\\x1b[31m')\n"
        "app.listing.LISTS['models'] = fail\n"
    )
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("gradleak: unexpected ZeroDivisionError (odd_plugin.py:4): this is a defect")
    assert "--debug" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert SECRET not in answer.stderr
    for place in (0, 2):  # before the command, or after it
        arguments = ["list", "models", "-q"]
        arguments.insert(place, "--debug")
        shown = gradleak(*arguments)
        assert shown.returncode == 1
        assert "Traceback (most recent call last)" in shown.stderr
        assert "\x1b" not in shown.stderr
        assert "private =" not in shown.stderr, "no local variables"


def test_a_closed_standard_output_is_said() -> None:
    answer = gradleak("--version", preexec_fn=lambda: os.close(1), capture_output=False, stderr=subprocess.PIPE)
    assert (answer.returncode, answer.stderr) == (
        2,
        "gradleak: standard output is closed: send it to a file, or to /dev/null\n",
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_shows_the_help(encoding: str) -> None:
    answer = gradleak("--help", env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "capture" in answer.stdout


def test_a_reader_that_has_had_enough_ends_the_command_in_silence() -> None:
    script = f"{sys.executable} -m gradleak --help | true; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert answer.stderr == ""
    assert answer.returncode in (0, 1, 141)  # 0 if everything was written before the reader went, 1 from Rich


@pytest.mark.parametrize("name", [".x", "a b", "nowhere", ".", "x\x1b[31m"])
def test_a_plugin_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("GRADLEAK_PLUGINS", name)
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith("gradleak: GRADLEAK_PLUGINS names '")
    assert "\x1b" not in answer.stderr


def test_a_plugin_that_exits_is_one_line(plugin: Path) -> None:
    plugin.write_text("raise SystemExit('over and out')")
    answer = gradleak("list", "models", "-q")
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert "SystemExit: over and out" in answer.stderr
