"""Attacks in a process of their own: nothing waits longer than it may, and nothing that fails is raised."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.federation import Client, FedAvg
from gradleak.monitoring import AuditProcess, AuditSettings
from gradleak.targets import load_target

PROTOCOL = "steps=1,lr=0.1,batch=2"
TEXTS = ["the cat sat on a mat", "a big dog ran"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    target = small_target("bert", hidden_size=64)
    target.model.save_pretrained(folder)  # type: ignore[operator]
    target.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def weights(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    target = load_target(model)
    training = FedAvg(steps=1, lr=0.1, batch=2)
    change = Client(target, fedavg=training, embeddings="trained").update(TEXTS, [0, 1]).tensors
    before = {name: p.detach().clone() for name, p in target.parameters.items()}
    return before, {name: weight + change[name] for name, weight in before.items()}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_jobs_are_attacked_and_a_dead_process_is_replaced(
    model: str, weights: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    before, after = weights
    settings = AuditSettings.read(model, PROTOCOL, budget="5s")
    audit = AuditProcess(settings, tmp_path, "flower", logging.getLogger("test"))
    try:
        with pytest.raises(GradleakError, match=r"'classifier.bias' has shape \(3,\); .* expects \(2,\)"):
            audit.check({name: t.shape for name, t in before.items()} | {"classifier.bias": (3,)})
        audit = AuditProcess(settings, tmp_path, "flower", logging.getLogger("test"))
        audit.check({name: t.shape for name, t in before.items()})
        audit.submit(1, before, {"a": after, "b": before}, examples={"a": 2})
        audit.collect(0.0)
        assert len(audit.pending) + len(audit.results) == 2
        audit.collect(60.0)
        first, second = sorted(audit.results, key=lambda result: str(result["client"]))
        assert (first["status"], first["verified"], first["read"]) == ("done", True, 2)
        assert second["status"] == "failed"
        assert "nothing was trained" in str(second["error"])
        assert list(audit._process.spool.iterdir()) == [], "weights are not kept"
        audit._process.process.kill()
        audit._process.process.wait()
        audit.submit(2, before, {"a": after, "b": after})
        audit.collect(60.0)
        assert [(r["round"], r["status"]) for r in audit.results[2:]] == [(2, "failed"), (2, "done")]
        assert {r["client"] for r in lines(tmp_path)[1:]} == {"a", "b"}
    finally:
        spool, process = audit._process.spool, audit._process.process
        audit.close()
    assert process.poll() is not None
    assert not spool.exists()


@pytest.mark.slow
def test_a_process_whose_parent_is_gone_finishes_its_records(
    model: str, weights: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    before, after = weights
    settings = AuditSettings.read(model, PROTOCOL, budget="5s")
    audit = AuditProcess(settings, tmp_path, "flower", logging.getLogger("test"))
    audit.check({name: t.shape for name, t in before.items()})
    audit.submit(1, before, {"a": after})
    process = audit._process.process
    audit.close(wait=0.0)
    process.wait(60)
    assert [record.get("status") for record in lines(tmp_path)[1:]] == ["done"]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_said_when_the_app_starts(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    settings = AuditSettings.read(tmp_path / "broken", PROTOCOL)
    audit = AuditProcess(settings, tmp_path / "audit", "flower", logging.getLogger("test"))
    with pytest.raises(GradleakError, match="broken"):
        audit.check({"classifier.weight": (2, 64)})


@pytest.mark.parametrize(("room", "package"), [("flower", "flwr"), ("flare", "nvflare")])
def test_a_missing_framework_says_which_extra_to_install(room: str, package: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None\nimport gradleak.{room}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert f"gradleak[{room}]" in run.stderr or package in run.stderr
