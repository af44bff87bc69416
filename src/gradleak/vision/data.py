"""Images by name: the shipped sample, torchvision's datasets, .npz files, and folders of pictures."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gradleak.assets import image_asset
from gradleak.bounds import LARGEST_IMAGE, LARGEST_IMAGE_SET
from gradleak.errors import GradleakError, missing_extra, unknown_name
from gradleak.files import check_ordinary, refused_as

if TYPE_CHECKING:
    from PIL import Image

SAMPLE = "cifar10-sample"
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm")
TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN", "stl10": "STL10"}
CACHE = Path("~/.cache/gradleak").expanduser()


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size, and their classes.

    Attributes:
        name: as it was asked for.
        pixels: uint8 `[images, 3, height, width]`.
        labels: classes `[images]`; None if the source names none.
        label_names: names of the classes, in order; empty if they have none.
    """

    name: str
    pixels: Tensor
    labels: Tensor | None
    label_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: slice) -> ImageSet:
        """Return some of the images.

        Raises:
            GradleakError: if there are none in the range.
        """
        part = replace(self, pixels=self.pixels[rows], labels=None if self.labels is None else self.labels[rows])
        if not len(part):
            raise GradleakError(f"{self.name} has {len(self)} images, and none of them in the range that is taken")
        return part

    def check(self, size: int, num_labels: int) -> None:
        """Raise a GradleakError unless images and labels fit a model."""
        height, width = self.pixels.shape[-2:]
        if (height, width) != (size, size):
            raise GradleakError(
                f"the images of {self.name} have {width} × {height} pixels, and the model takes {size} × {size}; "
                "resize them, or give --size"
            )
        check_labels(self.labels, num_labels)


def check_labels(labels: Tensor | Sequence[int] | None, num_labels: int) -> None:
    """Raise a GradleakError if a label is none of the model's classes."""
    listed = [] if labels is None else torch.as_tensor(labels).flatten().tolist()
    wrong = next((label for label in listed if not 0 <= label < num_labels), None)
    if wrong is not None:
        raise GradleakError(f"label {wrong} is not one of {num_labels} (0 to {num_labels - 1}); give --num-labels")


def load_images(name: str) -> ImageSet:
    """Load images by name.

    Args:
        name: `cifar10-sample`, a split of torchvision's `cifar10:test` (downloaded once), `FILE.npz:SPLIT` with the
            arrays `SPLIT` (uint8, images × height × width × 3) and `SPLIT_labels`, or a folder of pictures, whose
            subfolders, if it has any, are the classes.

    Raises:
        GradleakError: if there is no such set, or an image cannot be used; one line says why.
    """
    if name == SAMPLE:
        return _sample()
    place = Path(name).expanduser()
    if place.is_dir():
        return _folder(name, place)
    stem, colon, split = name.rpartition(":")
    if colon and stem.endswith(".npz"):
        return _arrays(name, Path(stem).expanduser(), split)
    if colon and stem in TORCHVISION:
        return _torchvision(name, stem, split)
    if name in TORCHVISION:
        raise GradleakError(f"{name} needs its split: {name}:train or {name}:test")
    if place.suffix:
        raise GradleakError(f"{name} is no folder of images; an .npz file needs the name of its array: FILE.npz:test")
    raise unknown_name("image dataset", name, [SAMPLE, *(f"{known}:test" for known in TORCHVISION)])


