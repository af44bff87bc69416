"""`gradleak invert`: train an inverter, the network with which the attacks lti and lti-p read gradients."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.codes import INTERRUPTED
from gradleak.cli.options.groups import Without, with_groups
from gradleak.cli.options.inversion import AuxiliaryChoice, Folder, InverterChoice
from gradleak.cli.options.parse import check_output, check_overwriting, try_writing
from gradleak.cli.options.scenario import ClientChoice, ModelChoice
from gradleak.cli.options.shared import JsonFile, Quiet, Seed
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.live import clock, progress_line
from gradleak.cli.output.screen import Screen
from gradleak.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.inversion import Recipe, Stream, TrainingReport
    from gradleak.targets import Target

app = typer.Typer(name="invert", help="Train inverters for the attacks lti and lti-p.", no_args_is_help=True)


@app.command(
    epilog="Example: gradleak invert train --model lti-lm --task causal-lm --text wiki.txt --pseudo --defense sign "
    "-o inverters/sign"
)
@with_groups
def train(
    *,
    folder: Folder,
    text: AuxiliaryChoice,
    model: Annotated[ModelChoice, Without("lora", "adapter")],
    client: Annotated[ClientChoice, Without("fedavg", "precision", "send", "clients")],
    seed: Seed = 0,
    inverter: InverterChoice,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Train a network that maps the gradients of a model to text, under the defenses given (Learning to Invert).

    The gradients are computed on the fly from the attacker's own text. Interrupted at any moment, the same command
    resumes the training. Use it with: gradleak attack --attack lti --set inverter=DIR
    """
    _check_folder(folder)
    check_output(json_file)
    written = [("--output", folder / name) for name in ("inverter.safetensors", "checkpoint.safetensors", "CARD.md")]
    check_overwriting([*written, ("--json", json_file)], (text.text, text.other, text.held_out, model.model))
    sender, rate = client.read(), inverter.rate
    target = model.load(seed)
    from gradleak.inversion import checkpoint_rate, choose_rate, train_inverter
    from gradleak.inversion.checkpoint import CHECKPOINT

    recipe = inverter.recipe(target, sender, seed)
    screen = Screen(quiet, json_file)
    stream, unseen = text.streams(target, recipe)
    if rate is None:
        screen.line("choosing the learning rate by short trials …")
        recipe = replace(recipe, lr=checkpoint_rate(folder) or choose_rate(target, recipe, stream, unseen))
    _overview(screen, target, recipe, stream, unseen, folder)
    began = time.monotonic()
    try:
        with progress_line(screen) as show:
            trained = train_inverter(
                target, recipe, stream, unseen, folder, lambda at: show(at.samples, at.total, _position(at))
            )
    except KeyboardInterrupt:
        kept = (folder / CHECKPOINT).is_file()
        next_time = f"goes on from the checkpoint in {folder}" if kept else "starts anew: there is no checkpoint yet"
        screen.line(f"interrupted: the same command {next_time}", "yellow")
        write_json(json_file, {"schema": 1, "inverter": str(folder), "interrupted": True, "version": __version__})
        raise typer.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - began
    card = trained.card
    screen.result(
        f"{card.accuracy:.1f} % of held-out tokens after {card.samples:,} examples and {clock(seconds)}: {folder}"
    )
    screen.line(f"use it: gradleak attack --attack {'lti-p' if text.pseudo else 'lti'} --set inverter={folder}")
    write_json(
        json_file,
        {"schema": 1, "inverter": str(folder), **asdict(card), "seconds": seconds, "version": __version__},
    )


def _check_folder(path: Path) -> None:
    if path.is_file():
        raise GradleakError(f"{path} is a file; give a folder for the inverter")
    try_writing(path, folder=path)


def _overview(screen: Screen, target: Target, recipe: Recipe, stream: Stream, unseen: Stream, folder: Path) -> None:
    lengths = f"{recipe.tokens}" if recipe.shortest == recipe.tokens else f"{recipe.shortest} to {recipe.tokens}"
    sent = recipe.sent(target)
    values = sum(target.parameters[name].numel() for name in sent)
    screen.overview(
        [
            ("model", f"{target.name} ({target.task}), {target.device.type}"),
            (
                "clients send",
                f"{len(sent)} tensors, {values:,} values; batches of {recipe.sequences} × {lengths} tokens",
            ),
            ("defenses", ", ".join(map(str, recipe.defenses)) or "none"),
            ("learns from", stream.description),
            ("tested on", f"{unseen.size:,} sentences"),
            ("reads", f"{recipe.reduction}, {recipe.share:g} of what is sent at most"),
            ("network", f"hidden {', '.join(map(str, recipe.hidden))}, answers with {recipe.output}"),
            ("training", f"Adam, lr {recipe.lr:g}, batch {recipe.batch}, at most {recipe.epochs} epochs"),
            ("folder", str(folder)),
        ]
    )


def _position(report: TrainingReport) -> str:
    found = "" if report.accuracy is None else f"  held-out {report.accuracy:.1f} %"
    return (
        f"{report.samples:,} of {report.total:,} examples  loss {report.loss:.3f}{found}  "
        f"{clock(report.seconds_left)} left"
    )
