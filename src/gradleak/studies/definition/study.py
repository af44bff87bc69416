"""Study: load a study file and expand its grids into cells.

Used by the driver, which runs the cells, and by `gradleak list studies`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from gradleak.attacks import find_attack
from gradleak.audit.scenario import TargetSpec, check_sums
from gradleak.bounds import LARGEST_STUDY_FILE, MOST_CELLS
from gradleak.data import classes_needed
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import FACTS
from gradleak.files import read_bytes
from gradleak.plugins import load_plugins
from gradleak.printable import quoted
from gradleak.studies.definition import schema
from gradleak.studies.definition.cells import AttackCell, Cell, ImageCell, UtilityCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.reading import Key, Place, read_table, shown, text
from gradleak.studies.definition.specs import (
    AttackGrid,
    AttackSpec,
    DataSpec,
    ImageAttackSpec,
    ImageGrid,
    ImageModelSpec,
    UtilityGrid,
)
from gradleak.targets.identity import WEIGHTS, file_hash, folder_hash
from gradleak.vision.runs import knowledge_of

READY_FOLDER = "ready"
AnyGrid = TypeVar("AnyGrid", AttackGrid, UtilityGrid)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Grids of experiments.

    Attributes:
        name: the study's name; its records go to `NAME.db`.
        title: its subject, in one line.
        paper: the paper whose table or figure it repeats.
        grids: grids of attacks.
        utility: grids of fine-tuning under defenses.
        images: grids of attacks on image models.
        unavailable: attacks and defenses of a ready study that this version of the package does not have.
        source: the TOML text.
    """

    name: str
    title: str = ""
    paper: str | None = None
    grids: tuple[AttackGrid, ...] = ()
    utility: tuple[UtilityGrid, ...] = ()
    images: tuple[ImageGrid, ...] = ()
    unavailable: tuple[str, ...] = ()
    source: str = field(default="", repr=False)

    def cells(self, targets: Sequence[str] | None = None, library: Library | None = None) -> list[Cell]:
        """Return all cells without duplicates, those of one model together.

        Args:
            targets: names of models that replace the study's own.
            library: source of datasets and hashes; a new one by default.

        Raises:
            GradleakError: if a dataset cannot be read or is too short.
        """
        library = library or Library()
        texts = bool(self.grids or self.utility)
        chosen = [schema.target(name, Place("--target")) for name in targets or ()] if texts else []
        pictured = [schema.image_model(name, Place("--target")) for name in targets or ()]
        _check_size(self)
        cells: dict[str, Cell] = {}
        for grid in self.grids:
            cells |= {cell.id: cell for cell in _attack_cells(_with_targets(grid, chosen), library)}
        for fine_tuning in self.utility:
            cells |= {cell.id: cell for cell in _utility_cells(_with_targets(fine_tuning, chosen), library)}
        for seen in self.images:
            cells |= {cell.id: cell for cell in _image_cells(_with_image_models(seen, pictured), library)}
        return list(cells.values())


