"""`gradleak capture`: write the update of a simulated client, or of weights before and after training elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.options.groups import Without, with_groups
from gradleak.cli.options.parse import check_outputs
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.options.shared import CLIENT, OUTPUT, JsonFile, PrivateSeed, Quiet
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.overview import adapter_record, protocol_words
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural, sizes
from gradleak.errors import GradleakError
from gradleak.files import STDOUT
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.cli.options.scenario import DefendedClient
    from gradleak.exchange import Update
    from gradleak.targets import Target

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the update.", rich_help_panel=OUTPUT)
]


Before = Annotated[
    Path | None,
    typer.Option(
        "--before",
        metavar="FILE",
        help="Weights before local training by other software, as safetensors: those of --model. With --after.",
        show_default=False,
        rich_help_panel=CLIENT,
    ),
]
After = Annotated[
    Path | None,
    typer.Option(
        "--after",
        metavar="FILE",
        help="Weights after it. --fedavg, --precision, --send and --clients say how the client trained and sent.",
        show_default=False,
        rich_help_panel=CLIENT,
    ),
]


@with_groups
def capture(
    *,
    output: Output,
    text: Annotated[TextChoice, Without("batch_size")],
    model: ModelChoice,
    client: ClientChoice,
    before: Before = None,
    after: After = None,
    seed: PrivateSeed = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a client and write what it would send, as safetensors; all texts together are its batch.

    The file holds the update and names the model: no text, no lengths or labels, and nothing from which noise or
    dropout could be drawn again. These come from the system's entropy, or from --seed, which is written nowhere.

    With --before and --after in place of text, the update is that of a client that was trained by other software.
    """
    sources = (text.dataset, model.model, model.adapter, before, after)
    if before is not None or after is not None:
        _check_checkpoints(text, client, before, after, seed)
    elif bool(text.texts) == bool(text.dataset):
        raise GradleakError("give either TEXT or --dataset NAME|FILE for the client to train on")
    check_outputs([("--output", output), ("--json", json_file)], sources)
    sender = client.read()
    if before is not None and after is not None:
        target = model.load(0)
        update = _of_checkpoints(before, after, target, sender)
        details = [("client", f"{protocol_words(update)}, from {before} to {after}")]
    else:
        private = text.read()
        target = model.load(0, num_labels=private.num_labels)
        _check_seed(seed, target.seed)
        private = private.of(target)
        update = next(sender.scenario(private, None, (), seed).batches(target)).update
        update.check(target)  # too high a learning rate gives NaN, which every attack refuses
        details = [
            ("client", f"{sender}, {plural(len(private.texts), 'sentence')}"),
            *([("labels", private.label_words)] if target.task == "classification" else []),
            ("defenses", ", ".join(map(str, sender.defenses)) or "none"),
        ]
    size = update.save(output)
    Screen(quiet, STDOUT if STDOUT in (output, json_file) else None).facts(
        [
            ("wrote", f"{output}, {size / 2**20:.1f} MiB"),
            ("holds", f"{sizes(update)} of {target.name}, no text"),
            *([("adapter", target.adapter.in_words)] if target.adapter else []),
            *details,
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
        **adapter_record(target),
        **_client_record(sender, before, after),
        "seed": None,  # the client's seed is private
        "model_seed": target.seed,
        "version": __version__,
    }
    write_json(json_file, record)


def _of_checkpoints(before: Path, after: Path, target: Target, sender: DefendedClient) -> Update:
    from gradleak.exchange import Protocol, Update

    settings = sender.settings
    if settings.fedavg is None:
        raise GradleakError("--before and --after need --fedavg steps=…,lr=…: how the weights came to differ")
    protocol = Protocol(settings.fedavg, settings.precision, settings.send, settings.clients)
    return Update.from_weights(before, after, protocol=protocol, target=target)


def _client_record(sender: DefendedClient, before: Path | None, after: Path | None) -> dict[str, Any]:
    if before is None:
        return {"client": sender.as_dict(), "defenses": [str(defense) for defense in sender.defenses]}
    stated = {name: value for name, value in sender.as_dict().items() if name not in ("dropout", "embeddings")}
    return {"client": stated, "defenses": None, "before": str(before), "after": str(after)}


def _check_checkpoints(
    text: TextChoice, client: ClientChoice, before: Path | None, after: Path | None, seed: int | None
) -> None:
    """Refuse one file without the other, and options of a simulation."""
    if before is None or after is None:
        raise GradleakError("--before and --after go together: give the weights before and after local training")
    simulated = {
        "TEXT": text.texts,
        "--dataset": text.dataset,
        "--take": text.take,
        "--labels": text.labels,
        "--text-column": text.text_column,
        "--label-column": text.label_column,
        "--dropout": client.dropout,
        "--embeddings": client.embeddings,
        "--defense": client.defense,
        "--seed": seed is not None,
    }
    pointless = next((option for option, value in simulated.items() if value), None)
    if pointless is not None:
        raise GradleakError(f"{pointless} is for a client simulated here; leave it out with --before and --after")


def _check_seed(private: int | None, public: int) -> None:
    """Refuse a private seed that equals the model's seed, because the file contains that."""
    if private == public:
        raise GradleakError(
            f"--seed {private} is also the model's seed, which the file names: give another, or none for the system's "
            "entropy"
        )
