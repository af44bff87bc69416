"""`gradleak images`: attacks on image models, and the training of their inverters and generators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.bounds import LARGEST_WHOLE, MOST_STEPS
from gradleak.cli.codes import INTERRUPTED
from gradleak.cli.options.groups import with_groups
from gradleak.cli.options.images import (
    ImageModelChoice,
    Picture,
    PrivateImages,
    auxiliary_images,
    device_of,
    inverter_settings,
)
from gradleak.cli.options.parse import check_outputs, parse_duration, parse_settings
from gradleak.cli.options.shared import ATTACK, Budget, JsonFile, Preset, Quiet, Seed, Settings
from gradleak.cli.output.images import progress, show_result
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import Screen
from gradleak.errors import GradleakError, unknown_name

if TYPE_CHECKING:
    from gradleak.vision.runs import ImageRun

app = typer.Typer(name="images", help="Attack image models: Learning to Invert's other half.", no_args_is_help=True)
ImageAttackName = Annotated[
    str,
    typer.Option("--attack", metavar="ig|gi-gip|lti|layerwise", help="Which attack.", rich_help_panel=ATTACK),
]
ImageKnow = Annotated[
    str | None,
    typer.Option(
        "--know",
        metavar="labels,defense|none",
        help="What the attacker is told besides the batch size: labels, defense.",
        show_default="the defense; labels for batches of several images",
        rich_help_panel=ATTACK,
    ),
]


@app.command(epilog="Example: gradleak images attack --take 0:16 --attack ig --preset fast --picture found.png")
@with_groups
def attack(
    *,
    private: PrivateImages,
    model: ImageModelChoice,
    name: ImageAttackName = "ig",
    preset: Preset = None,
    settings: Settings = None,
    know: ImageKnow = None,
    budget: Budget = None,
    seed: Seed = 0,
    picture: Picture = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Simulate clients with private images, attack their updates side by side, and score what is found.

    Scores are MSE, PSNR and SSIM, and LPIPS where its weights are installed (docs/attacks/images.md).
    """
    check_outputs([("--json", json_file), ("--picture", picture)], (private.dataset,))
    if picture is not None:
        from gradleak.vision.picture import picture_format

        picture_format(picture)  # refused before anything runs
    seconds = None if budget is None else parse_duration(budget, "--budget")
    run = _plan(private, model, name, preset, parse_settings(settings), know, seed, seconds)
    screen = Screen(quiet, json_file)
    screen.overview(_overview(run, private.dataset))
    from gradleak.vision.lpips import MISSING, Lpips, find_lpips_weights
    from gradleak.vision.runs import run_record

    weights = find_lpips_weights()
    distance = None if weights is None else Lpips(weights, run.client.target.device)
    try:
        results = run.run(progress(screen, run.attack.name), distance)
    except KeyboardInterrupt:
        screen.line("interrupted: all images are read together, and none is finished", "yellow")
        write_json(json_file, run_record(run, [], private.dataset))
        raise typer.Exit(INTERRUPTED) from None
    show_result(screen, results, picture)
    if distance is None:
        screen.line(MISSING, "dim")
    write_json(json_file, run_record(run, results, private.dataset))


def _plan(
    private: PrivateImages,
    model: ImageModelChoice,
    name: str,
    preset: str | None,
    settings: dict[str, str],
    know: str | None,
    seed: int,
    budget: float | None,
) -> ImageRun:
    from gradleak.vision.attacks import find_image_attack
    from gradleak.vision.client import ImageClient
    from gradleak.vision.runs import ImageRun

    chosen = find_image_attack(name).with_settings(preset, settings)
    defenses = model.defenses()
    target = model.load()
    images, labels = private.read(target)
    return ImageRun(
        client=ImageClient(target, defenses=defenses, send=model.wire, seed=seed),
        attack=chosen,
        images=images,
        labels=labels,
        batch_size=private.batch_size,
        know=parse_image_know(know, private.batch_size),
        seed=seed,
        budget=budget,
    )


def parse_image_know(text: str | None, batch_size: int) -> tuple[str, ...]:
    """Parse `labels,defense` or `none`; the batch size is always known."""
    from gradleak.vision.runs import TOLD, knowledge_of

    names = [] if text is None or text.strip() == "none" else [part.strip() for part in text.split(",")]
    for name in names:
        if name not in TOLD:
            raise unknown_name("knowledge of an attack on images", name, TOLD)
    return knowledge_of(None if text is None else names, batch_size)


