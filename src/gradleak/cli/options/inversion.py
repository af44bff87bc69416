"""The options that only `gradleak invert train` has, and what they choose: the text to train on, and a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import OptionInfo

from gradleak.cli.options.parse import parse_whole_numbers
from gradleak.cli.options.shared import OUTPUT
from gradleak.errors import GradleakError
from gradleak.inverters.settings import TrainingSettings
from gradleak.settings import settings_of

if TYPE_CHECKING:
    from gradleak.cli.options.scenario import DefendedClient
    from gradleak.inversion import Recipe, Stream
    from gradleak.targets import Target, Tokens

AUXILIARY, INVERTER = "The attacker's text", "Inverter"
HELD_OUT_SHARE = 0.1
PSEUDO_SIZE = 20_000
SETTINGS = settings_of(TrainingSettings)

Folder = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder of the inverter; an unfinished training in it is resumed.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True)
class AuxiliaryChoice:
    """The options on the attacker's text."""

    text: Annotated[
        str,
        typer.Option(
            "--text",
            metavar="NAME|FILE",
            help="Text like the clients': a dataset (gradleak list datasets) or a .txt, .csv, .tsv or .jsonl file.",
            rich_help_panel=AUXILIARY,
        ),
    ]
    other: Annotated[
        str | None,
        typer.Option(
            "--other", metavar="NAME|FILE", help="Other text, to mix with it (--beta).", rich_help_panel=AUXILIARY
        ),
    ] = None
    beta: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="With --other: the share of --text in the mixture.",
            rich_help_panel=AUXILIARY,
        ),
    ] = 0.5
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            min=1,
            metavar="N",
            help="Sentences to train on; with --pseudo, the number that counts as an epoch.",
            show_default="all; with --pseudo 20000",
            rich_help_panel=AUXILIARY,
        ),
    ] = None
    pseudo: Annotated[
        bool,
        typer.Option(
            "--pseudo",
            help="LTI-P: train on tokens drawn by their frequency in the text, never on the text.",
            rich_help_panel=AUXILIARY,
        ),
    ] = False
    held_out: Annotated[
        str | None,
        typer.Option(
            "--held-out",
            metavar="NAME|FILE",
            help="Text to test on.",
            show_default="a tenth of --text; with --pseudo all of it",
            rich_help_panel=AUXILIARY,
        ),
    ] = None

    def streams(self, target: Target, recipe: Recipe) -> tuple[Stream, Stream]:
        """Return the text to train on, and the text to test on."""
        from gradleak.data import load_dataset
        from gradleak.inversion import AuxiliaryText, PseudoText, cut_texts
        from gradleak.priors import marginal_distribution

        texts = load_dataset(self.text).texts
        tokens = cut_texts(target, texts, recipe.shape)
        unseen = cut_texts(target, load_dataset(self.held_out).texts, recipe.shape) if self.held_out else None
        if self.pseudo:
            if self.other is not None:
                raise GradleakError("--pseudo learns from no text: --other is for auxiliary text")
            marginal = marginal_distribution(target, texts)
            stream: Stream = PseudoText(target, marginal, recipe.shape, seed=recipe.seed, size=self.size or PSEUDO_SIZE)
            return stream, AuxiliaryText(unseen or tokens, seed=recipe.seed + 1)
        if unseen is None:
            tokens, unseen = _split(tokens)
        auxiliary = self._auxiliary(target, recipe, tokens)
        return auxiliary, AuxiliaryText(unseen, seed=recipe.seed + 1)

    def _auxiliary(self, target: Target, recipe: Recipe, tokens: Tokens) -> Stream:
        """Return the auxiliary text: sentences of --text, mixed with those of --other, as many as --size."""
        from gradleak.data import load_dataset
        from gradleak.inversion import AuxiliaryText, cut_texts, mixed

        description = self.text
        if self.other is not None:
            outside = cut_texts(target, load_dataset(self.other).texts, recipe.shape)
            size = self.size or _largest_mixture(len(tokens.ids), len(outside.ids), self.beta)
            tokens = mixed(tokens, outside, self.beta, size, recipe.seed)
            description = f"{self.text} ({100 * self.beta:g} %) and {self.other}"
        elif self.size is not None:
            tokens = mixed(tokens, tokens, 1.0, self.size, recipe.seed)
        return AuxiliaryText(tokens, seed=recipe.seed, description=description)


