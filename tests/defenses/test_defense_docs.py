"""What docs/defenses.md says about defenses is so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from gradleak.defenses import DEFENSES, DPSGD, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Update

PAGE = (Path(__file__).parents[2] / "docs" / "defenses.md").read_text(encoding="utf-8")


def test_table_names_every_defense_once() -> None:
    assert sorted(re.findall(r"^\| `([a-z-]+)", PAGE, re.MULTILINE)) == sorted(DEFENSES)


def test_example_of_a_new_defense_runs(tmp_path: Path) -> None:
    known = dict(DEFENSES)
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "rounding.py").write_text(code, encoding="utf-8")
    try:
        runpy.run_path(str(tmp_path / "rounding.py"))
        defense = parse_defense("round:0.25")
        sent = defense.apply(Update({"w": torch.tensor([0.3, -0.9, 0.1])}), torch.Generator())
        assert sent.tensors["w"].tolist() == [0.25, -1.0, 0.0]
        assert str(defense) == "round:0.25"
        with pytest.raises(GradleakError, match="defense round takes a step above 0, not '0'"):
            parse_defense("round:0")
    finally:
        DEFENSES.clear()
        DEFENSES.update(known)


def test_noise_multiplier_of_the_page_is_right() -> None:
    defense = parse_defense("dpsgd:1,0.03125")
    assert "`dpsgd:1,0.03125`" in PAGE
    assert isinstance(defense, DPSGD)
    assert defense.noise_multiplier(32) == 1.0