def ready_studies() -> list[str]:
    """Return the names of the studies that ship with the package."""
    folder = resources.files("gradleak.studies") / READY_FOLDER
    if not folder.is_dir():
        return []
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_study(name_or_path: str | Path) -> Study:
    """Load a ready study by its name, or a study from a TOML file.

    Raises:
        GradleakError: one line with the place in the file and the values accepted there.
    """
    name, path = str(name_or_path), Path(name_or_path)
    load_plugins()
    if name in ready_studies():
        source = (resources.files("gradleak.studies") / READY_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        return parse_study(source, Place(name, ready=True), name)
    if path.suffix != ".toml" and not path.is_file():
        raise unknown_name("study", name, ready_studies())
    try:
        source = read_bytes(path, LARGEST_STUDY_FILE).decode("utf-8")
    except UnicodeDecodeError:
        raise GradleakError(f"{path} is not UTF-8 text") from None
    return parse_study(source, Place(path.name), path.stem)


def parse_study(source: str, place: Place, name: str) -> Study:
    """Parse the TOML text of a study; `name` is the default of its name."""
    try:
        table = tomllib.loads(source)
    except (ValueError, RecursionError) as error:  # also a number or a nesting beyond what Python reads
        raise place.error(f"is not valid TOML: {quoted(str(error))}") from None
    content = read_table({"name": name, **table}, STUDY, place)
    kinds = ("grid", "utility", "images")
    grids: list[AttackGrid | UtilityGrid | ImageGrid] = [grid for kind in kinds for grid in content[kind]]
    if not grids:
        raise place.error("holds no [[grid]], [[utility]] or [[images]]: there is nothing to run")
    missing = dict.fromkeys(name for grid in grids for name in grid.unavailable)
    return Study(
        name=content["name"],
        title=content["title"],
        paper=content["paper"],
        grids=tuple(grid.available() for grid in content["grid"]),
        utility=tuple(grid.available() for grid in content["utility"]),
        images=tuple(grid.available() for grid in content["images"]),
        unavailable=tuple(missing),
        source=source,
    )


def _tables(kind: type[Any], keys: dict[str, Key]) -> Key:
    """Return a key that takes an array of tables, `[[…]]`."""

    def read(value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.error("is written with two brackets on each side: [[…]]")
        return tuple(
            kind(**read_table(table, keys, replace(place, words=f"{place.words} {number}")))
            for number, table in enumerate(value, start=1)
        )

    return Key(read, ())


def _name(value: object, place: Place) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text(value, place)):
        raise place.error(f"takes letters, digits, dots, dashes and underscores, not {shown(value)}")
    return str(value)


STUDY = {
    "name": Key(_name),
    "title": Key(text, ""),
    "paper": Key(text, None),
    "grid": _tables(AttackGrid, schema.GRID),
    "utility": _tables(UtilityGrid, schema.UTILITY),
    "images": _tables(ImageGrid, schema.IMAGES),
}


def _with_targets(grid: AnyGrid, chosen: Sequence[TargetSpec]) -> AnyGrid:
    """Return the grid with other models, each with task, classes, head and fresh adapter of the grid's first model."""
    first = grid.target[0]
    others = tuple(
        replace(spec, task=first.task, num_labels=first.num_labels, new_head=first.new_head, lora=first.lora)
        for spec in chosen
    )
    return replace(grid, target=others) if others else grid


def _attack_cells(grid: AttackGrid, library: Library) -> Iterator[AttackCell]:
    for target, seed, dataset, size, client, defenses, knowledge, attack in product(
        grid.target,
        grid.seed,
        grid.dataset,
        grid.batch_size,
        grid.client,
        grid.defense,
        grid.knowledge,
        grid.attack,
    ):
        named = {"weights": library.weights_hash(target), **_contents(attack)}
        start, stop = library.bounds(dataset)
        check_sums(stop - start, size, client.clients)
        for part in _parts((start, stop), size * client.clients * grid.batches_per_cell):
            taken = replace(dataset, take=part)
            yield AttackCell(
                target=_with_classes(target, dataset, library),
                defenses=defenses,
                seed=seed,
                hashes={**named, "sentences": library.sentences_hash(taken)},
                dataset=taken,
                batch_size=size,
                client=client,
                knowledge=_facts(knowledge, attack),
                attack=attack,
            )


def _utility_cells(grid: UtilityGrid, library: Library) -> Iterator[UtilityCell]:
    for target, seed, train, test, defenses in product(grid.target, grid.seed, grid.train, grid.test, grid.defense):
        train_part, test_part = library.exact(train), library.exact(test)
        yield UtilityCell(
            target=_with_classes(target, train, library),
            defenses=defenses,
            seed=seed,
            hashes={
                "weights": library.weights_hash(target),
                "training sentences": library.sentences_hash(train_part),
                "test sentences": library.sentences_hash(test_part),
            },
            train=train_part,
            test=test_part,
            epochs=grid.epochs,
            batch_size=grid.batch_size,
            lr=grid.lr,
        )


def _with_image_models(grid: ImageGrid, chosen: Sequence[ImageModelSpec]) -> ImageGrid:
    """Return the grid with other models, for as many classes and pixels as the grid's first one."""
    first = grid.target[0]
    others = tuple(replace(spec, num_labels=first.num_labels, size=first.size) for spec in chosen)
    return replace(grid, target=others) if others else grid


def _image_cells(grid: ImageGrid, library: Library) -> Iterator[ImageCell]:
    for target, seed, dataset, size, defenses, knowledge, attack in product(
        grid.target, grid.seed, grid.dataset, grid.batch_size, grid.defense, grid.knowledge, grid.attack
    ):
        named = {"weights": library.image_weights_hash(target), **_contents(attack)}
        for part in _parts(library.image_bounds(dataset), size * grid.clients_per_cell):
            taken = replace(dataset, take=part)
            yield ImageCell(
                target=target,
                defenses=defenses,
                seed=seed,
                hashes={**named, "images": library.images_hash(taken)},
                dataset=taken,
                batch_size=size,
                knowledge=knowledge_of(None if isinstance(knowledge, str) else knowledge, size),
                attack=attack,
            )


def _contents(attack: AttackSpec | ImageAttackSpec) -> dict[str, str]:
    """Return a hash of all weights that the attack's settings name: a folder of them, or a file."""
    settings = asdict(attack.build())
    named = {key: Path(value) for key, value in settings.items() if isinstance(value, str)}
    folders = {key: folder_hash(path, deep=True) for key, path in named.items() if path.is_dir()}
    files = {key: path for key, path in named.items() if path.suffix in WEIGHTS and path.is_file()}
    return folders | {key: file_hash(path) for key, path in files.items()}


def _check_size(study: Study) -> None:
    """Raise a GradleakError if the grids have more cells than can be kept, whatever the size of their datasets."""
    for number, grid in enumerate((*study.grids, *study.utility, *study.images), start=1):
        size = prod(len(value) for value in vars(grid).values() if isinstance(value, tuple))
        if size > MOST_CELLS:
            raise GradleakError(
                f"{study.name}, grid {number}: its lists make {size:,} cells; {MOST_CELLS:,} are the most"
            )


def _parts(bounds: tuple[int, int], size: int) -> list[str]:
    """Cut a range into ranges of at most `size` examples, each written as `A:B`."""
    start, stop = bounds
    return [f"{first}:{min(first + size, stop)}" for first in range(start, stop, size)]


def _facts(knowledge: str | tuple[str, ...], attack: AttackSpec) -> tuple[str, ...]:
    """Return the facts that the attacker knows, in a fixed order."""
    known = find_attack(attack.name).assumes if knowledge == schema.PAPER else knowledge
    return tuple(fact for fact in FACTS if fact in known)


def _with_classes(target: TargetSpec, dataset: DataSpec, library: Library) -> TargetSpec:
    """Return the model with a number of classes: the study's, else its trained head's, else the dataset's."""
    classes = classes_needed(library.whole(dataset), dataset.labels)
    if target.num_labels or classes is None or target.task != "classification":
        return target
    return replace(target, num_labels=library.trained_classes(target) or max(2, classes))
