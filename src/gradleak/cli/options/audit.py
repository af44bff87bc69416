"""The options of `gradleak audit` on data, time and the gate, and the request that they make."""

from __future__ import annotations

import shlex
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.options.parse import parse_device, parse_duration, parse_know, parse_settings
from gradleak.cli.options.scenario import ClientChoice, ModelChoice
from gradleak.cli.options.shared import (
    ATTACK,
    OUTPUT,
    TEXT,
    AttackName,
    BatchSize,
    Know,
    LabelColumn,
    Settings,
    Take,
    TextColumn,
)

if TYPE_CHECKING:
    from gradleak.assessment.request import AuditRequest

Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAME|FILE",
        help="The clients' texts: a .txt, .csv, .tsv or .jsonl file, or a dataset (gradleak list datasets).",
        rich_help_panel=TEXT,
        show_default=False,
    ),
]
LabelClasses = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="a=0,b=1,…",
        help="Classes of the data's labels; else by the names of the model's classes, or by their order.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
Truncate = Annotated[
    bool,
    typer.Option(
        "--truncate", help="Cut texts that are longer than the model takes, as training does.", rich_help_panel=TEXT
    ),
]
AuditBudget = Annotated[
    str,
    typer.Option("--budget", metavar="TIME", help="Time for the whole audit: 90s, 5m, 1h.", rich_help_panel=ATTACK),
]
AuditFolder = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder of the audit: new, or of an earlier run of the same audit, which is then continued.",
        rich_help_panel=OUTPUT,
    ),
]
FailAbove = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-above",
        metavar="SCORE=X",
        help="Exit with 1 if the own setup leaks more: rougeL=20 (the mean), worst-rougeL=80 (any sentence); repeat "
        "for several. Scores: rouge1, rouge2, rougeL, exact, token_accuracy.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Reveal = Annotated[
    bool,
    typer.Option(
        "--reveal", help="Write private text and what was read of it into the report.", rich_help_panel=OUTPUT
    ),
]


@dataclass(frozen=True)
class AuditChoice:
    """The options on the data, the attack and the time of an audit."""

    data: Data
    take: Take = None
    batch_size: BatchSize = None
    labels: LabelClasses = None
    text_column: TextColumn = None
    label_column: LabelColumn = None
    truncate: Truncate = False
    attack: AttackName = None
    settings: Settings = None
    know: Know = None
    budget: AuditBudget = "10m"

    def request(self, model: ModelChoice, client: ClientChoice, seed: int) -> AuditRequest:
        """Return what is to be audited."""
        from gradleak.assessment.request import AuditRequest
        from gradleak.attacks import DEFAULT_ATTACK, find_attack
        from gradleak.data import parse_mapping, parse_take
        from gradleak.studies.definition.specs import DataSpec

        if self.take is not None:
            parse_take(self.take)
        kind = find_attack(self.attack or DEFAULT_ATTACK)
        kind.with_settings(None, parse_settings(self.settings))
        labels = parse_mapping(self.labels) if self.labels else None
        chosen = client.read()
        return AuditRequest(
            target=model.spec(),
            data=DataSpec(self.data, self.take, self.text_column, self.label_column, labels),
            client=chosen.settings,
            defenses=tuple(map(str, chosen.defenses)),
            batch_size=self.batch_size or 1,
            facts=parse_know(self.know, kind.assumes),
            attack=kind.name,
            settings=parse_settings(self.settings),
            seed=seed,
            budget=parse_duration(self.budget, "--budget"),
            truncate=self.truncate,
            device=parse_device(model.device),
        )


def command_text(command: str, *groups: Any, **further: Any) -> str:  # noqa: ANN401
    """Return the command that repeats a run: every option whose value is not the default."""
    words = ["gradleak", command]
    for group in groups:
        for field in fields(group):
            value = getattr(group, field.name)
            if field.default is MISSING or value != field.default:
                words += _option_words("set" if field.name == "settings" else field.name, value)
    for name, value in further.items():
        words += _option_words(name, value)
    return shlex.join(words)


def _option_words(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, list | tuple):
        return [word for item in value for word in (option, str(item))]
    return [option, str(value)]
