"""`gradleak capture`: what a client would send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli import options as o
from gradleak.cli.drawing import Screen
from gradleak.cli.parsing import check_output
from gradleak.cli.records import write_json
from gradleak.cli.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.words import plural, sizes
from gradleak.errors import GradleakError
from gradleak.version import __version__

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the update.", rich_help_panel=o.OUTPUT)
]


def capture(
    output: Output,
    texts: o.Texts = None,
    dataset: o.DatasetName = None,
    take: o.Take = None,
    labels: o.Labels = None,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    model: o.Model = None,
    num_labels: o.NumLabels = None,
    task: o.Task = None,
    random_weights: o.RandomWeights = False,
    allow_pickle: o.AllowPickle = False,
    trust_remote_code: o.TrustRemoteCode = False,
    device: o.Device = "auto",
    dropout: o.Dropout = False,
    embeddings: o.EmbeddingsSent = None,
    fedavg: o.FedAvgText = None,
    defense: o.DefenseTexts = None,
    seed: o.Seed = 0,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Simulate a client and write what it would send, as safetensors; all texts together are its batch.

    The file holds the update and names the model, never text, lengths, labels or the client's seed.
    """
    if bool(texts) == bool(dataset):
        raise GradleakError("give either TEXT or --dataset NAME|FILE for the client to train on")
    check_output(output)
    check_output(json_file)
    client = ClientChoice.read(dropout, embeddings, fedavg, defense)
    text = TextChoice(texts, dataset, take, text_column, label_column, labels).read()
    chosen = ModelChoice(model, num_labels, task, random_weights, allow_pickle, trust_remote_code, device)
    target = chosen.load(seed, num_labels=text.num_labels)
    update = next(client.scenario(text, None, (), seed).cases(target)).update
    update.save(output)
    size = output.stat().st_size
    Screen(quiet).facts(
        [
            ("wrote", f"{output}, {size / 2**20:.1f} MiB"),
            ("holds", f"{sizes(update)} of {target.name}, no text"),
            ("client", f"{client}, {plural(len(text.texts), 'sentence')}"),
            ("defenses", ", ".join(map(str, client.defenses)) or "none"),
            ("attack it", f"gradleak attack --update {output}"),
        ]
    )
    record = {
        "schema": 1,
        "update": str(output),
        "bytes": size,
        "tensors": len(update.tensors),
        "values": update.num_values,
        "model": target.name,
        "model_hash": target.fingerprint,
        "client": client.as_dict(),
        "defenses": [str(defense) for defense in client.defenses],
        "seed": seed,
        "version": __version__,
    }
    write_json(json_file, record)
