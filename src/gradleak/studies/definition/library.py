"""Library: the datasets that a study names, and hashes of its weights and contents, each read once per run.

Used to expand a study into cells, and by the driver to fetch a cell's sentences or images.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gradleak.audit.scenario import TargetSpec
from gradleak.data import Dataset, load_dataset, parse_take
from gradleak.errors import GradleakError
from gradleak.studies.definition.specs import DataSpec, ImageModelSpec
from gradleak.targets import trained_classes
from gradleak.targets.adapters.folder import adapter_classes
from gradleak.targets.identity import folder_hash, weights_hash
from gradleak.vision.data import ImageSet, load_images


class Library:
    """Cache of datasets, of the hashes of weights and sentences, and of the sizes of trained heads."""

    def __init__(self) -> None:
        self._datasets: dict[tuple[str, str | None, str | None], Dataset] = {}
        self._heads: dict[str, int | None] = {}
        self._weights: dict[tuple[str, bool], str] = {}
        self._sentences: dict[tuple[str | None, ...], str] = {}
        self._images: dict[str, ImageSet] = {}
        self._image_weights: dict[ImageModelSpec, str] = {}

    def whole(self, spec: DataSpec) -> Dataset:
        """Return the whole dataset."""
        key = (spec.name, spec.text_column, spec.label_column)
        if key not in self._datasets:
            self._datasets[key] = load_dataset(spec.name, text_column=spec.text_column, label_column=spec.label_column)
        return self._datasets[key]

    def put(self, dataset: Dataset) -> None:
        """Let specifications of the dataset's name mean this dataset, which a caller has prepared."""
        self._datasets[dataset.name, None, None] = dataset

    def get(self, spec: DataSpec) -> Dataset:
        """Return the examples in the range that is taken."""
        return self.whole(spec).take(slice(*self.bounds(spec)))

    def bounds(self, spec: DataSpec) -> tuple[int, int]:
        """Return start and stop of the range that is taken."""
        return _bounds(self.whole(spec), spec)

    def exact(self, spec: DataSpec) -> DataSpec:
        """Return the spec with start and stop of its range written out."""
        start, stop = self.bounds(spec)
        return replace(spec, take=f"{start}:{stop}")

    def trained_classes(self, target: TargetSpec) -> int | None:
        """Return the number of classes of the model's trained head; None if it has none, or the head is replaced."""
        if target.adapter is not None:
            own = adapter_classes(target.adapter)
            if own is not None:
                return own
        if target.random_weights or target.new_head:
            return None
        if target.name not in self._heads:
            with suppress(GradleakError):  # a model that cannot be read is reported when its cells run
                self._heads[target.name] = trained_classes(target.name)
        return self._heads.setdefault(target.name, None)

    def weights_hash(self, spec: TargetSpec) -> str:
        """Return a hash of the model's weights, which tells it from other weights of the same name."""
        key = (spec.name, spec.random_weights)
        if key not in self._weights:
            self._weights[key] = weights_hash(*key)
        if spec.adapter is None:
            return self._weights[key]
        return f"{self._weights[key]} {folder_hash(Path(spec.adapter).expanduser())}"

    def sentences_hash(self, spec: DataSpec) -> str:
        """Return a SHA-256 of the texts and labels in the range that is taken."""
        key = (spec.name, spec.take, spec.text_column, spec.label_column)
        if key not in self._sentences:
            taken = self.get(spec)
            content = json.dumps([taken.texts, taken.labels])
            self._sentences[key] = hashlib.sha256(content.encode()).hexdigest()
        return self._sentences[key]

    def images(self, spec: DataSpec) -> ImageSet:
        """Return the images in the range that is taken."""
        return self._whole_images(spec).take(slice(*self.image_bounds(spec)))

    def image_bounds(self, spec: DataSpec) -> tuple[int, int]:
        """Return start and stop of the range of images that is taken."""
        return _bounds(self._whole_images(spec), spec)

    def images_hash(self, spec: DataSpec) -> str:
        """Return a SHA-256 of the pixels and labels in the range that is taken."""
        taken = self.images(spec)
        labels = json.dumps(None if taken.labels is None else taken.labels.tolist())
        digest = hashlib.sha256(f"{tuple(taken.pixels.shape)} {labels}".encode())
        digest.update(taken.pixels.contiguous().numpy().data)
        return digest.hexdigest()

    def image_weights_hash(self, spec: ImageModelSpec) -> str:
        """Return a hash of an image model's weights."""
        if spec not in self._image_weights:
            self._image_weights[spec] = spec.load().fingerprint
        return self._image_weights[spec]

    def _whole_images(self, spec: DataSpec) -> ImageSet:
        if spec.name not in self._images:
            self._images[spec.name] = load_images(spec.name)
        return self._images[spec.name]


def _bounds(dataset: Dataset | ImageSet, spec: DataSpec) -> tuple[int, int]:
    """Return start and stop of the range that is taken of a dataset."""
    chosen = slice(None) if spec.take is None else parse_take(spec.take)
    dataset.take(chosen)  # raises if the range is empty
    start, stop, _ = chosen.indices(len(dataset))
    return start, stop
