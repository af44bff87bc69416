"""Study: grids of experiments, read from TOML, and the cells that they stand for."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from gradleak.attacks import find_attack
from gradleak.audit.scenario import TargetSpec
from gradleak.data import Dataset, classes_needed, load_dataset, parse_take
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import FACTS
from gradleak.plugins import load_plugins
from gradleak.studies.definition import schema
from gradleak.studies.definition.cells import AttackCell, Cell, UtilityCell
from gradleak.studies.definition.reading import Key, Place, read_table, text
from gradleak.studies.definition.schema import PAPER, AttackSpec, DataSpec, Grid, UtilityGrid
from gradleak.targets import trained_classes
from gradleak.targets.identity import folder_hash, weights_hash

READY = "ready"
AnyGrid = TypeVar("AnyGrid", Grid, UtilityGrid)


class Library:
    """Datasets by description, each read once, and hashes of what names stand for."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str | None, str | None], Dataset] = {}
        self._heads: dict[str, int | None] = {}
        self._weights: dict[tuple[str, bool], str] = {}
        self._sentences: dict[tuple[str | None, ...], str] = {}

    def whole(self, spec: DataSpec) -> Dataset:
        """Return the whole dataset."""
        key = (spec.name, spec.text_column, spec.label_column)
        if key not in self._read:
            self._read[key] = load_dataset(spec.name, text_column=spec.text_column, label_column=spec.label_column)
        return self._read[key]

    def trained_classes(self, target: TargetSpec) -> int | None:
        """Return the number of classes of a model's trained head; None if it has none that is used."""
        if target.random_weights or target.new_head:
            return None
        if target.name not in self._heads:
            with suppress(GradleakError):  # what cannot be read is told when its cells run
                self._heads[target.name] = trained_classes(target.name)
        return self._heads.setdefault(target.name, None)

    def get(self, spec: DataSpec) -> Dataset:
        """Return the examples that are taken."""
        return self.whole(spec).take(slice(*self.bounds(spec)))

    def bounds(self, spec: DataSpec) -> tuple[int, int]:
        """Return where the examples that are taken start and stop."""
        dataset = self.whole(spec)
        chosen = slice(None) if spec.take is None else parse_take(spec.take)
        dataset.take(chosen)  # refuses what leaves none
        start, stop, _ = chosen.indices(len(dataset))
        return start, stop

    def exact(self, spec: DataSpec) -> DataSpec:
        """Return the description with the bounds written out."""
        start, stop = self.bounds(spec)
        return replace(spec, take=f"{start}:{stop}")

    def weights_hash(self, spec: TargetSpec) -> str:
        """Return what tells the model's weights from others of the same name, read once per run."""
        key = (spec.name, spec.random_weights)
        if key not in self._weights:
            self._weights[key] = weights_hash(*key)
        return self._weights[key]

    def sentences_hash(self, spec: DataSpec) -> str:
        """Return a SHA-256 of the very texts and labels that are taken."""
        key = (spec.name, spec.take, spec.text_column, spec.label_column)
        if key not in self._sentences:
            taken = self.get(spec)
            content = json.dumps([taken.texts, taken.labels])
            self._sentences[key] = hashlib.sha256(content.encode()).hexdigest()
        return self._sentences[key]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Grids of experiments.

    Attributes:
        name: what it is called; its records go to `NAME.db`.
        title: what it is about.
        paper: the paper whose table it repeats.
        grids: grids of attacks.
        utility: grids of fine-tuning under defenses.
        unavailable: attacks and defenses of a ready study that this version of the package does not have yet.
        source: the TOML text.
    """

    name: str
    title: str = ""
    paper: str | None = None
    grids: tuple[Grid, ...] = ()
    utility: tuple[UtilityGrid, ...] = ()
    unavailable: tuple[str, ...] = ()
    source: str = field(default="", repr=False)

    def cells(self, targets: Sequence[str] | None = None, library: Library | None = None) -> list[Cell]:
        """Return all cells, each once, those of one model together.

        Args:
            targets: names of models to take in place of the study's own.
            library: where datasets are looked up; a new one by default.

        Raises:
            GradleakError: if a dataset cannot be read or is too short.
        """
        shelf = library or Library()
        chosen = [schema.target(name, Place("--target")) for name in targets or ()]
        cells: dict[str, Cell] = {}
        for grid in self.grids:
            cells |= {cell.id: cell for cell in _attack_cells(_with_targets(grid, chosen), shelf)}
        for fine_tuning in self.utility:
            cells |= {cell.id: cell for cell in _utility_cells(_with_targets(fine_tuning, chosen), shelf)}
        return list(cells.values())


def ready_studies() -> list[str]:
    """Return the names of the studies that come with the package."""
    folder = resources.files("gradleak.studies") / READY
    if not folder.is_dir():
        return []
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_study(name_or_path: str | Path) -> Study:
    """Load a study that comes with the package by its name, or one of your own from a TOML file.

    Raises:
        GradleakError: with one line that names the place and what belongs there.
    """
    name, path = str(name_or_path), Path(name_or_path)
    load_plugins()
    if name in ready_studies():
        source = (resources.files("gradleak.studies") / READY / f"{name}.toml").read_text(encoding="utf-8")
        return parse_study(source, Place(name, ready=True), name)
    if path.suffix != ".toml" and not path.is_file():
        raise unknown_name("study", name, ready_studies())
    try:
        return parse_study(path.read_text(encoding="utf-8"), Place(path.name), path.stem)
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GradleakError(f"{path} is not UTF-8 text") from None


def parse_study(source: str, place: Place, name: str) -> Study:
    """Read a study's TOML; `name` is its name if it gives none."""
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"is not valid TOML: {error}") from None
    content = read_table({"name": name, **table}, STUDY, place)
    grids: tuple[Grid | UtilityGrid, ...] = (*content["grid"], *content["utility"])
    if not grids:
        raise place.error("holds no [[grid]] and no [[utility]]: there is nothing to run")
    missing = dict.fromkeys(name for grid in grids for name in grid.unavailable)
    return Study(
        name=content["name"],
        title=content["title"],
        paper=content["paper"],
        grids=tuple(grid.available() for grid in content["grid"]),
        utility=tuple(grid.available() for grid in content["utility"]),
        unavailable=tuple(missing),
        source=source,
    )


