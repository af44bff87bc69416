"""The page on clients names every setting, with its default."""

from __future__ import annotations

import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

from gradleak.federation import FedAvg, Precision, WireFormat
from gradleak.settings import settings_of
from gradleak.targets import Lora

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")


def written(default: Any, name: str) -> str:
    if default is MISSING or name in ("steps", "epochs"):
        return "–"
    if default is None or isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, int | float) else f"`{default}`"


def test_every_setting_of_local_training_is_on_the_page_with_its_default() -> None:
    table = PAGE.partition("| setting | default | |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, flags=re.MULTILINE))
    assert rows == {name: written(setting.default, name) for name, setting in settings_of(FedAvg).items()}


def test_every_setting_of_a_fresh_adapter_is_on_the_page_with_its_default() -> None:
    table = PAGE.partition("| setting of `--lora` | default | |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, flags=re.MULTILINE))
    assert rows == {name: written(setting.default, name) for name, setting in settings_of(Lora).items()}


def test_every_number_format_is_on_the_page() -> None:
    for name in {*get_args(Precision), *get_args(WireFormat)} - {"fp32"}:
        assert name in PAGE