def _declared(
    name: str, metavar: str | None = None, *flags: str, more: str = "", shown: str | None = None
) -> OptionInfo:
    """Return the option of a setting, whose meaning and bounds are those of its declaration.

    Args:
        name: the setting of `TrainingSettings`.
        metavar: the placeholder of the value in the help; by default the choices, if it has any.
        flags: names of the option, where it is not called like the setting.
        more: what the help adds to the setting's meaning.
        shown: the default in words, where it depends on other options.
    """
    one = SETTINGS[name]
    paper = f" ({one.origin})" if one.origin else ""
    # A setting of several numbers is given as text: its bounds are checked by the recipe.
    bounds = (one.least, one.most) if one.kind in (int, float) else (None, None)
    least, most = (None if bound is None else one.kind(bound) for bound in bounds)
    option: OptionInfo = typer.Option(
        *flags,
        metavar=metavar or "|".join(one.choices) or None,
        min=least,
        max=most,
        help=f"{one.meaning[0].upper()}{one.meaning[1:]}{paper}.{more}",
        show_default=shown if shown is not None else True,
        rich_help_panel=INVERTER,
    )
    return option


@dataclass(frozen=True)
class InverterChoice:
    """The options on the network and its training: settings of `TrainingSettings`, by the same names."""

    tokens: Annotated[int, _declared("tokens", "N")] = SETTINGS["tokens"].default
    shortest: Annotated[int | None, _declared("shortest", "N", shown="--tokens")] = None
    sequences: Annotated[int, _declared("sequences", "B", "--batch-size")] = SETTINGS["sequences"].default
    reduction: Annotated[str, _declared("reduction")] = SETTINGS["reduction"].default
    # Smaller than the default of `Recipe`, which is the paper's.
    share: Annotated[float, _declared("share", "SHARE")] = 0.02
    output: Annotated[str, _declared("output", None, "--output-layer")] = SETTINGS["output"].default
    hidden: Annotated[str, _declared("hidden", "N,N")] = ",".join(map(str, SETTINGS["hidden"].default))
    direct: Annotated[bool, _declared("direct")] = SETTINGS["direct"].default
    lr: Annotated[str, _declared("lr", "RATE|auto", more=" auto tries these three.")] = "1e-3"
    decay: Annotated[bool, _declared("decay")] = SETTINGS["decay"].default
    batch: Annotated[int, _declared("batch", "N")] = SETTINGS["batch"].default
    epochs: Annotated[int, _declared("epochs", "N")] = SETTINGS["epochs"].default
    patience: Annotated[int, _declared("patience", "N")] = SETTINGS["patience"].default
    chunk: Annotated[int | None, _declared("chunk", "N", shown="1024 on a GPU, else 128")] = None

    @property
    def rate(self) -> float | None:
        """The learning rate; None if it is to be chosen by a trial."""
        if self.lr == "auto":
            return None
        try:
            rate = float(self.lr)
        except ValueError:
            rate = math.nan
        if not math.isfinite(rate):
            raise GradleakError(f"--lr takes a number or auto, not '{self.lr}'")
        return rate

    def recipe(self, target: Target, client: DefendedClient, seed: int) -> Recipe:
        """Return the training of an inverter for what a client sends of a target."""
        from gradleak.inversion import Recipe

        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen |= {
            "shortest": self.shortest or self.tokens,
            "hidden": parse_whole_numbers(self.hidden, "--hidden"),
            "lr": SETTINGS["lr"].default if self.rate is None else self.rate,
            "chunk": self.chunk or (1_024 if target.device.type == "cuda" else 128),
        }
        return Recipe(
            **chosen,
            embeddings=client.settings.embeddings,
            dropout=bool(client.settings.dropout),
            defenses=client.defenses,
            seed=seed,
        )


def _split(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Split off the last tenth of the sentences, to test on."""
    from gradleak.targets import Tokens

    count = len(tokens.ids)
    first = count - max(1, int(HELD_OUT_SHARE * count))
    if first < 1:
        raise GradleakError("there is one sentence of text: none is left to test on; give --held-out")
    return Tokens(tokens.ids[:first], tokens.mask[:first]), Tokens(tokens.ids[first:], tokens.mask[first:])


def _largest_mixture(inside: int, outside: int, beta: float) -> int:
    """Return the size of the largest mixture that the numbers of sentences allow."""
    return int(min(inside / beta if beta else outside, outside / (1 - beta) if beta < 1 else inside))
