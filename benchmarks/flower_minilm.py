"""What is read in each round of all-MiniLM-L6-v2, trained in Flower by AdamW clients (one step of four texts).

    make bench-flower                                      every number format, three rounds
    .venv-flower/bin/python benchmarks/flower_minilm.py --send fp32 --budget 150s

Flower's own simulation runs two clients; one of them attacks its own replies (`leakage_mod`), so that the scores are of
what the server receives. Texts are of the shipped CoLA sample, four others in each round. `bf16` rounds the change of
the weights, as compression of updates does; `bf16-weights` rounds the weights themselves, as sending a model in half
precision does. Flower's arrays are NumPy's, which has no bfloat16: both are float32 numbers with bfloat16's digits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

from gradleak.data import load_dataset
from gradleak.flower import leakage_mod
from gradleak.targets import load_target

MODEL, RATE, BATCH, CLIENTS = "minilm", 5e-5, 4, 2
LEAST_WORDS, MOST_WORDS = 6, 14
FORMATS = ("fp32", "bf16", "bf16-weights")


def texts_of(partition: int, number: int) -> tuple[list[str], list[int]]:
    """Return the texts and labels that a client trains on in a round."""
    data = load_dataset("cola")
    fitting = [i for i, text in enumerate(data.texts) if LEAST_WORDS <= len(text.split()) <= MOST_WORDS]
    first = ((number - 1) * CLIENTS + partition) * BATCH
    mine = fitting[first : first + BATCH]
    return [data.texts[i] for i in mine], [(data.labels or ())[i] for i in mine]


def sent(before: Tensor, after: Tensor, send: str) -> Tensor:
    """Return a weight as it arrives."""
    if send == "fp32" or not after.is_floating_point():
        return after
    if send == "bf16":
        return before + (after - before).bfloat16().float()
    return after.bfloat16().float()


def client_app(send: str, folder: Path, budget: str) -> ClientApp:
    """Return clients that train one step of AdamW; the first of them looks at its own replies."""
    stated = ",send=bf16" if send == "bf16" else ""
    own = leakage_mod(
        lambda message, context: texts_of(0, int(message.content["config"]["server-round"]))[0],
        target=MODEL,
        protocol=f"optimizer=adamw,lr={RATE},steps=1,batch={BATCH}{stated}",
        num_labels=2,
        directory=folder,
        budget=budget,
    )

    def first_only(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        return (own if context.node_config["partition-id"] == 0 else _pass)(message, context, call_next)

    def fit(message: Message, context: Context) -> Message:
        number = int(message.content["config"]["server-round"])
        texts, labels = texts_of(int(context.node_config["partition-id"]), number)
        target = load_target(MODEL, num_labels=2)
        received = message.content["arrays"].to_torch_state_dict()
        target.model.load_state_dict(received)
        trained = [p.requires_grad_() for n, p in target.model.named_parameters() if "embeddings" not in n]
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
        tokens = target.tokenizer(texts, padding=True, return_tensors="pt")
        inputs = {"attention_mask": tokens["attention_mask"], "labels": torch.tensor(labels)}
        target.model(tokens["input_ids"], **inputs).loss.backward()
        optimizer.step()
        arrays = {name: sent(received[name], t.detach(), send) for name, t in target.model.state_dict().items()}
        metrics = MetricRecord({"num-examples": len(texts)})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    app = ClientApp(mods=[first_only])
    app.train()(fit)
    return app


def _pass(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    return call_next(message, context)


def measure(send: str, rounds: int, budget: str) -> list[dict[str, Any]]:
    """Run one federation, and return the first client's records."""
    folder = Path(tempfile.mkdtemp(prefix="flower-minilm-"))

    def serve(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(load_target(MODEL, num_labels=2).model.state_dict())
        FedAvg(fraction_evaluate=0.0).start(grid, arrays, num_rounds=rounds)

    server = ServerApp()
    server.main()(serve)
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": CLIENTS}}
    run_simulation(server, client_app(send, folder, budget), num_supernodes=CLIENTS, backend_config=resources)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]


def row(send: str, record: dict[str, Any]) -> str:
    """Return a line of the table."""
    if record["status"] != "done":
        return f"| {send} | {record['round']} | failed: {record['error']} | | | | |"
    known = [sentence["scores"] for sentence in record["sentences"] if sentence["scores"]]
    means = [sum(scores[name] for scores in known) / len(known) for name in ("rouge1", "rougeL")]
    exact = sum(scores["exact"] == 100 for scores in known)
    cells = [send, record["round"], *(f"{mean:.0f}" for mean in means), f"{exact} of {len(known)}"]
    cells += ["yes" if record["verified"] else "no", f"{record['seconds']:.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--send", choices=FORMATS, action="append", help="number format; repeat for several")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", default="150s", help="time for the attack on one update")
    given = parser.parse_args(arguments)
    lines = [
        "| sent | round | ROUGE-1 | ROUGE-L | exact | proven | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for send in given.send or FORMATS:
        lines += [row(send, record) for record in measure(send, given.rounds, given.budget)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
