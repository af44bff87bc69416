"""LeakageAudit in real simulations: it changes nothing, finds the texts, and never ends the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)

from flower_run import (
    PROTOCOL,
    TEXTS,
    OrderedFedAdam,
    OrderedFedAvg,
    client_app,
    initial_arrays,
    records_of,
    saved_model,
    simulate,
)
from gradleak.errors import GradleakError
from gradleak.flower import LeakageAudit
from gradleak.flower.surroundings import MASKED, is_masked

PRIVATE = {text for pair in TEXTS for text in pair}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_model(tmp_path_factory.mktemp("model"))


def fedavg() -> FedAvg:
    return OrderedFedAvg(fraction_evaluate=0.0)


def audited(inner: Strategy, model: str, folder: Path, **options: Any) -> LeakageAudit:
    chosen = {"clients": 3, "wait": "120s", "budget": "20s", **options}
    return LeakageAudit(inner, target=model, protocol=PROTOCOL, directory=folder, **chosen)


def same(one: Result, other: Result) -> bool:
    return list(one.arrays) == list(other.arrays) and all(
        np.array_equal(one.arrays[name].numpy(), other.arrays[name].numpy()) for name in one.arrays
    )


@pytest.fixture(scope="module")
def plain(model: str) -> Result:
    return simulate(fedavg, client_app(model), model)


@pytest.fixture(scope="module")
def watched(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("audit")
    return simulate(lambda: audited(fedavg(), model, folder), client_app(model), model), folder


def test_weights_are_the_same_to_the_bit_with_and_without_the_audit(
    plain: Result, watched: tuple[Result, Path]
) -> None:
    assert same(plain, watched[0])
    for number, metrics in plain.train_metrics_clientapp.items():
        kept = {key: value for key, value in watched[0].train_metrics_clientapp[number].items() if "leak" not in key}
        assert kept == dict(metrics)


def test_another_strategy_gives_the_same_weights_too(model: str, tmp_path: Path) -> None:
    def adam() -> Strategy:
        return OrderedFedAdam(fraction_evaluate=0.0)

    first = simulate(adam, client_app(model), model)
    assert same(first, simulate(lambda: audited(adam(), model, tmp_path, clients=1), client_app(model), model))


def test_the_audit_names_what_clients_trained_on(watched: tuple[Result, Path]) -> None:
    result, folder = watched
    records = records_of(folder)
    assert [(record["round"], record["status"]) for record in records] == [(1, "done")] * 3 + [(2, "done")] * 3
    first = [record for record in records if record["round"] == 1 and record["verified"]]
    read = [sentence["reconstruction"] for record in first for sentence in record["sentences"]]
    assert read, "not one update was proven"
    assert set(read) <= PRIVATE
    metrics = result.train_metrics_clientapp[1]
    assert metrics["leak-audited"] == 3
    assert metrics["leak-pending"] == 0
    assert metrics["leak-verified"] == sum(record["verified"] for record in records if record["round"] == 1)
    assert (folder / "rounds.jsonl").stat().st_mode & 0o077 == 0
    header = json.loads((folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (header["gradleak"], header["framework"], header["side"]) == ("rounds", "flower", "server")


def test_rounds_are_sampled_and_do_not_wait(model: str, tmp_path: Path) -> None:
    def build() -> Strategy:
        return audited(fedavg(), model, tmp_path, every=2, clients=1, wait=0)

    result = simulate(build, client_app(model), model, rounds=3)
    assert sorted((record["round"], record["status"]) for record in records_of(tmp_path)) == [(1, "done"), (3, "done")]
    assert "leak-audited" not in result.train_metrics_clientapp[2]
    assert result.train_metrics_clientapp[1]["leak-audited"] == 1, "late results are added when training has ended"


def test_an_audit_that_dies_is_logged_and_never_ends_training(plain: Result, model: str, tmp_path: Path) -> None:
    class Dying(LeakageAudit):
        def _look(self, number: int, received: list[Message]) -> bool:
            found = super()._look(number, received)
            if number == 1 and self._audit is not None:
                self._audit._process.process.kill()
            return found

    def build() -> Strategy:
        options: dict[str, Any] = {"target": model, "protocol": PROTOCOL, "directory": tmp_path, "wait": "60s"}
        return Dying(fedavg(), **options, budget="6s")

    assert same(plain, simulate(build, client_app(model), model))
    states = {record["round"]: record["status"] for record in records_of(tmp_path)}
    assert states == {1: "failed", 2: "done"}


def test_a_server_that_has_the_sum_alone_is_audited_by_it(model: str, tmp_path: Path) -> None:
    simulate(lambda: audited(fedavg(), model, tmp_path, sees="sum"), client_app(model), model, rounds=1)
    (record,) = records_of(tmp_path)
    assert record["client"] == "sum of 3"
    assert record["status"] == "done"
    assert MASKED in record["notes"]
    assert record["verified"]
    read = {sentence["reconstruction"] for sentence in record["sentences"]}
    assert read == PRIVATE, "a sum over three clients of two texts is read like one batch of six"


def test_differential_privacy_of_the_server_is_noted_whether_inside_or_outside(model: str, tmp_path: Path) -> None:
    def private(inner: Strategy) -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.5, 1e-3, 3)

    simulate(lambda: audited(private(fedavg()), model, tmp_path / "inside"), client_app(model), model, rounds=1)
    simulate(lambda: private(audited(fedavg(), model, tmp_path / "outside")), client_app(model), model, rounds=1)
    inside, outside = records_of(tmp_path / "inside"), records_of(tmp_path / "outside")
    for record in (*inside, *outside):
        assert "it protects the released model, not a client from the server" in record["notes"][0]
    assert "clipped the replies before the audit saw them" in outside[0]["notes"][0]
    assert "clipped" not in inside[0]["notes"][0]
    assert all(record["norm"] > 1e-2 for record in inside), "the audit outside sees what arrived"
    assert all(record["norm"] == pytest.approx(1e-3, rel=1e-2) for record in outside)


NOMINAL = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
NOISY = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)


def test_local_differential_privacy_is_measured_on_the_server(model: str, tmp_path: Path) -> None:
    def build(folder: Path) -> Callable[[], Strategy]:
        return lambda: audited(fedavg(), model, folder, local_dp=NOISY, clients=1)

    simulate(build(tmp_path / "with"), client_app(model, [NOISY]), model, rounds=1)
    simulate(build(tmp_path / "without"), client_app(model), model, rounds=1)
    (arrived,), (missing,) = records_of(tmp_path / "with"), records_of(tmp_path / "without")
    assert arrived["warnings"] == []
    assert arrived["epsilon"] == pytest.approx(7.0, rel=0.2)
    assert not arrived["verified"]
    assert missing["warnings"][0].startswith("the noise did not arrive: at most")
    assert missing["epsilon"] is None


def test_replies_without_arrays_are_logged_or_refused_in_the_first_round(model: str, tmp_path: Path) -> None:
    class Tolerant(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
            full = [reply for reply in replies if reply.content.array_records]
            return super().aggregate_train(server_round, full)

    def build() -> Strategy:
        return audited(Tolerant(fraction_evaluate=0.0), model, tmp_path)

    simulate(build, client_app(model, empty=(0,)), model, rounds=1)
    states = [(record["status"], record["error"]) for record in records_of(tmp_path)]
    assert sorted(status for status, _ in states) == ["done", "done", "failed"]
    assert any("has no arrays" in str(error) for _, error in states)
    with pytest.raises(GradleakError, match=r"the audit can read no reply: the reply of client .* has no arrays"):
        simulate(build, client_app(model, empty=(0, 1, 2)), model, rounds=1)


def test_masked_replies_are_recognised() -> None:
    plain = Message(RecordDict({"arrays": ArrayRecord([np.ones(2)])}), dst_node_id=1, message_type="train")
    masked = Message(
        RecordDict({"secaggplus_configs": ConfigRecord({"stage": "setup"})}), dst_node_id=1, message_type="train"
    )
    assert not is_masked(plain)
    assert is_masked(masked)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no strategy": ({"strategy": "FedAvg"}, "wraps a strategy of flwr.serverapp.strategy; str is none"),
    "class": ({"strategy": FedAvg}, r"give FedAvg\(…\), not the class"),
    "protocol key": ({"protocol": "optimiser=adamw,lr=1,steps=1"}, "'optimiser'; did you mean 'optimizer'"),
    "no steps": ({"protocol": "send=fp16"}, "the protocol lacks steps=…,lr=…"),
    "target": ({"target": "tinny"}, "unknown model 'tinny'; did you mean 'tiny'"),
    "folder": ({"target": "./nowhere"}, "no such directory: ./nowhere"),
    "attack": ({"attack": "seive"}, "unknown attack 'seive'; did you mean 'sieve'"),
    "option": ({"budgte": "20s"}, "unknown option of the audit 'budgte'; did you mean 'budget'"),
    "budget": ({"budget": "long"}, "budget takes a time as 90s, 5m or 1h, not 'long'"),
    "wait": ({"wait": -1}, "wait takes seconds"),
    "every": ({"every": 0}, "every takes a whole number from 1 up, not 0"),
    "sees": ({"sees": "all"}, "sees takes auto, replies or sum"),
    "local_dp": ({"local_dp": "epsilon=8,norm=1"}, "unknown setting of local_dp 'norm'"),
    "lora": ({"lora": "rank=8"}, "lora"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_refused_when_the_strategy_is_made(case: str, model: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    options = {"target": model, "protocol": PROTOCOL, "directory": tmp_path / "audit", **changes}
    strategy = options.pop("strategy", fedavg())
    with pytest.raises(GradleakError, match=message) as caught:
        LeakageAudit(strategy, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "audit").exists()


def test_arrays_of_another_model_are_refused_when_the_app_starts(model: str, tmp_path: Path) -> None:
    arrays = initial_arrays(model)
    arrays["classifier.weight"] = ArrayRecord([np.ones((5, 64), dtype=np.float32)])["0"]
    expected = r"'classifier.weight' has shape \(5, 64\); .* expects \(2, 64\)"
    with pytest.raises(GradleakError, match=expected):
        audited(fedavg(), model, tmp_path).start(None, arrays)
    arrays = initial_arrays(model)
    arrays["classifer.weight"] = arrays.pop("classifier.weight")
    with pytest.raises(
        GradleakError, match=r"'classifer.weight' is not a parameter of .*; the nearest is 'classifier.weight'"
    ):
        audited(fedavg(), model, tmp_path).start(None, arrays)
