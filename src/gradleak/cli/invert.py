"""`gradleak invert`: train an inverter, the network that the attack LTI reads gradients with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradleak.cli import invert_options as i
from gradleak.cli import options as o
from gradleak.cli.drawing import Screen
from gradleak.cli.parsing import check_output, parse_whole_numbers
from gradleak.cli.progress import PLAIN_INTERVAL, clock
from gradleak.cli.records import write_json
from gradleak.cli.scenario import ClientChoice, ModelChoice
from gradleak.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.inversion import Recipe, Report, Stream
    from gradleak.inversion.training import Watcher
    from gradleak.targets import Target, Tokens

INTERRUPTED = 130
HELD_OUT_SHARE = 0.1

app = typer.Typer(name="invert", help="Train inverters for the attacks lti and lti-p.", no_args_is_help=True)


@app.command(
    epilog="Example: gradleak invert train --model lti-lm --task causal-lm --text wiki.txt --pseudo --defense sign "
    "-o inverters/sign"
)
def train(
    output: i.Folder,
    text: i.TextName,
    other: i.Other = None,
    beta: i.Beta = 0.5,
    size: i.Size = None,
    pseudo: i.Pseudo = False,
    held_out: i.HeldOut = None,
    model: o.Model = None,
    num_labels: o.NumLabels = None,
    task: o.Task = None,
    random_weights: o.RandomWeights = False,
    allow_pickle: o.AllowPickle = False,
    trust_remote_code: o.TrustRemoteCode = False,
    device: o.Device = "auto",
    dropout: o.Dropout = False,
    embeddings: o.EmbeddingsSent = None,
    defense: o.DefenseTexts = None,
    seed: o.Seed = 0,
    tokens: i.MostTokens = 16,
    shortest: i.Shortest = None,
    batch_size: i.BatchSize = 1,
    reduction: i.Reduction = "keep",
    share: i.Share = 0.02,
    output_layer: i.OutputLayer = "words",
    hidden: i.Hidden = "600,1000",
    direct: i.Direct = True,
    lr: i.LearningRate = "1e-3",
    decay: i.Decay = True,
    batch: i.Batch = 64,
    epochs: i.Epochs = 20,
    patience: i.Patience = 2,
    chunk: i.ChunkSize = None,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Train a network that maps the gradients of a model to text, under the defenses given (Learning to Invert).

    It makes the gradients itself, as it goes, from the attacker's own text. Stopped at any moment, the same command
    goes on where it was. Use it with: gradleak attack --attack lti --set inverter=DIR
    """
    _check_folder(output)
    check_output(json_file)
    client = ClientChoice.read(dropout, embeddings, None, defense)
    rate = _rate(lr)
    chosen = ModelChoice(model, num_labels, task, random_weights, allow_pickle, trust_remote_code, device)
    target = chosen.load(seed)
    from gradleak.inversion import Recipe, checkpoint_rate, choose_rate, train_inverter

    plan = Recipe(
        tokens=tokens,
        shortest=shortest or tokens,
        sequences=batch_size,
        embeddings=client.settings.embeddings,
        dropout=dropout,
        defenses=client.defenses,
        reduction=reduction,  # type: ignore[arg-type]  # Recipe refuses other names
        share=share,
        output=output_layer,  # type: ignore[arg-type]  # Recipe refuses other names
        hidden=parse_whole_numbers(hidden, "--hidden") or (),
        direct=direct,
        lr=1e-3 if rate is None else rate,
        decay=decay,
        batch=batch,
        epochs=epochs,
        patience=patience,
        chunk=chunk or (1_024 if target.device.type == "cuda" else 128),
        seed=seed,
    )
    screen = Screen(quiet)
    stream, unseen = _Text(text, other, beta, size, pseudo, held_out).streams(target, plan)
    if rate is None:
        plan = replace(plan, lr=checkpoint_rate(output) or choose_rate(target, plan, stream, unseen))
    _overview(screen, target, plan, stream, unseen, output)
    began = time.monotonic()
    try:
        with _watched(screen) as watch:
            inverter = train_inverter(target, plan, stream, unseen, output, watch)
    except KeyboardInterrupt:
        screen.line(f"interrupted: the same command goes on from the checkpoint in {output}", "yellow")
        raise typer.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - began
    card = inverter.card
    screen.result(
        f"{card.accuracy:.1f} % of held-out tokens after {card.samples:,} examples and {clock(seconds)}: {output}"
    )
    screen.line(f"use it: gradleak attack --attack {'lti-p' if pseudo else 'lti'} --set inverter={output}")
    write_json(
        json_file,
        {"schema": 1, "inverter": str(output), **asdict(card), "seconds": seconds, "version": __version__},
    )


