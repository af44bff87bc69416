"""leakage_mod in real simulations: a client scores its own reply, and refuses to send one that gives text away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

from flower_run import PROTOCOL, TEXTS, client_app, records_of, saved_model, simulate
from gradleak.errors import GradleakError
from gradleak.flower import leakage_mod


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_model(tmp_path_factory.mktemp("model"))


def own_texts(message: Message, context: Context) -> list[str]:
    return list(TEXTS[int(context.node_config["partition-id"])])


def mod(model: str, folder: Path, **options: Any) -> Any:
    return leakage_mod(own_texts, target=model, protocol=PROTOCOL, directory=folder, budget="20s", **options)


def fedavg() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def test_a_client_scores_its_own_reply_and_sends_it(model: str, tmp_path: Path) -> None:
    result = simulate(fedavg, client_app(model, [mod(model, tmp_path)]), model, rounds=1)
    assert len(result.arrays), "replies were sent"
    records = records_of(tmp_path)
    assert len(records) == 3
    for record in records:
        pairs = [(s["reference"], s["reconstruction"], s["scores"]) for s in record["sentences"] if s["reference"]]
        assert {reference for reference, _, _ in pairs} in [set(texts) for texts in TEXTS]
        assert all((reference == text) == (scores["exact"] == 100) for reference, text, scores in pairs)
    exact = [s["scores"]["exact"] for record in records for s in record["sentences"] if s["scores"]]
    assert 100 in exact


def test_a_reply_that_gives_text_away_is_replaced_by_an_error(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        result = simulate(fedavg, client_app(model, [mod(model, tmp_path, refuse_above="rougeL=20")]), model, rounds=1)
    assert not len(result.arrays), "no reply was sent"
    assert all(record["refused"] for record in records_of(tmp_path))
    assert any("refused by the client, its update gives text away: rougeL" in line for line in caplog.messages)


def test_noise_of_a_later_mod_is_seen_and_its_epsilon_recomputed(model: str, tmp_path: Path) -> None:
    nominal = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    mods = [mod(model, tmp_path, refuse_above="rougeL=99.9"), nominal]
    simulate(fedavg, client_app(model, mods), model, rounds=1)
    for record in records_of(tmp_path):
        assert record["warnings"][0].startswith("ε = 10 is nominal")
        assert record["epsilon"] > 1e6


def test_an_audit_that_fails_lets_the_reply_pass(model: str, tmp_path: Path) -> None:
    wrong = leakage_mod(["only this"], target="tiny", protocol=PROTOCOL, directory=tmp_path, refuse_above="exact=0")
    result = simulate(fedavg, client_app(model, [wrong]), model, rounds=1)
    assert len(result.arrays)
    assert {record["status"] for record in records_of(tmp_path)} == {"failed"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "texts": ({"texts": "one text"}, "texts takes the client's texts"),
    "score": ({"refuse_above": "rouge=20"}, "unknown score of refuse_above 'rouge'; did you mean 'rouge"),
    "number": ({"refuse_above": "rougeL=200"}, "takes SCORE=NUMBER from 0 to 100"),
    "protocol": ({"protocol": "stesp=1,lr=1"}, "did you mean 'steps'"),
    "every": ({"every": 0}, "every takes a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_refused_when_the_mod_is_made(case: str, model: str) -> None:
    changes, message = WRONG[case]
    options: dict[str, Any] = {"texts": own_texts, "target": model, "protocol": PROTOCOL, **changes}
    with pytest.raises(GradleakError, match=message):
        leakage_mod(**options)
