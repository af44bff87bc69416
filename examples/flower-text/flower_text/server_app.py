"""The server: FedAvg, and around it the audit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_text.task import LORA_TEXT, build_model, protocol, save_decoder, weights_of
from gradleak.flower import LeakageAudit

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    config = context.run_config
    kind, batch, steps = str(config["kind"]), int(config["batch"]), int(config["steps"])
    strategy = FedAvg(fraction_evaluate=0.0)
    if config["audit"]:
        decoder = {"task": "causal-lm", "lora": LORA_TEXT}
        strategy = LeakageAudit(
            strategy,
            target="tiny" if kind == "classifier" else save_decoder(Path(tempfile.mkdtemp())),
            protocol=protocol(kind, batch, steps),
            directory=str(config["directory"]),
            clients=int(config["audit-clients"]),
            wait=str(config["wait"]),
            budget=str(config["budget"]),
            **(decoder if kind == "lora" else {"num_labels": 2}),
        )
    arrays = ArrayRecord(weights_of(build_model(kind), kind))
    strategy.start(grid, arrays, num_rounds=int(config["num-server-rounds"]))
