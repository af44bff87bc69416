"""The options of `gradleak invert train` that no other command has, and what they ask for: text and a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.options import shared as o
from gradleak.cli.options.parse import parse_whole_numbers
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.cli.options.scenario import DefendedClient
    from gradleak.inversion import Recipe, Stream
    from gradleak.targets import Target, Tokens

AUXILIARY, INVERTER = "The attacker's text", "Inverter"
HELD_OUT_SHARE = 0.1

Folder = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder of the inverter; an unfinished one in it is taken up again.",
        rich_help_panel=o.OUTPUT,
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
            help="Sentences to learn from; with --pseudo, those that count as an epoch.",
            show_default="all; with --pseudo 20000",
            rich_help_panel=AUXILIARY,
        ),
    ] = None
    pseudo: Annotated[
        bool,
        typer.Option(
            "--pseudo",
            help="LTI-P: learn from tokens drawn by their frequency in the text, never from the text.",
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


@dataclass(frozen=True)
class InverterChoice:
    """The options on the network and its training."""

    tokens: Annotated[
        int, typer.Option("--tokens", min=1, metavar="N", help="The most tokens of a text.", rich_help_panel=INVERTER)
    ] = 16
    shortest: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The fewest; else text is joined and cut into pieces of --tokens, as the paper does.",
            show_default="--tokens",
            rich_help_panel=INVERTER,
        ),
    ] = None
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size", min=1, metavar="B", help="Texts in a client's batch, 1 to 4.", rich_help_panel=INVERTER
        ),
    ] = 1
    reduction: Annotated[
        str,
        typer.Option(
            metavar="keep|hash",
            help="What it reads: the most informative parameters' gradients, or all hashed as in the paper.",
            rich_help_panel=INVERTER,
        ),
    ] = "keep"
    share: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Numbers read for each number sent, at most.", rich_help_panel=INVERTER),
    ] = 0.02
    output_layer: Annotated[
        str,
        typer.Option(
            metavar="words|vocabulary",
            help="Answer with embeddings, compared with the model's words, or with a weight for every token as the "
            "paper.",
            rich_help_panel=INVERTER,
        ),
    ] = "words"
    hidden: Annotated[
        str, typer.Option(metavar="N,N", help="Sizes of the hidden layers.", rich_help_panel=INVERTER)
    ] = "600,1000"
    direct: Annotated[
        bool, typer.Option(help="Also a linear map from what is read to the answer.", rich_help_panel=INVERTER)
    ] = True
    lr: Annotated[
        str,
        typer.Option(
            "--lr",
            metavar="RATE|auto",
            help="Learning rate of Adam; auto tries the paper's three.",
            rich_help_panel=INVERTER,
        ),
    ] = "1e-3"
    decay: Annotated[
        bool, typer.Option(help="Let the learning rate fall to zero over all epochs.", rich_help_panel=INVERTER)
    ] = True
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Examples in a step.", rich_help_panel=INVERTER)
    ] = 64
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="The most epochs.", rich_help_panel=INVERTER)] = 20
    patience: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Stop when held-out accuracy has not risen for so many epochs; 0 for never.",
            rich_help_panel=INVERTER,
        ),
    ] = 2
    chunk: Annotated[
        int | None,
        typer.Option(
            "--chunk",
            min=1,
            metavar="N",
            help="Examples whose gradients are made at once.",
            show_default="1024 on a GPU, else 128",
            rich_help_panel=INVERTER,
        ),
    ] = None

    @property
    def rate(self) -> float | None:
        """The learning rate; None if it is to be found."""
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

        return Recipe(
            tokens=self.tokens,
            shortest=self.shortest or self.tokens,
            sequences=self.batch_size,
            embeddings=client.settings.embeddings,
            dropout=bool(client.settings.dropout),
            defenses=client.defenses,
            reduction=self.reduction,  # type: ignore[arg-type]  # Recipe refuses other names
            share=self.share,
            output=self.output_layer,  # type: ignore[arg-type]  # Recipe refuses other names
            hidden=parse_whole_numbers(self.hidden, "--hidden") or (),
            direct=self.direct,
            lr=Recipe.lr if self.rate is None else self.rate,
            decay=self.decay,
            batch=self.batch,
            epochs=self.epochs,
            patience=self.patience,
            chunk=self.chunk or (1_024 if target.device.type == "cuda" else 128),
            seed=seed,
        )


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
