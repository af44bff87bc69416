"""The options of `gradleak invert train` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli import options as o

AUXILIARY, INVERTER = "The attacker's text", "Inverter"

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
TextName = Annotated[
    str,
    typer.Option(
        "--text",
        metavar="NAME|FILE",
        help="Text like the clients': a dataset (gradleak list datasets) or a .txt, .csv, .tsv or .jsonl file.",
        rich_help_panel=AUXILIARY,
    ),
]
Other = Annotated[
    str | None,
    typer.Option(
        "--other", metavar="NAME|FILE", help="Other text, to mix with it (--beta).", rich_help_panel=AUXILIARY
    ),
]
Beta = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        min=0.0,
        max=1.0,
        help="With --other: the share of --text in the mixture.",
        rich_help_panel=AUXILIARY,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--size",
        min=1,
        metavar="N",
        help="Sentences to learn from; with --pseudo, those that count as an epoch.",
        show_default="all; with --pseudo 20000",
        rich_help_panel=AUXILIARY,
    ),
]
Pseudo = Annotated[
    bool,
    typer.Option(
        "--pseudo",
        help="LTI-P: learn from tokens drawn by their frequency in the text, never from the text.",
        rich_help_panel=AUXILIARY,
    ),
]
HeldOut = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        metavar="NAME|FILE",
        help="Text to test on.",
        show_default="a tenth of --text; with --pseudo all of it",
        rich_help_panel=AUXILIARY,
    ),
]
MostTokens = Annotated[
    int, typer.Option("--tokens", min=1, metavar="N", help="The most tokens of a text.", rich_help_panel=INVERTER)
]
Shortest = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="The fewest; else text is joined and cut into pieces of --tokens, as the paper does.",
        show_default="--tokens",
        rich_help_panel=INVERTER,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size", min=1, metavar="B", help="Texts in a client's batch, 1 to 4.", rich_help_panel=INVERTER
    ),
]
Reduction = Annotated[
    str,
    typer.Option(
        metavar="keep|hash",
        help="What it reads: the most informative parameters' gradients, or all hashed as in the paper.",
        rich_help_panel=INVERTER,
    ),
]
Share = Annotated[
    float, typer.Option(metavar="SHARE", help="Numbers read for each number sent, at most.", rich_help_panel=INVERTER)
]
OutputLayer = Annotated[
    str,
    typer.Option(
        metavar="words|vocabulary",
        help="Answer with embeddings, compared with the model's words, or with a weight for every token as the paper.",
        rich_help_panel=INVERTER,
    ),
]
Hidden = Annotated[str, typer.Option(metavar="N,N", help="Sizes of the hidden layers.", rich_help_panel=INVERTER)]
Direct = Annotated[
    bool, typer.Option(help="Also a linear map from what is read to the answer.", rich_help_panel=INVERTER)
]
LearningRate = Annotated[
    str,
    typer.Option(
        "--lr",
        metavar="RATE|auto",
        help="Learning rate of Adam; auto tries the paper's three.",
        rich_help_panel=INVERTER,
    ),
]
Decay = Annotated[
    bool, typer.Option(help="Let the learning rate fall to zero over all epochs.", rich_help_panel=INVERTER)
]
Batch = Annotated[
    int, typer.Option("--batch", min=1, metavar="N", help="Examples in a step.", rich_help_panel=INVERTER)
]
Epochs = Annotated[int, typer.Option(min=1, metavar="N", help="The most epochs.", rich_help_panel=INVERTER)]
Patience = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Stop when held-out accuracy has not risen for so many epochs; 0 for never.",
        rich_help_panel=INVERTER,
    ),
]
ChunkSize = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        min=1,
        metavar="N",
        help="Examples whose gradients are made at once.",
        show_default="1024 on a GPU, else 128",
        rich_help_panel=INVERTER,
    ),
]