def _tables(kind: type[Any], keys: dict[str, Key]) -> Key:
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
        raise place.error(f"takes letters, digits, dots, dashes and underscores, not {value!r}")
    return str(value)


STUDY = {
    "name": Key(_name),
    "title": Key(text, ""),
    "paper": Key(text, None),
    "grid": _tables(Grid, schema.GRID),
    "utility": _tables(UtilityGrid, schema.UTILITY),
}


def _with_targets(grid: AnyGrid, chosen: Sequence[TargetSpec]) -> AnyGrid:
    """Return the grid with other models, which do what its own first one does."""
    first = grid.target[0]
    others = tuple(
        replace(spec, task=first.task, num_labels=first.num_labels, new_head=first.new_head) for spec in chosen
    )
    return replace(grid, target=others) if others else grid


def _attack_cells(grid: Grid, library: Library) -> Iterator[AttackCell]:
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
        named = {"weights": library.weights_hash(target), **_folders(attack)}
        for part in _parts(library.bounds(dataset), size * grid.batches_per_cell):
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


def _folders(attack: AttackSpec) -> dict[str, str]:
    """Return a hash of every folder that an attack's settings name, such as a prior's or an inverter's."""
    settings = asdict(find_attack(attack.name).with_settings(attack.preset, attack.texts))
    folders = {key: Path(value) for key, value in settings.items() if isinstance(value, str) and Path(value).is_dir()}
    return {key: folder_hash(folder, deep=True) for key, folder in folders.items()}


def _parts(bounds: tuple[int, int], size: int) -> list[str]:
    start, stop = bounds
    return [f"{first}:{min(first + size, stop)}" for first in range(start, stop, size)]


def _facts(knowledge: str | tuple[str, ...], attack: AttackSpec) -> tuple[str, ...]:
    told = find_attack(attack.name).assumes if knowledge == PAPER else knowledge
    return tuple(fact for fact in FACTS if fact in told)


def _with_classes(target: TargetSpec, dataset: DataSpec, library: Library) -> TargetSpec:
    """Return the model with its own number of classes or the dataset's, unless the study says how many."""
    classes = classes_needed(library.whole(dataset), dataset.labels)
    if target.num_labels or classes is None or target.task != "classification":
        return target
    return replace(target, num_labels=library.trained_classes(target) or max(2, classes))
