"""Plugins are found as entry points of installed distributions, and as modules that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradleak.defenses.base import DEFENSES
from gradleak.errors import GradleakError
from gradleak.plugins import load_plugins
from gradleak.studies.execution.worker import JobRunner

PLUGIN = """
from gradleak.defenses.base import register
from gradleak.defenses.noise import Noise


@register
class Murmur(Noise):
    name = "murmur"
"""
COMMAND = """
import sys
from gradleak.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a plugin, which Python does not look into."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "murmuring.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setenv("GRADLEAK_PLUGINS", "murmuring")
    yield tmp_path / "here"
    DEFENSES.pop("murmur", None)
    sys.modules.pop("murmuring", None)


def test_a_module_in_the_current_folder_is_found_after_all_others(here: Path) -> None:
    before = list(sys.path)
    load_plugins()
    load_plugins()
    assert "murmur" in DEFENSES
    assert sys.path == [*before, str(here)]


def test_a_file_in_the_current_folder_takes_no_modules_place(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "wave.py").write_text("raise SystemExit('the file was taken')", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    monkeypatch.setenv("GRADLEAK_PLUGINS", "wave")
    load_plugins()
    assert str(here) not in str(sys.modules["wave"].__file__)


@pytest.mark.parametrize("value", [None, "", " , "])
def test_nothing_is_looked_for_unless_plugins_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("GRADLEAK_PLUGINS")
    if value is not None:
        monkeypatch.setenv("GRADLEAK_PLUGINS", value)
    before = list(sys.path)
    load_plugins()
    assert sys.path == before


def test_a_worker_finds_the_plugins_of_its_driver(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray worker has another current folder."""
    monkeypatch.chdir(here.parent)
    with pytest.raises(GradleakError, match="GRADLEAK_PLUGINS names 'murmuring', which cannot be imported"):
        load_plugins()
    JobRunner("cpu", str(here)).run(None)  # type: ignore[arg-type]  # plugins come before the job
    assert "murmur" in DEFENSES


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path that holds an installed distribution with a plugin."""
    site = tmp_path / "site"
    facts = site / "murmurs-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: murmurs\nVersion: 1.0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text("[gradleak.plugins]\nmurmur = murmuring_package\n", encoding="utf-8")
    (site / "murmuring_package.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    monkeypatch.delenv("GRADLEAK_PLUGINS", raising=False)
    yield site
    DEFENSES.pop("murmur", None)
    sys.modules.pop("murmuring_package", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_distribution_declares_its_plugins_as_entry_points() -> None:
    before = list(sys.path)
    load_plugins()
    load_plugins()
    assert "murmur" in DEFENSES
    assert sys.path == before


@pytest.mark.usefixtures("installed", "here")
def test_both_kinds_of_plugins_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_PLUGINS", "murmuring")
    load_plugins()
    assert {"murmuring", "murmuring_package"} <= sys.modules.keys()


@pytest.mark.parametrize(
    ("source", "reason"),
    [("import no_such_module", "No module named 'no_such_module'"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_an_installed_plugin_that_fails_is_named_with_its_distribution(
    installed: Path, source: str, reason: str
) -> None:
    (installed / "murmuring_package.py").write_text(source, encoding="utf-8")
    with pytest.raises(GradleakError) as caught:
        load_plugins()
    assert str(caught.value) == (
        f"murmurs has the plugin 'murmuring_package', which cannot be imported: {reason}; "
        "repair or uninstall that distribution"
    )


def test_commands_and_workers_know_the_plugins_of_installed_distributions(installed: Path) -> None:
    command = [sys.executable, "-m", "gradleak", "list", "defenses", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}
    answer = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "murmur" in answer.stdout.split()
    JobRunner("cpu").run(None)  # type: ignore[arg-type]  # plugins come before the job
    assert "murmur" in DEFENSES


@pytest.mark.slow
def test_the_installed_command_finds_a_module_in_the_current_folder(here: Path) -> None:
    script = here.parent / "bin" / "gradleak"
    script.parent.mkdir()
    script.write_text(COMMAND, encoding="utf-8")
    command = [sys.executable, str(script), "list", "defenses", "--quiet"]
    answer = subprocess.run(command, cwd=here, env=dict(os.environ), check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "murmur" in answer.stdout.split()
