"""The page on integrations: its example runs, and it names every argument."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from conftest import small_target
from gradleak.metrics import SCORE_NAMES
from gradleak.monitoring import AuditSettings

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")


def test_the_example_for_any_loop_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    saved = small_target("bert", hidden_size=64)
    saved.model.save_pretrained(tmp_path)  # type: ignore[operator]
    saved.tokenizer.save_pretrained(tmp_path)
    model = small_target("bert", hidden_size=64).model.requires_grad_(True)

    def train(net: torch.nn.Module) -> None:
        ids = saved.encode(["the cat sat on a mat"]).ids
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        net(ids, labels=torch.tensor([1])).loss.backward()
        optimizer.step()

    exec(example.replace("./model", str(tmp_path)), {"model": model, "train": train})
    assert capsys.readouterr().out.strip() == "True ('the cat sat on a mat',)"


def test_every_setting_of_an_audit_is_on_the_page() -> None:
    words = set(re.findall(r"`([A-Za-z_0-9]+)`", PAGE))
    assert {field.name for field in fields(AuditSettings)} <= words
    assert set(SCORE_NAMES) <= words
