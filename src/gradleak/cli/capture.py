"""`gradleak capture`: what a client would send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli import options as o
from gradleak.cli.drawing import Screen
from gradleak.cli.groups import Without, with_groups
from gradleak.cli.parsing import check_output
from gradleak.cli.records import write_json
from gradleak.cli.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.words import plural, sizes
from gradleak.errors import GradleakError
from gradleak.version import __version__

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the update.", rich_help_panel=o.OUTPUT)
]


@with_groups
def capture(
    *,
    output: Output,
    text: Annotated[TextChoice, Without("batch_size")],
    model: ModelChoice,
    client: ClientChoice,
    seed: o.Seed = 0,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Simulate a client and write what it would send, as safetensors; all texts together are its batch.

    The file holds the update and names the model, never text, lengths, labels or the client's seed.
    """
    if bool(text.texts) == bool(text.dataset):
        raise GradleakError("give either TEXT or --dataset NAME|FILE for the client to train on")
    check_output(output)
    check_output(json_file)
    sender, private = client.read(), text.read()
    target = model.load(seed, num_labels=private.num_labels)
    private = private.of(target)
    update = next(sender.scenario(private, None, (), seed).cases(target)).update
    update.check(target)  # too high a learning rate makes NaN, which no attack takes
    update.save(output)
    size = output.stat().st_size
    Screen(quiet).facts(
        [
            ("wrote", f"{output}, {size / 2**20:.1f} MiB"),
            ("holds", f"{sizes(update)} of {target.name}, no text"),
            ("client", f"{sender}, {plural(len(private.texts), 'sentence')}"),
            *([("labels", private.label_words)] if target.task == "classification" else []),
            ("defenses", ", ".join(map(str, sender.defenses)) or "none"),
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
        "client": sender.as_dict(),
        "defenses": [str(defense) for defense in sender.defenses],
        "seed": seed,
        "version": __version__,
    }
    write_json(json_file, record)