@dataclass(frozen=True)
class _Text:
    """The options on the attacker's text."""

    text: str
    other: str | None
    beta: float
    size: int | None
    pseudo: bool
    held_out: str | None

    def streams(self, target: Target, recipe: Recipe) -> tuple[Stream, Stream]:
        """Return what is learnt from and what is tested on."""
        from gradleak.data import load_dataset
        from gradleak.inversion import AuxiliaryText, PseudoText, cut_texts, mixed
        from gradleak.priors import marginal_distribution

        def read(name: str) -> Tokens:
            return cut_texts(target, load_dataset(name).texts, recipe.shape)

        tokens = read(self.text)
        unseen = read(self.held_out) if self.held_out else None
        if self.pseudo:
            if self.other is not None:
                raise GradleakError("--pseudo learns from no text: --other is for auxiliary text")
            marginal = marginal_distribution(target, load_dataset(self.text).texts)
            stream: Stream = PseudoText(target, marginal, recipe.shape, seed=recipe.seed, size=self.size or 20_000)
            return stream, AuxiliaryText(unseen or tokens, seed=recipe.seed + 1)
        words = self.text
        if unseen is None:
            tokens, unseen = _split(tokens)
        if self.other is not None:
            outside = read(self.other)
            size = self.size or _largest(len(tokens.ids), len(outside.ids), self.beta)
            tokens = mixed(tokens, outside, self.beta, size, recipe.seed)
            words = f"{self.text} ({100 * self.beta:g} %) and {self.other}"
        elif self.size is not None:
            tokens = mixed(tokens, tokens, 1.0, self.size, recipe.seed)
        return AuxiliaryText(tokens, seed=recipe.seed, words=words), AuxiliaryText(unseen, seed=recipe.seed + 1)


def _split(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Keep the last tenth of the sentences for testing."""
    from gradleak.targets import Tokens

    count = len(tokens.ids)
    first = count - max(1, int(HELD_OUT_SHARE * count))
    if first < 1:
        raise GradleakError("there is one sentence of text: none is left to test on; give --held-out")
    return Tokens(tokens.ids[:first], tokens.mask[:first]), Tokens(tokens.ids[first:], tokens.mask[first:])


def _largest(inside: int, outside: int, beta: float) -> int:
    """Return the size of the largest mixture that the texts are enough for."""
    return int(min(inside / beta if beta else outside, outside / (1 - beta) if beta < 1 else inside))


def _rate(text: str) -> float | None:
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise GradleakError(f"--lr takes a number or auto, not '{text}'") from None


def _check_folder(path: Path) -> None:
    if path.is_file():
        raise GradleakError(f"{path} is a file; give a folder for the inverter")


def _overview(screen: Screen, target: Target, recipe: Recipe, stream: Stream, unseen: Stream, output: Path) -> None:
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
            ("learns from", stream.words),
            ("tested on", f"{unseen.size:,} sentences"),
            ("reads", f"{recipe.reduction}, {recipe.share:g} of what is sent at most"),
            ("network", f"hidden {', '.join(map(str, recipe.hidden))}, answers with {recipe.output}"),
            ("training", f"Adam, lr {recipe.lr:g}, batch {recipe.batch}, at most {recipe.epochs} epochs"),
            ("folder", str(output)),
        ]
    )


@contextmanager
def _watched(screen: Screen) -> Iterator[Watcher]:
    """Show progress: a bar on a terminal, a line now and then in a pipe, nothing if quiet."""
    if screen.quiet:
        yield lambda report: None
        return
    if not screen.rich:
        printed = [time.monotonic()]

        def print_line(report: Report) -> None:
            if time.monotonic() - printed[0] >= PLAIN_INTERVAL:
                printed[0] = time.monotonic()
                screen.line(_position(report))

        yield print_line
        return
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(BarColumn(), TextColumn("{task.description}"), console=screen.console, transient=True)
    number = bar.add_task("starting …", total=1)

    def draw(report: Report) -> None:
        bar.update(number, total=report.total, completed=report.samples, description=_position(report))

    with bar:
        yield draw


def _position(report: Report) -> str:
    found = "" if report.accuracy is None else f"  held-out {report.accuracy:.1f} %"
    return (
        f"{report.samples:,} of {report.total:,} examples  loss {report.loss:.3f}{found}  "
        f"{clock(report.seconds_left)} left"
    )
