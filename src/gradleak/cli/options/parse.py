"""Parse and check the texts of options; a mistake raises a GradleakError with one line."""

from __future__ import annotations

import os.path
import re
import tempfile
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.bounds import LARGEST_WHOLE, whole_number
from gradleak.errors import GradleakError, unknown_name
from gradleak.files import STDOUT, check_replaceable
from gradleak.printable import quoted
from gradleak.settings import parse_duration as parse_duration

if TYPE_CHECKING:
    from gradleak.federation import FedAvg
    from gradleak.targets import Lora

# Files that are read from the folder of a model, a prior or an inverter.
MODEL_FILES = re.compile(
    r"(generation_|tokenizer_|preprocessor_|adapter_)?config\.json|(tokenizer|special_tokens_map|added_tokens|vocab)\.json"
    r"|(vocab|merges)\.txt|.*\.model|((pytorch_|adapter_)?model|inverter)([-.].*)?\.(safetensors|bin)(\.index\.json)?"
)


def parse_whole_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Parse `0,1,2`."""
    if text is None:
        return None
    try:
        numbers = tuple(whole_number(part, -LARGEST_WHOLE, LARGEST_WHOLE) for part in text.split(","))
    except ValueError:
        raise GradleakError(f"{option} takes whole numbers with commas between them, not '{quoted(text)}'") from None
    if min(numbers) < 0:
        raise GradleakError(f"{option} takes numbers from 0 up, not {min(numbers)}")
    return numbers


def parse_know(text: str | None, assumed: Sequence[str]) -> tuple[str, ...]:
    """Parse `labels,lengths` or `none`; the default is what the attack's paper assumes."""
    from gradleak.exchange import fact_field

    if text is None:
        return tuple(assumed)
    names = [part.strip() for part in text.split(",")]
    if names == ["none"]:
        return ()
    if "none" in names:
        raise GradleakError("--know none stands alone")
    for name in names:
        fact_field(name)
    return tuple(dict.fromkeys(names))


def parse_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse all `--set KEY=VALUE`."""
    settings = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise GradleakError(f"--set takes KEY=VALUE, not '{text}'")
        settings[key] = value
    return settings


def parse_fedavg(text: str | None) -> FedAvg | None:
    """Parse `steps=4,lr=5e-5,batch=1`, and further settings of `FedAvg`."""
    from gradleak.federation import FedAvg

    return None if text is None else FedAvg.parse(text, "--fedavg")


def parse_lora(text: str | None) -> Lora | None:
    """Parse `r=8,alpha=16,targets=q_proj+v_proj`, and further settings of `Lora`."""
    from gradleak.targets import Lora

    return None if text is None else Lora.parse(text, "--lora")


def parse_device(text: str) -> str:
    """Check the name of a device; a GPU may have a number (`cuda:1`)."""
    kind, colon, number = text.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and (kind != "cuda" or not re.fullmatch("[0-9]{1,4}", number))):
        raise unknown_name("device", quoted(text), ["auto", "cpu", "cuda"])
    if colon:
        import torch

        if int(number) >= torch.cuda.device_count():
            raise GradleakError(f"there is no device {text} here; there are {torch.cuda.device_count()} CUDA devices")
    return text


def check_outputs(outputs: Sequence[tuple[str, Path | None]], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse outputs that cannot be written, or that would overwrite an input or one another, before anything runs.

    Args:
        outputs: pairs of an option and the file that it names.
        inputs: names of datasets, models and updates, which may be files or folders.
    """
    check_overwriting(outputs, inputs)
    for _, path in outputs:
        check_output(path)


def check_overwriting(outputs: Sequence[tuple[str, Path | None]], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse outputs that would overwrite an input or one another; paths and links are resolved."""
    named = [(option, path) for option, path in outputs if path is not None]
    for (first, path), (second, other) in combinations(named, 2):
        if _same_file(path, other):
            raise GradleakError(f"{first} {path} and {second} {other} are one file; give two")
    read = [os.path.expanduser(name) for name in inputs if name is not None]
    for option, path in named:
        for name in read if path != STDOUT else ():
            lost = _is_of_model(path, name) if os.path.isdir(name) else os.path.isfile(name) and _same_file(path, name)
            if lost:
                raise GradleakError(f"{option} {path} would overwrite what is read from {name}; give another file")


def _same_file(one: str | Path, other: str | Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _is_of_model(path: Path, folder: str) -> bool:
    resolved, inside = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return inside in resolved.parents and MODEL_FILES.fullmatch(resolved.name) is not None


def check_output(path: Path | None) -> None:
    """Refuse a file that cannot be written, before anything runs."""
    if path is None or path == STDOUT:
        return
    check_replaceable(path)
    if not path.absolute().parent.is_dir():
        raise GradleakError(f"{path} cannot be written: there is no folder {path.parent}")
    try_writing(path, path.parent)


def try_writing(path: Path, folder: Path) -> None:
    """Refuse an output if its folder, or the nearest existing parent, is not writable."""
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise GradleakError(f"{path} cannot be written: {error.strerror}") from None
