"""A federation of three clients on a model of a few thousand parameters, run by Flower's own simulation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result, Strategy
from flwr.simulation import run_simulation

from conftest import small_target
from gradleak.targets import load_target

PROTOCOL = "steps=1,lr=0.1,batch=2"
TEXTS = (
    ("the cat sat on b", "a big dog ran"),
    ("c red d mat", "e f g h i"),
    ("j k l m", "n o p q r s"),
)
"""Of different words: six sentences of the same ten words have all pairs of word and place in their row space."""

LABELS = (0, 1)


class InOrder:
    """Makes a strategy sum replies in one order, whichever arrives first: float sums depend on it."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        ordered = sorted(replies, key=lambda reply: reply.content["metrics"]["partition"])  # type: ignore[index]
        return super().aggregate_train(server_round, ordered)  # type: ignore[misc]


class OrderedFedAvg(InOrder, FedAvg):
    pass


class OrderedFedAdam(InOrder, FedAdam):
    pass


def saved_model(folder: Path) -> str:
    """Write a small BERT as users have their models, and return its directory."""
    target = small_target("bert", hidden_size=64)
    target.model.save_pretrained(folder)  # type: ignore[operator]
    target.tokenizer.save_pretrained(folder)
    return str(folder)


def initial_arrays(model: str) -> ArrayRecord:
    return ArrayRecord(load_target(model).model.state_dict())


def client_app(model: str, mods: list[Any] | None = None, empty: tuple[int, ...] = ()) -> ClientApp:
    """Return an app that trains one step of SGD; partitions in `empty` reply without arrays."""
    app = ClientApp(mods=mods)

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        number = int(context.node_config["partition-id"])
        target = load_target(model)
        net, tokenizer = target.model.requires_grad_(True), target.tokenizer
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        tokens = tokenizer(list(TEXTS[number]), padding=True, return_tensors="pt")
        answer = net(tokens["input_ids"], attention_mask=tokens["attention_mask"], labels=torch.tensor(LABELS))
        answer.loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        metrics = {"num-examples": 2, "loss": float(answer.loss), "partition": number}
        records: dict[str, Any] = {"metrics": MetricRecord(metrics)}
        if number not in empty:
            records["arrays"] = ArrayRecord(net.state_dict())
        return Message(content=RecordDict(records), reply_to=message)

    return app


def simulate(build: Callable[[], Strategy], clients: ClientApp, model: str, rounds: int = 2) -> Result:
    """Run a federation, and return what the strategy returned; its error is raised here."""
    app, returned, raised = ServerApp(), [], []

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            returned.append(build().start(grid, initial_arrays(model), num_rounds=rounds))
        except Exception as error:
            raised.append(error)

    run_simulation(app, clients, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
    if raised:
        raise raised[0]
    return returned[0]


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of an audit's file without the header."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