def _overview(run: ImageRun, dataset: str) -> list[tuple[str, str]]:
    target, known = run.client.target, [name for name in run.know if name != "batch-size"]
    values = sum(parameter.numel() for parameter in target.parameters.values())
    batch = "one image" if run.batch_size == 1 else f"{run.batch_size} images"
    return [
        ("model", f"{target.name}, {values:,} weights (seed {target.seed}), {target.device.type}"),
        ("private", f"{len(run.images)} images of {dataset}, {batch} a client"),
        ("defenses", ", ".join(map(str, run.client.defenses)) or "none"),
        ("attack", f"{run.attack.name}: {run.attack.paper}"),
        ("attacker knows", ", ".join(known) or "nothing besides model and update"),
    ]


Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the inverter.")]
Auxiliary = Annotated[
    str,
    typer.Option("--auxiliary", metavar="NAME|FOLDER|FILE.npz:SPLIT", help="The attacker's own images."),
]
Size = Annotated[
    int | None,
    typer.Option("--count", min=16, max=LARGEST_WHOLE, metavar="N", help="How many of them.", show_default="all"),
]
Limit = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time for each network, and for each round's gradient matching (90s, 5m)."),
]


@app.command(
    "train-inverter",
    epilog="Example: gradleak images train-inverter --auxiliary cifar10:train --defense sign -o inverters/sign",
)
@with_groups
def train_inverter(
    *,
    folder: Folder,
    auxiliary: Auxiliary = "cifar10:train",
    count: Size = None,
    model: ImageModelChoice,
    settings: Settings = None,
    limit: Limit = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Train LTI's networks on gradients of the attacker's own images, under the defenses given.

    --set takes the settings of docs/attacks/images.md, such as rounds=0 for the paper's network alone. Use it with:
    gradleak images attack --attack lti --set inverter=DIR
    """
    from gradleak.vision.inverter_storage import FILE, save_image_inverter

    check_outputs([("--json", json_file)], (auxiliary,))
    if folder.is_file():
        raise GradleakError(f"{folder} is a file; give a folder for the inverter")
    chosen = inverter_settings(parse_settings(settings), seed)
    seconds = None if limit is None else parse_duration(limit, "--limit")
    defenses, target = model.defenses(), model.load()
    own = auxiliary_images(auxiliary, count, target.size, target.num_labels).to(target.device)
    from gradleak.vision.inverter_training import InverterTraining

    screen, log = Screen(quiet, json_file), list[str]()

    def report(line: str) -> None:
        log.append(line)
        screen.line(line)

    training = InverterTraining(target, own, defenses, chosen, seconds, seconds, report)
    described = {"schema": 1, "inverter": str(folder), "auxiliary": auxiliary, "images": len(own)}
    try:
        inverter = training.run()
    except KeyboardInterrupt:
        screen.line("interrupted: no inverter is written", "yellow")
        write_json(json_file, described | {"log": log, "interrupted": True})
        raise typer.Exit(INTERRUPTED) from None
    save_image_inverter(inverter, folder)
    size = (folder / FILE).stat().st_size
    screen.result(f"{folder}: {len(own):,} auxiliary images, {size / 2**20:.1f} MiB")
    screen.line(f"use it: gradleak images attack --attack lti --set inverter={folder}")
    write_json(json_file, described | {"defenses": list(inverter.defenses), "bytes": size, "log": log})


@app.command(
    "train-generator",
    epilog="Example: gradleak images train-generator --auxiliary cifar10:train -o generator.safetensors",
)
def train_generator(
    file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File of the generator.")],
    auxiliary: Auxiliary = "cifar10:train",
    count: Size = None,
    steps: Annotated[
        int, typer.Option(min=1, max=MOST_STEPS, metavar="N", help="Steps of generator and critic each.")
    ] = 20_000,
    limit: Limit = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")] = "auto",
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train the small DCGAN that gi-gip searches."""
    from gradleak.vision.generator_storage import SIZE, save_generator
    from gradleak.vision.generator_training import train_generator as run_training

    check_outputs([("--output", file)], (auxiliary,))
    seconds = None if limit is None else parse_duration(limit, "--limit")
    place = device_of(device)
    own = auxiliary_images(auxiliary, count, SIZE, None).to(place)
    screen = Screen(quiet)
    generator = run_training(own, steps=steps, seed=seed, seconds=seconds, report=screen.line)
    save_generator(generator, file, f"DCGAN of {len(own):,} images of {auxiliary}")
    screen.result(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")
