"""LTI's table 1 as a grid of attacks and defenses, whose cells are files: a run that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError, unknown_name
from gradleak.files import write_atomically
from gradleak.vision.attacks import find_image_attack
from gradleak.vision.attacks.base import Report
from gradleak.vision.client import ImageClient
from gradleak.vision.data import ImageSet
from gradleak.vision.lpips import Lpips
from gradleak.vision.runs import ImageRun, run_record
from gradleak.vision.target import ImageTarget

COLUMNS: dict[str, tuple[str, ...]] = {
    "none": (),
    "sign": ("sign",),
    "pruning": ("prune-global:0.99",),
    "noise": ("noise:0.1",),
}
PUBLISHED: dict[str, dict[str, tuple[float, float, float]]] = {
    "ig": {
        "none": (0.022, 22.290, 0.263),
        "sign": (0.116, 9.981, 0.677),
        "pruning": (0.138, 8.807, 0.675),
        "noise": (0.150, 8.349, 0.653),
    },
    "gi-gip": {
        "none": (0.001, 33.374, 0.033),
        "sign": (0.091, 13.574, 0.471),
        "pruning": (0.043, 14.356, 0.474),
        "noise": (0.124, 9.383, 0.568),
    },
    "lti": {
        "none": (0.004, 24.837, 0.221),
        "sign": (0.014, 18.986, 0.396),
        "pruning": (0.029, 15.897, 0.472),
        "noise": (0.012, 20.249, 0.370),
    },
}
"""MSE, PSNR in dB and LPIPS of the paper's table 1."""


@dataclass(frozen=True, kw_only=True)
class Table1:
    """The grid: which attacks, on which images.

    Attributes:
        target: the model.
        images: private images, one for each client.
        labels: their classes.
        dataset: their name.
        preset: of the attacks; None for each one's default.
        settings: of the attacks, by name, as on the command line.
        seed: of defenses and attacks.
    """

    target: ImageTarget
    images: ImageSet
    labels: tuple[int, ...]
    dataset: str
    preset: str | None = None
    settings: dict[str, dict[str, str]]
    seed: int = 0

    def run(
        self,
        folder: Path,
        attacks: Sequence[str],
        distance: Lpips | None,
        say: Callable[[str], None],
        report: Report | None = None,
    ) -> dict[tuple[str, str], dict[str, float]]:
        """Run the cells that have no file in the folder, and return the mean scores of all.

        Raises:
            GradleakError: if a file there is of another run.
        """
        unknown = next((name for name in attacks if name not in PUBLISHED), None)
        if unknown is not None:
            raise unknown_name("attack of table 1", unknown, PUBLISHED)
        folder.mkdir(parents=True, exist_ok=True)
        rows = {}
        for attack in attacks:
            for column, defenses in COLUMNS.items():
                path = folder / f"{attack}-{column}.json"
                record = self._done(path) if path.is_file() else None
                if record is None:
                    say(f"{attack} under {column}")
                    record = self._cell(attack, defenses, distance, report)
                    with write_atomically(path) as temporary:
                        temporary.write_text(json.dumps(record, indent=1))
                rows[attack, column] = record["summary"]
        return rows

    def _cell(
        self, attack: str, defenses: tuple[str, ...], distance: Lpips | None, report: Report | None
    ) -> dict[str, Any]:
        chosen = [parse_defense(text) for text in defenses]
        run = ImageRun(
            client=ImageClient(self.target, defenses=chosen, seed=self.seed),
            attack=find_image_attack(attack).with_settings(self.preset, self.settings.get(attack)),
            images=self.images,
            labels=self.labels,
            seed=self.seed,
        )
        return run_record(run, run.run(report, distance), self.dataset) | {"images": len(self.images)}

    def _done(self, path: Path) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            same = (record["model_hash"], record["scenario"]["dataset"], record["images"], record["seed"])
        except (OSError, ValueError, KeyError) as error:
            raise GradleakError(f"{path} is damaged ({error}); remove it to run its cell again") from None
        if same != (self.target.fingerprint, self.dataset, len(self.images), self.seed):
            raise GradleakError(f"{path} is of another model, dataset, number of images or seed; give another folder")
        return record
