"""`gradleak attack`: read private text back from an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradleak.cli import options as o
from gradleak.cli.drawing import Screen
from gradleak.cli.parsing import check_output, parse_duration, parse_know, parse_settings
from gradleak.cli.plans import full_overview, plan_captured, plan_simulation
from gradleak.cli.running import carry_out
from gradleak.cli.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.errors import GradleakError


def attack(
    texts: o.Texts = None,
    dataset: o.DatasetName = None,
    take: o.Take = None,
    batch_size: o.BatchSize = None,
    labels: o.Labels = None,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    update: o.UpdateFile = None,
    name: o.AttackName = None,
    preset: o.Preset = "paper",
    settings: o.Settings = None,
    budget: o.Budget = None,
    know: o.Know = None,
    lengths: o.Lengths = None,
    model: o.Model = None,
    num_labels: o.NumLabels = None,
    task: o.Task = None,
    random_weights: o.RandomWeights = False,
    allow_pickle: o.AllowPickle = False,
    trust_remote_code: o.TrustRemoteCode = False,
    device: o.Device = "auto",
    dropout: o.Dropout = False,
    embeddings: o.EmbeddingsSent = None,
    fedavg: o.FedAvgText = None,
    defense: o.DefenseTexts = None,
    seed: o.Seed = 0,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Attack an update and show what can be read back.

    Give private text, and a client is simulated here whose update is attacked and whose text is known to score
    against; or give --update with a file that was captured elsewhere.
    """
    simulated = {
        "--take": take,
        "--text-column": text_column,
        "--label-column": label_column,
        "--know": know,
        "--dropout": dropout,
        "--embeddings": embeddings,
        "--fedavg": fedavg,
        "--defense": defense,
    }
    _check_source(texts, dataset, update, simulated, lengths)
    check_output(json_file)
    from gradleak.attacks import DEFAULT_ATTACK, find_attack

    chosen_settings = parse_settings(settings)
    if budget is not None:
        if (name or DEFAULT_ATTACK) != "auto":
            raise GradleakError(f"--budget is for --attack auto; {name} runs to its end")
        chosen_settings["budget"] = str(parse_duration(budget, "--budget"))
    built = find_attack(name or DEFAULT_ATTACK).with_settings(preset, chosen_settings)
    chosen = ModelChoice(model, num_labels, task, random_weights, allow_pickle, trust_remote_code, device)
    if update is not None:
        plan = plan_captured(update, chosen, labels, lengths, batch_size, seed)
    else:
        facts = parse_know(know, built.assumes)
        client = ClientChoice.read(dropout, embeddings, fedavg, defense)
        text = TextChoice(texts, dataset, take, text_column, label_column, labels).read()
        target = chosen.load(seed, num_labels=text.num_labels)
        plan = plan_simulation(target, text, client, batch_size or 1, facts, seed)
    built.check(plan.target, plan.first.update, plan.first.knowledge)
    screen = Screen(quiet)
    screen.overview(full_overview(plan, built, preset, seed))
    carry_out(plan, built, preset, seed, screen, json_file)


def _check_source(
    texts: Sequence[str] | None,
    dataset: str | None,
    update: Path | None,
    simulated: Mapping[str, object],
    lengths: str | None,
) -> None:
    """Refuse none or several of text, dataset and update, and options that do not go with the one given."""
    given = [word for word, value in (("TEXT", texts), ("--dataset", dataset), ("--update", update)) if value]
    if not given:
        raise GradleakError("there is nothing to attack: give TEXT, --dataset NAME|FILE or --update FILE")
    if len(given) > 1:
        raise GradleakError(f"{' and '.join(given)} exclude each other: give one of them")
    if update is None and lengths is not None:
        raise GradleakError("--lengths is for --update; otherwise the texts say how long they are (see --know)")
    pointless = next((option for option, value in simulated.items() if value), None)
    if update is not None and pointless is not None:
        raise GradleakError(
            f"{pointless} is for a client simulated here; with --update give --labels, --lengths or --batch-size"
        )
