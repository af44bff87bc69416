"""`gradleak capture`: simulate a client and write the update that it would send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli.options.groups import Without, with_groups
from gradleak.cli.options.parse import check_outputs
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.options.shared import OUTPUT, JsonFile, PrivateSeed, Quiet
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural, sizes
from gradleak.errors import GradleakError
from gradleak.version import __version__

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the update.", rich_help_panel=OUTPUT)
]


@with_groups
def capture(
    *,
    output: Output,
    text: Annotated[TextChoice, Without("batch_size")],
    model: ModelChoice,
    client: ClientChoice,
    seed: PrivateSeed = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a client and write what it would send, as safetensors; all texts together are its batch.

    The file holds the update and names the model: no text, no lengths or labels, and nothing from which noise or
    dropout could be drawn again. These come from the system's entropy, or from --seed, which is written nowhere.
    """
    if bool(text.texts) == bool(text.dataset):
        raise GradleakError("give either TEXT or --dataset NAME|FILE for the client to train on")
    check_outputs([("--output", output), ("--json", json_file)], (text.dataset, model.model))
    sender, private = client.read(), text.read()
    target = model.load(0, num_labels=private.num_labels)
    _check_seed(seed, target.seed)
    private = private.of(target)
    update = next(sender.scenario(private, None, (), seed).batches(target)).update
    update.check(target)  # too high a learning rate gives NaN, which every attack refuses
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
        "seed": None,  # the client's seed is private
        "model_seed": target.seed,
        "version": __version__,
    }
    write_json(json_file, record)


def _check_seed(private: int | None, public: int) -> None:
    """Refuse a private seed that equals the model's seed, because the file contains that."""
    if private == public:
        raise GradleakError(
            f"--seed {private} is also the model's seed, which the file names: give another, or none for the system's "
            "entropy"
        )
