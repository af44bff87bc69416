"""Generate docs/settings.md: a table of the settings of every attack, and of the training of inverters.

    python tests/docs/settings_page.py --write

writes the page; without `--write` it is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gradleak.attacks import ATTACKS, DEFAULT_ATTACK, Attack
from gradleak.cli.output.settings_table import settings_table
from gradleak.inversion import Recipe
from gradleak.settings import settings_of
from gradleak.vision.attacks import IMAGE_ATTACKS
from gradleak.vision.inverter_settings import ImageInverterSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- Generated: python tests/docs/settings_page.py --write -->

Every attack's hyperparameters, with their defaults and what its presets set instead. Give one as `--set NAME=VALUE` on
the command line, in `settings` of an attack in a [study file](studies.md), or as a keyword of `gl.attack`. On the
screen: `gradleak list attacks NAME`. A value that is not allowed is refused before anything runs.
"""
INVERTERS = """\
## Training of inverters

Settings of `gradleak.inversion.Recipe`, which `gradleak invert train` fills from its options; `lti` and `lti-p` use
the trained network.
"""


IMAGES = """\
## Attacks on images

`gradleak images attack --attack NAME --set KEY=VALUE`; see [images](attacks/images.md).
"""
IMAGE_INVERTERS = """\
## Training of image inverters

`gradleak images train-inverter --set KEY=VALUE`; the seed is given as `--seed`.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(_parts())


def attacks() -> list[tuple[str, type[Attack]]]:
    """Return the attacks of the package by name, without those of plugins."""
    return [(name, kind) for name, kind in sorted(ATTACKS.items()) if kind.__module__.startswith("gradleak.")]


def _parts() -> Iterator[str]:
    yield HEAD
    for name, kind in attacks():
        yield f"## {name}\n"
        yield _facts(kind)
        yield _table(kind)
    if any(setting.meaning for setting in settings_of(Recipe).values()):
        yield INVERTERS
        yield _table(Recipe)
    yield IMAGES
    for name, image_attack in sorted(IMAGE_ATTACKS.items()):
        yield f"### images: {name}\n"
        yield f"{image_attack.paper}. Default preset: `{image_attack.default_preset()}`.\n"
        yield _table(image_attack)
    yield IMAGE_INVERTERS
    yield _table(ImageInverterSettings)


def _facts(kind: type[Attack]) -> str:
    default = "The default attack. " if kind.name == DEFAULT_ATTACK else ""
    presets = ", ".join(f"`{preset}`{_mark(preset, kind)}" for preset in kind.presets)
    return f"{kind.paper}. {default}Presets: {presets}.\n"


def _mark(preset: str, kind: type[Attack]) -> str:
    return " (default)" if preset == kind.default_preset() else ""


def _table(kind: type) -> str:
    headers, rows = settings_table(kind)
    lines = [headers, ["---"] * len(headers), *([f"`{row[0]}`", *map(_escaped, row[1:])] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/settings.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