def pillow() -> Any:  # noqa: ANN401 - a module
    """Return Pillow's `Image` module.

    Raises:
        GradleakError: if it is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise missing_extra("Pillow", "images", "reading and writing pictures") from None
    return Image


def _sample() -> ImageSet:
    card = json.loads(image_asset(f"{SAMPLE}.json").read_text())
    with pillow().open(image_asset(f"{SAMPLE}.png")) as sheet:
        pixels = np.asarray(sheet)
    size, columns = card["size"], card["columns"]
    tiles = pixels.reshape(-1, size, columns, size, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size)
    return ImageSet(SAMPLE, torch.from_numpy(tiles.copy()), torch.tensor(card["labels"]), tuple(card["label_names"]))


def _arrays(name: str, path: Path, split: str) -> ImageSet:
    check_ordinary(path)
    with refused_as(f"{path} cannot be read", Exception), zipfile.ZipFile(path) as file:
        arrays = [part.filename.removesuffix(".npy") for part in file.infolist()]
        if split not in arrays:
            raise unknown_name(f"array of {path}", split, arrays)
        pixels = _array(file, split)
        labels = _array(file, f"{split}_labels") if f"{split}_labels" in arrays else None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
        raise GradleakError(f"{name} must be uint8 of images × height × width × 3, not {pixels.dtype} {pixels.shape}")
    if labels is not None and (labels.dtype.kind not in "iu" or labels.shape != pixels.shape[:1]):
        raise GradleakError(
            f"{name}_labels must be a whole number for each of {len(pixels)} images, not {labels.dtype} {labels.shape}"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return ImageSet(name, tensor, None if labels is None else torch.from_numpy(labels.astype(np.int64)))


def _array(file: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """Return an array of an .npz file, whose header may promise anything: first the size is compared with the data."""
    part = file.getinfo(f"{name}.npy")
    if part.file_size > LARGEST_IMAGE_SET:
        raise GradleakError(f"{file.filename} holds an array of more than {LARGEST_IMAGE_SET / 2**30:.0f} GiB")
    with file.open(part) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(stream)
        if min(shape, default=1) < 0 or math.prod(shape) * max(1, kind.itemsize) > part.file_size:
            raise GradleakError(f"{file.filename} is damaged: its header speaks of {shape}, which is not in the file")
    with file.open(part) as stream:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _folder(name: str, place: Path) -> ImageSet:
    classes = sorted(path for path in place.iterdir() if path.is_dir())
    files: list[tuple[Path, int | None]] = [(path, None) for path in _pictures(place)]
    files += [(path, number) for number, folder in enumerate(classes) for path in _pictures(folder)]
    if not files:
        raise GradleakError(f"there are no images in {name}: it holds no {', '.join(PICTURES)}")
    loaded = [_picture(path) for path, _ in files]
    odd = next((number for number, image in enumerate(loaded) if image.shape != loaded[0].shape), None)
    if odd is not None:
        sizes = [f"{loaded[number].shape[2]} × {loaded[number].shape[1]}" for number in (odd, 0)]
        raise GradleakError(f"{files[odd][0]} has {sizes[0]} pixels, and {files[0][0]} has {sizes[1]}; give one size")
    known = [number for _, number in files if number is not None]
    labels = torch.tensor(known) if len(known) == len(files) else None
    return ImageSet(name, torch.stack(loaded), labels, tuple(path.name for path in classes) if known else ())


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _picture(path: Path) -> Tensor:
    module = pillow()
    check_ordinary(path)
    with refused_as(f"{path} cannot be read as an image", Exception), module.open(path) as picture:  # as Pillow fails
        if max(picture.size) > LARGEST_IMAGE:
            raise GradleakError(f"{path} has {picture.width} × {picture.height} pixels; at most {LARGEST_IMAGE} a side")
        mode, pixels = picture.mode, np.asarray(_colour(picture))
    if mode != "RGB":
        raise GradleakError(f"{path} has mode {mode}, and the models take RGB; convert it")
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _colour(picture: Image.Image) -> Image.Image:
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _torchvision(name: str, stem: str, split: str) -> ImageSet:
    try:
        from torchvision import datasets
    except ImportError:
        raise missing_extra("torchvision", "vision", f"dataset {name}") from None
    if split not in ("train", "test"):
        raise unknown_name(f"split of {stem}", split, ["train", "test"])
    kind, root = getattr(datasets, TORCHVISION[stem]), str(CACHE / "torchvision")
    chosen = {"train": split == "train"} if stem.startswith("cifar") else {"split": split}
    try:
        loaded = kind(root, download=True, **chosen)
    except (OSError, RuntimeError) as error:
        raise GradleakError(f"{name} cannot be loaded: {error}") from None
    pixels = np.asarray(loaded.data)
    if pixels.shape[1] != 3:  # CIFAR has the channels last, SVHN and STL-10 first
        pixels = pixels.transpose(0, 3, 1, 2)
    labels = loaded.targets if hasattr(loaded, "targets") else loaded.labels
    names = tuple(getattr(loaded, "classes", ()))
    return ImageSet(name, torch.from_numpy(np.ascontiguousarray(pixels)), torch.as_tensor(np.array(labels)), names)
