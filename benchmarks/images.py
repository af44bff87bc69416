"""LTI's table 1: attacks on LeNet's gradients of CIFAR-10 images under four defenses, stage by stage.

Each stage leaves files in a folder and is skipped if they are there; `images_schedule.py` runs them side by side:

    python benchmarks/images.py --data cifar10.npz --out results --stage generator --seconds 150
    python benchmarks/images.py --data cifar10.npz --out results --stage train:sign --seconds 80
    python benchmarks/images.py --data cifar10.npz --out results --stage attack:gi-gip:sign --seconds 150
    python benchmarks/images.py --data cifar10.npz --out results --stage score

`cifar10.npz` holds `train`, `train_labels`, `test` and `test_labels` (uint8, images × 32 × 32 × 3); a folder of
`packed_images.py` will do. Attacks: `ig`, `gi-gip`, `lti` (needs `train`), `layerwise`. Variants have a tag:

    … --stage train:sign --tag size-500- --auxiliary 500
    … --stage train:sign --tag classes-0.01- --beta 0.01     # auxiliary images of other classes but for 1 %
    … --stage train:none --tag batch4- --images 4
    … --stage train:none --tag resnet20- --model resnet20 --rounds 0 --hidden 1000,1000

`score` adds LPIPS where its weights are, writes results.json and prints the table beside the published one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.defenses import defend_each, parse_defense
from gradleak.exchange import Deadline
from gradleak.randomness import hashed_stream
from gradleak.studies.report.published import find_published
from gradleak.vision.attacks import GiGip, Ig, Layerwise, Search
from gradleak.vision.auxiliary import AuxiliaryImages
from gradleak.vision.generator_storage import save_generator
from gradleak.vision.generator_training import train_generator
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.inverter_storage import load_image_inverter, save_image_inverter
from gradleak.vision.inverter_training import InverterTraining
from gradleak.vision.lpips import MISSING, Lpips, find_lpips_weights
from gradleak.vision.metrics import best_order, image_scores
from gradleak.vision.observation import Observation, observe
from gradleak.vision.sample_gradients import use_full_precision
from gradleak.vision.target import ImageTarget, load_image_target
from packed_images import read_packed

COLUMNS: dict[str, tuple[str, ...]] = {
    "none": (),
    "sign": ("sign",),
    "pruning": ("prune-global:0.99",),
    "noise": ("noise:0.1",),
}
PAPER_SECONDS = 1.5 * 3600  # of one training, on an RTX 2080
IG_STEPS, GIP_STEPS, GIP_WEIGHT_STEPS = 4_800, 500, 5_000
FIRST_HALF, SHIFTED = 5, 25_000  # classes that clients have, and auxiliary images, where their distribution differs


class Stage:
    """What all stages share: the folder, the data and the target."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.device = torch.device(options.device)
        self.began = time.monotonic()
        self.target: ImageTarget = load_image_target(options.model, device=self.device)
        path = Path(options.data)
        self._data = read_packed(path) if path.is_dir() else dict(np.load(path))

    def say(self, text: str) -> None:
        """Print a line with the stage and the time."""
        print(f"[{self.options.stage} {time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def auxiliary(self) -> AuxiliaryImages:
        """Return the attacker's images: the first training images, or those of other classes but for a share."""
        pixels, labels = (torch.from_numpy(self._data[name]) for name in ("train", "train_labels"))
        rows = torch.arange(min(len(pixels), self.options.auxiliary))
        if self.options.beta is not None:
            alike = round(SHIFTED * self.options.beta)
            own, others = (torch.nonzero(half)[:, 0] for half in (labels < FIRST_HALF, labels >= FIRST_HALF))
            rows = torch.cat([own[:alike], others[: SHIFTED - alike]])
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        chosen = pixels[rows].permute(0, 3, 1, 2).contiguous()
        return AuxiliaryImages(chosen, labels[rows].long()).to(self.device)

    def private(self, take: int) -> tuple[Tensor, Tensor]:
        """Return test images `[clients, images, 3, 32, 32]` and labels `[clients, images]`."""
        pixels, labels = (torch.from_numpy(self._data[name][:take]) for name in ("test", "test_labels"))
        kept = torch.nonzero(labels < FIRST_HALF)[:, 0] if self.options.beta is not None else torch.arange(len(labels))
        count = self.options.images
        self.rows = kept[: len(kept) // count * count]
        images = pixels[self.rows].permute(0, 3, 1, 2).float().div(255)
        classes = labels[self.rows].long().view(-1, count)
        return images.view(-1, count, *images.shape[1:]).to(self.device), classes.to(self.device)

    def originals(self, rows: list[int]) -> Tensor:
        """Return test images `[images, 3, 32, 32]` by their places."""
        return torch.from_numpy(self._data["test"][rows]).permute(0, 3, 1, 2).float().div(255)

    def observation(self, defense: str, take: int) -> tuple[Observation, Tensor]:
        """Return what the clients send, the same for every attack, and their images."""
        images, labels = self.private(take)
        with torch.no_grad():
            gradients = self.target.gradients(images, labels)
        chosen = [parse_defense(text) for text in COLUMNS[defense]]
        sent = defend_each(gradients, chosen, hashed_stream(f"private {defense}", self.device))
        seen = observe(self.target, sent, labels if self.options.images > 1 else None, COLUMNS[defense])
        self.say(f"labels read: {float((seen.labels == labels).float().mean()):.3f}")
        return seen, images

    def keep(self, name: str, found: Tensor, truth: Tensor, seconds: float) -> None:
        """Write what an attack found, as bytes, and its scores in full precision."""
        answers, true = found.detach().clamp(0, 1).cpu(), truth.cpu()
        pictures = torch.cat([best_order(*pair) for pair in zip(answers, true, strict=True)])
        originals = true.flatten(0, 1)
        scores = image_scores(pictures, originals)
        np.save(self.out / f"found-{name}.npy", (pictures * 255).round().byte().numpy())
        means = {key: float(np.mean(values)) for key, values in scores.items()}
        record = {"images": len(pictures), "seconds": seconds, **means, "each": scores, "rows": self.rows.tolist()}
        (self.out / f"scores-{name}.json").write_text(json.dumps(record))
        self.say(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in means.items()) + f", {seconds:.0f} s")


def train(stage: Stage, defense: str) -> None:
    """Train the inverter for one defense; its rounds are kept one by one."""
    options = stage.options
    folder = stage.out / f"inverter-{options.tag}{defense}"
    hidden = tuple(int(width) for width in options.hidden.split(",") if width)
    settings = ImageInverterSettings(
        hidden=hidden,
        images=options.images,
        rounds=options.rounds,
        epochs=options.epochs,
        copies=options.copies,
        steps=options.steps,
        width=options.width,
        batch=options.batch,
        refiner_batch=options.refiner_batch,
    )
    chosen = [parse_defense(text) for text in COLUMNS[defense]]
    limits = (options.seconds, options.matching_seconds)
    training = InverterTraining(stage.target, stage.auxiliary(), chosen, settings, *limits, stage.say)
    began = time.monotonic()
    inverter = training.start()
    first = time.monotonic() - began
    for number in range(settings.rounds):
        training.seconds = options.refiner_seconds
        inverter = training.add_round(inverter, number)
    seconds = time.monotonic() - began
    save_image_inverter(inverter, folder)
    note = {"inverter_seconds": first, "seconds": seconds, "ratio": PAPER_SECONDS / max(first, 1e-9)}
    (stage.out / f"training-{options.tag}{defense}.json").write_text(json.dumps(note))
    stage.say(
        f"trained in {seconds:.0f} s, the inverter alone in {first:.0f} s: {note['ratio']:.0f} × the paper's speed"
    )
    attack_lti(stage, defense)


def attack_lti(stage: Stage, defense: str) -> None:
    """Read the private gradients after each number of rounds."""
    tag = stage.options.tag
    inverter = load_image_inverter(stage.out / f"inverter-{tag}{defense}", stage.target)
    seen, truth = stage.observation(defense, stage.options.take)
    for rounds in range(len(inverter.rounds) + 1):
        began = time.monotonic()
        parts = [
            inverter.read(stage.target, seen.select(slice(start, start + 500)), rounds)
            for start in range(0, seen.count, 500)
        ]
        last = rounds == len(inverter.rounds)
        name = f"{tag}lti-{defense}" if last else f"{tag}lti{rounds}-{defense}"
        stage.keep(name, torch.cat(parts), truth, time.monotonic() - began)


def attack(stage: Stage, name: str, defense: str) -> None:
    """Run one attack on all private images side by side."""
    options = stage.options
    if name == "lti":
        attack_lti(stage, defense)
        return
    attacks = {
        "ig": Ig(steps=options.ig_steps, tv=options.tv),
        "gi-gip": GiGip(
            generator=str(stage.out / "generator.safetensors"),
            steps=options.gip_steps,
            weight_steps=options.gip_weight_steps,
            starts=options.gip_starts,
        ),
        "layerwise": Layerwise(),
    }
    seen, truth = stage.observation(defense, options.take)

    def report(step: int, total: int, loss: float) -> None:
        if step % max(1, total // 5) == 0:
            stage.say(f"step {step} of {total}, loss {loss:.5f}")

    search = Search(
        stage.target, seen, options.images, torch.Generator().manual_seed(0), Deadline(options.seconds), report
    )
    began = time.monotonic()
    found, _ = attacks[name].run(search)
    stage.keep(f"{name}-{defense}", found, truth, time.monotonic() - began)


def train_the_generator(stage: Stage) -> None:
    """Train the DCGAN."""
    own, options = stage.auxiliary(), stage.options
    generator = train_generator(
        own, steps=options.generator_steps, batch=options.generator_batch, seconds=options.seconds, report=stage.say
    )
    save_generator(generator, stage.out / "generator.safetensors", f"DCGAN of {len(own):,} training images of CIFAR-10")


def collected(folder: Path) -> dict[str, tuple[dict[str, Any], np.ndarray | None]]:
    """Return record and pictures of every run in a folder, from single files and from those of a schedule."""
    pictures = {path.stem.removeprefix("found-"): np.load(path) for path in folder.glob("found-*.npy")}
    for path in folder.glob("pictures*.npz"):
        pictures |= dict(np.load(path))
    records: dict[str, Any] = {}
    for path in folder.glob("records.json"):
        records |= json.loads(path.read_text())
    for path in (*folder.glob("scores-*.json"), *folder.glob("training-*.json")):
        records[path.stem.removeprefix("scores-")] = json.loads(path.read_text())
    return {name: (record, pictures.get(name)) for name, record in sorted(records.items())}


def score(stage: Stage) -> None:
    """Collect the scores, add LPIPS where its weights are, and print the table beside the published one."""
    weights = find_lpips_weights()
    distance = None if weights is None else Lpips(weights, stage.device)
    if distance is None:
        stage.say(MISSING)
    results: dict[str, dict[str, Any]] = {}
    for name, (record, pictures) in collected(stage.out).items():
        results[name] = {key: value for key, value in record.items() if key not in ("each", "rows")}
        if distance is not None and pictures is not None:
            found = torch.from_numpy(pictures).float().div(255)
            results[name]["lpips"] = float(distance(found, stage.originals(record["rows"])).mean())
    (stage.out / "results.json").write_text(json.dumps(results, indent=1))
    for name, row in results.items():
        attack, _, defense = name.rpartition("-")
        conditions = {"attack": attack, "defense": " ".join(COLUMNS.get(defense, ())) or "none", "batch_size": 1}
        paper = find_published("lti-table1", {**conditions, "preset": "paper", "settings": {}, "target": "lenet"})
        beside = "" if paper is None else "   published " + " / ".join(f"{v:g}" for v in paper.figures.values())
        print(f"{name:28s} " + " ".join(f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float)) + beside)


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--stage", required=True, help="generator, train:DEFENSE, attack:NAME:DEFENSE, score")
    parser.add_argument("--seconds", type=float, help="limit of the stage, of each network when training")
    parser.add_argument("--refiner-seconds", type=float, help="limit of each refiner")
    parser.add_argument("--matching-seconds", type=float, help="limit of the gradient matching of each round")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--again", action="store_true", help="run the stage even if its files are there")
    parser.add_argument("--hidden", default="3000,3000", help="widths of the inverter; empty for rounds alone")
    parser.add_argument("--tag", default="", help="put before the names of a training's files, such as compact-")
    parser.add_argument("--model", default="lenet", help="lenet or resnet20")
    parser.add_argument("--beta", type=float, help="share of the auxiliary images that have classes of the clients")
    sizes = {"take": 1_000, "auxiliary": 50_000, "rounds": 2, "epochs": 400, "copies": 2, "steps": 150, "width": 64}
    sizes |= {"batch": 1_024, "refiner-batch": 256, "images": 1, "ig-steps": IG_STEPS, "gip-steps": GIP_STEPS}
    sizes |= {"gip-weight-steps": GIP_WEIGHT_STEPS, "gip-starts": 4}
    sizes |= {"generator-steps": 60_000, "generator-batch": 512}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tv", type=float, default=1e-2)
    options = parser.parse_args()
    use_full_precision()
    if options.device == "cuda":
        torch.backends.cudnn.benchmark = True
    kind, *rest = options.stage.split(":")
    marks = {
        "train": f"scores-{options.tag}lti-{{0}}.json",
        "attack": "scores-{0}-{1}.json",
        "generator": "generator.safetensors",
    }
    mark = Path(options.out) / marks.get(kind, "-").format(*rest)
    if mark.exists() and not options.again:
        print(f"[{options.stage}] done before: {mark}", flush=True)
        return
    stage = Stage(options)
    if kind == "train":
        train(stage, rest[0])
    elif kind == "attack":
        attack(stage, *rest)
    elif kind == "generator":
        train_the_generator(stage)
    else:
        score(stage)


if __name__ == "__main__":
    main()
