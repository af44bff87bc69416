"""Options that several commands or groups of options share, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.bounds import LARGEST_SEED, LARGEST_WHOLE, MOST_CLIENTS

TEXT, MODEL, CLIENT, ATTACK, OUTPUT = "Private text", "Model", "Client", "Attack", "Output"

# --- private text ----------------------------------------------------------------------------------------------------

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT",
        help="The private sentences; - reads them from standard input, one a line. What stands on the command line can "
        "be seen by other users of the machine, and stays in the shell's history.",
        show_default=False,
    ),
]
DatasetName = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="NAME|FILE",
        help="Take the sentences from a dataset (gradleak list datasets) or a .txt, .csv, .tsv or .jsonl file.",
        rich_help_panel=TEXT,
    ),
]
Take = Annotated[
    str | None,
    typer.Option(metavar="A:B", help="Which examples of the dataset.", show_default="all", rich_help_panel=TEXT),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST_WHOLE, metavar="B", help="Sentences per batch.", show_default="1", rich_help_panel=TEXT
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="0,1,…|a=0,b=1,…",
        help="Classes of the sentences, or of the dataset's labels; else by the names of the model's classes, "
        "by the order of the labels, or drawn from the seed where there are none.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the texts in a file.", rich_help_panel=TEXT)
]
LabelColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the labels in a file.", rich_help_panel=TEXT)
]

# --- model -----------------------------------------------------------------------------------------------------------

Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR|HUB_ID",
        help="The model under audit (gradleak list models).",
        show_default="tiny",
        rich_help_panel=MODEL,
    ),
]
NumLabels = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Classes of a new classifier; else as many as the dataset has labels.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
NewHead = Annotated[
    bool,
    typer.Option(
        "--new-head",
        help="Put a new classifier in place of the model's own; else a trained one stays as it is.",
        rich_help_panel=MODEL,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="classification|causal-lm",
        help="What is trained.",
        show_default="classification",
        rich_help_panel=MODEL,
    ),
]
ModelSeed = Annotated[
    int | None,
    typer.Option(
        "--model-seed",
        min=0,
        max=LARGEST_SEED,
        metavar="N",
        help="Seed of weights that the model lacks, such as a new head; public: an update's file names it.",
        show_default="0 for a captured update, or what its file says; in a simulation that of --seed",
        rich_help_panel=MODEL,
    ),
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Take the architecture with random weights.", rich_help_panel=MODEL)
]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Read pickled weights, too: they can run code.", rich_help_panel=MODEL),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with a hub model.", rich_help_panel=MODEL)
]
LoraText = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="r=8,alpha=16,…",
        help="Put a fresh LoRA adapter on the model; clients train and send that alone. Further settings: "
        "targets=q_proj+v_proj, dropout, rounds (steps on public text first, 1 by default; 0 for the first round, "
        "where B is zero), rslora "
        "(docs/clients.md).",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
AdapterFolder = Annotated[
    Path | None,
    typer.Option(
        "--adapter",
        metavar="DIR",
        help="The LoRA adapter that clients train and send: adapter_config.json and its weights, as PEFT saves them.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.", rich_help_panel=MODEL)]

# --- client ----------------------------------------------------------------------------------------------------------

Dropout = Annotated[
    bool, typer.Option("--dropout", help="The client trains with the model's dropout.", rich_help_panel=CLIENT)
]
EmbeddingsSent = Annotated[
    str | None,
    typer.Option(
        "--embeddings",
        metavar="frozen|words-frozen|trained",
        help="Which embedding gradients are sent: none; all but the words'; all.",
        show_default="frozen",
        rich_help_panel=CLIENT,
    ),
]
FedAvgText = Annotated[
    str | None,
    typer.Option(
        "--fedavg",
        metavar="steps=4,lr=5e-5",
        help="Train locally first and send the difference of the weights. Further settings: batch, epochs (in place of "
        "steps), optimizer=sgd|adam|adamw, momentum, weight_decay, beta1, beta2, eps, schedule=constant|linear, "
        "warmup, clip, accumulate, shuffle (docs/clients.md). With --update: how a captured difference was made.",
        show_default=False,
        rich_help_panel=CLIENT,
    ),
]
PrecisionName = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="fp32|bf16|fp16",
        help="Number format while training (autocast; fp16 with loss scaling).",
        rich_help_panel=CLIENT,
    ),
]
SendName = Annotated[
    str,
    typer.Option(
        "--send",
        metavar="fp32|fp16|bf16|int8|int8-tensor",
        help="Number format in which the update leaves the client; int8 with a scale for each block of 4,096 entries, "
        "int8-tensor with one for each tensor.",
        rich_help_panel=CLIENT,
    ),
]
Clients = Annotated[
    int,
    typer.Option(
        "--clients",
        min=1,
        max=MOST_CLIENTS,
        metavar="K",
        help="Clients whose updates are summed before the attacker sees them, each with a batch of its own.",
        rich_help_panel=CLIENT,
    ),
]
DefenseTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--defense",
        metavar="NAME:VALUE",
        help="Change what is sent (gradleak list defenses); repeat for several, in order.",
        show_default=False,
        rich_help_panel=CLIENT,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=LARGEST_SEED,
        metavar="N",
        help="Seed of everything random: labels, dropout, defenses, the attack, and new weights (see --model-seed).",
        rich_help_panel=CLIENT,
    ),
]
PrivateSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        max=LARGEST_SEED,
        metavar="N",
        help="Draw labels, dropout and noise from this seed, which is written nowhere. Whoever guesses it can take the "
        "noise off again: leave it out for an update that is sent.",
        show_default="the system's entropy",
        rich_help_panel=CLIENT,
    ),
]

# --- attack ----------------------------------------------------------------------------------------------------------

UpdateFile = Annotated[
    Path | None,
    typer.Option(
        "--update",
        metavar="FILE",
        help="Attack a captured update, whose truth nobody here knows, instead of simulating a client.",
        rich_help_panel=ATTACK,
    ),
]
AttackName = Annotated[
    str | None,
    typer.Option(
        "--attack",
        metavar="NAME",
        help="Which attack; gradleak list attacks marks the default.",
        rich_help_panel=ATTACK,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="best|paper|fast",
        help="Named hyperparameters: 'paper' does what the paper does, 'best' adds what gradleak knows better. "
        "Without it 'best' if the attack has one, else 'paper'; 'gradleak list attacks' names all.",
        show_default=False,
        rich_help_panel=ATTACK,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One hyperparameter; repeat for several. 'gradleak list attacks NAME' shows all of an attack, with "
        "defaults, allowed values and meaning.",
        show_default=False,
        rich_help_panel=ATTACK,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop after so long for each update (90s, 5m, 1h) with the best found so far.",
        show_default="60s for auto, else no limit",
        rich_help_panel=ATTACK,
    ),
]
Know = Annotated[
    str | None,
    typer.Option(
        metavar="labels,lengths|none",
        help="What the attacker is told: labels, lengths, longest, batch-size, dropout, defense.",
        show_default="what the attack's paper assumes",
        rich_help_panel=ATTACK,
    ),
]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="8,9",
        help="With --update: tokens of each sentence, special ones included, if known.",
        show_default=False,
        rich_help_panel=ATTACK,
    ),
]

UpdateKind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="gradient|difference",
        help="With --update: what a file of other software holds, if that is not seen right.",
        show_default=False,
        rich_help_panel=ATTACK,
    ),
]

# --- output ----------------------------------------------------------------------------------------------------------

JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the results as JSON.", show_default=False, rich_help_panel=OUTPUT
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the bare result only.", rich_help_panel=OUTPUT)]
