"""One client's update looked at: with and without the truth, alone and as a mean over clients."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.federation import Client, FedAvg
from gradleak.monitoring import AuditSettings, ClientAudit, Thresholds
from gradleak.monitoring.examination import check_shapes, examine_update, mean_scores, place_weights, summary_of
from gradleak.monitoring.records import header_of
from gradleak.reports.record import ROUNDS_FILE
from gradleak.reports.rounds import RoundsLog
from gradleak.targets import Target

PROTOCOL = "steps=1,lr=0.1,batch=2"
TRAINING = FedAvg(steps=1, lr=0.1, batch=2)
TEXTS, LABELS = ["the cat sat on a mat", "a big dog ran"], [0, 1]
OTHERS = ["the red dog sat", "a cat ran on the mat"]


def wide_bert() -> Target:
    return small_target("bert", hidden_size=64)


def settings(**options: Any) -> AuditSettings:
    return AuditSettings.read("tiny", PROTOCOL, **{"budget": "5s", **options})


def weights(target: Target, shift: float = 0.0) -> dict[str, Tensor]:
    return {name: p.detach().clone() + shift for name, p in target.parameters.items()}


def trained(target: Target, texts: list[str]) -> dict[str, Tensor]:
    change = Client(target, fedavg=TRAINING, embeddings="trained").update(texts, LABELS).tensors
    return {name: weight + change[name] for name, weight in weights(target).items()}


def test_a_server_reads_the_texts_and_has_no_scores() -> None:
    client = wide_bert()
    record = examine_update(wide_bert(), weights(client), trained(client, TEXTS), settings())
    assert record["verified"]
    assert sorted(sentence["reconstruction"] for sentence in record["sentences"]) == sorted(TEXTS)
    assert all(sentence["reference"] is None and sentence["scores"] is None for sentence in record["sentences"])
    assert mean_scores(record) == {}
    assert "the cat" not in json.dumps(summary_of({"round": 1, "client": "a", **record}))
    assert summary_of({"round": 1, "client": "a", **record})["words"] == 10


def test_a_client_scores_against_its_own_texts() -> None:
    client = wide_bert()
    record = examine_update(wide_bert(), weights(client), trained(client, TEXTS), settings(), texts=[*TEXTS, "the mat"])
    assert [sentence["reference"] for sentence in record["sentences"]] == [*TEXTS, "the mat"]
    assert [sentence["scores"]["exact"] for sentence in record["sentences"]] == [100, 100, 0]
    assert mean_scores(record)["exact"] == pytest.approx(200 / 3)


def test_weights_of_the_round_take_the_place_of_the_models() -> None:
    client, target = small_target("bert", hidden_size=64, seed=7), wide_bert()
    assert target.fingerprint != client.fingerprint
    record = examine_update(target, weights(client), trained(client, TEXTS), settings())
    assert target.fingerprint == client.fingerprint
    assert record["verified"]


def test_a_mean_over_clients_is_read_like_a_batch_of_all() -> None:
    client = wide_bert()
    first, second = trained(client, TEXTS), trained(client, OTHERS)
    mean = {name: (first[name].double() + second[name].double()).float() / 2 for name in first}
    record = examine_update(wide_bert(), weights(client), mean, settings(budget="20s"), clients=2)
    assert {s["reconstruction"] for s in record["sentences"]} & {*TEXTS, *OTHERS}
    assert any("a sum over 2 clients" in note for note in record["notes"])


def test_arrays_that_are_not_the_models_are_named_with_shapes() -> None:
    target = wide_bert()
    shapes = {name: list(p.shape) for name, p in target.parameters.items()}
    check_shapes(target, {f"module.{name}": shape for name, shape in shapes.items()})
    with pytest.raises(GradleakError, match=r"'classifier.weight' has shape \(9, 64\); small-bert expects \(2, 64\)"):
        check_shapes(target, shapes | {"classifier.weight": [9, 64]})
    with pytest.raises(GradleakError, match=r"'clasifier.weight' is not a parameter .* the nearest is 'classifier"):
        check_shapes(target, shapes | {"clasifier.weight": [2, 64]})
    with pytest.raises(GradleakError, match="arrays are empty"):
        check_shapes(target, {})
    with pytest.raises(GradleakError, match="is not a parameter"):
        place_weights(target, {"other": torch.ones(1)})


def test_stated_local_privacy_is_in_the_record() -> None:
    client, target = wide_bert(), wide_bert()
    stated = settings(local_dp="clipping_norm=1,sensitivity=1e-4,epsilon=10,delta=1e-5", budget="1s")
    record = examine_update(target, weights(client), trained(client, TEXTS), stated)
    assert record["warnings"][0].startswith("ε = 10 is nominal")
    honest = settings(local_dp="clipping_norm=1,sensitivity=1,epsilon=8,delta=1e-5", budget="1s")
    missing = examine_update(target, weights(client), trained(client, TEXTS), honest)
    assert missing["epsilon"] is None
    assert "did not arrive" in missing["warnings"][0]


@pytest.mark.parametrize(("limit", "refused"), [("exact=99", True), ("exact=100", False), (None, False)])
def test_a_client_refuses_an_update_above_its_limit(limit: str | None, refused: bool, tmp_path: Path) -> None:
    audit = ClientAudit(settings(), Thresholds.parse(limit), tmp_path, "flower", logging.getLogger("test"))
    audit.target = wide_bert()
    client = wide_bert()
    state = torch.random.get_rng_state()
    why = audit.refusal(3, "me", weights(client), trained(client, TEXTS), TEXTS)
    assert torch.equal(state, torch.random.get_rng_state()), "the training around it draws the same numbers"
    assert (why is not None) == refused
    header, record = [json.loads(line) for line in (tmp_path / ROUNDS_FILE).read_text(encoding="utf-8").splitlines()]
    assert (header["side"], record["round"], record["client"], record["refused"]) == ("client", 3, "me", refused)


def test_an_audit_that_fails_refuses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = ClientAudit(settings(), Thresholds.parse("exact=0"), tmp_path, "flower", logging.getLogger("test"))
    audit.target = wide_bert()
    before = weights(audit.target)
    with caplog.at_level("WARNING"):
        assert audit.refusal(1, "me", before, before, TEXTS) is None
    assert "nothing was trained" in caplog.text
    assert json.loads((tmp_path / ROUNDS_FILE).read_text(encoding="utf-8").splitlines()[1])["status"] == "failed"


def test_records_are_for_their_owner_and_of_one_audit(tmp_path: Path) -> None:
    target = wide_bert()
    log = RoundsLog.open(tmp_path / "audit", header_of(settings(), target, "flower", "server"))
    log.append({"round": 1, "client": "a", "status": "done"})
    assert os.stat(log.path).st_mode & 0o777 == 0o600
    assert RoundsLog.open(tmp_path / "audit", header_of(settings(), target, "flower", "server")) == log
    assert len(log.path.read_text(encoding="utf-8").splitlines()) == 2
    with pytest.raises(GradleakError, match="is of another audit"):
        RoundsLog.open(tmp_path / "audit", header_of(settings(), target, "flare", "server"))
