"""`gradleak attack`: read private text back from an update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.cli.options import shared as o
from gradleak.cli.options.groups import with_groups
from gradleak.cli.options.parse import check_outputs, parse_duration, parse_know, parse_settings
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.output.screen import Screen
from gradleak.cli.plans import full_overview, plan_captured, plan_simulation
from gradleak.cli.running import carry_out
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.attacks import Attack


@dataclass(frozen=True)
class AttackChoice:
    """The options on the attack and its hyperparameters."""

    name: o.AttackName = None
    preset: o.Preset = None
    settings: o.Settings = None
    budget: o.Budget = None

    def build(self) -> Attack:
        """Return the attack with its hyperparameters."""
        from gradleak.attacks import DEFAULT_ATTACK, find_attack

        name = DEFAULT_ATTACK if self.name is None else self.name
        settings = parse_settings(self.settings)
        if self.seconds is not None and find_attack(name).has_setting("budget"):
            settings["budget"] = str(self.seconds)
        return find_attack(name).with_settings(self.preset, settings)

    @property
    def seconds(self) -> float | None:
        """The budget for each update."""
        return None if self.budget is None else parse_duration(self.budget, "--budget")


@with_groups
def attack(
    *,
    text: TextChoice,
    update: o.UpdateFile = None,
    chosen: AttackChoice,
    know: o.Know = None,
    lengths: o.Lengths = None,
    kind: o.UpdateKind = None,
    model: ModelChoice,
    client: ClientChoice,
    seed: o.Seed = 0,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Attack an update and show what can be read back.

    Give private text, and a client is simulated here whose update is attacked and whose text is known to score
    against; or give --update with a file that was captured elsewhere. A result that says "verified" is proven: every
    text returned was trained on, given that the update was computed honestly from the stated weights; "complete" adds
    that nothing else was (docs/verified.md).
    """
    _check_source(text, client, update, know, lengths, kind)
    read = (text.dataset, update, model.model, *parse_settings(chosen.settings).values())
    check_outputs([("--json", json_file)], read)
    built = chosen.build()
    budget = None if built.has_setting("budget") else chosen.seconds
    if update is not None:
        plan = plan_captured(update, model, text.labels, lengths, text.batch_size, kind, client.fedavg)
    else:
        facts = parse_know(know, built.assumes)
        sender, private = client.read(), text.read()
        target = model.load(seed, num_labels=private.num_labels)
        plan = plan_simulation(target, private, sender, text.batch_size or 1, facts, seed)
    built.check(plan.target, plan.first.update, plan.first.knowledge)
    screen = Screen(quiet)
    preset = chosen.preset or built.default_preset()
    screen.overview(full_overview(plan, built, preset, seed, budget))
    carry_out(plan, built, preset, seed, screen, json_file, budget)


def _check_source(
    text: TextChoice,
    client: ClientChoice,
    update: Path | None,
    know: str | None,
    lengths: str | None,
    kind: str | None,
) -> None:
    """Refuse none or several of text, dataset and update, and options that do not go with the one given."""
    given = [word for word, value in (("TEXT", text.texts), ("--dataset", text.dataset), ("--update", update)) if value]
    if not given:
        raise GradleakError("there is nothing to attack: give TEXT, --dataset NAME|FILE or --update FILE")
    if len(given) > 1:
        raise GradleakError(f"{' and '.join(given)} exclude each other: give one of them")
    if update is None and lengths is not None:
        raise GradleakError("--lengths is for --update; otherwise the texts say how long they are (see --know)")
    if update is None and kind is not None:
        raise GradleakError("--kind is for --update; a client that is simulated here sends a difference with --fedavg")
    simulated = {
        "--take": text.take,
        "--text-column": text.text_column,
        "--label-column": text.label_column,
        "--know": know,
        "--dropout": client.dropout,
        "--embeddings": client.embeddings,
        "--defense": client.defense,
    }
    pointless = next((option for option, value in simulated.items() if value), None)
    if update is not None and pointless is not None:
        raise GradleakError(
            f"{pointless} is for a client simulated here; with --update give --labels, --lengths or --batch-size"
        )
