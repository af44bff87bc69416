"""The settings of inverters: one declaration for recipes, cards and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from gradleak.cli.options.inversion import InverterChoice
from gradleak.exchange import Origin
from gradleak.inversion import Recipe
from gradleak.inverters.card import Card
from gradleak.inverters.settings import InverterSettings, TrainingSettings
from gradleak.settings import settings_of

ORIGIN = Origin("small", "causal-lm", 42, 0, "ec21861e", False)
# A card as version 1 of the file format has it, in the order in which it was written first.
WRITTEN = {
    "origin": {"name": "small", "task": "causal-lm", "num_labels": 42, "seed": 0, "fingerprint": "ec21861e"},
    "parameters": ["transformer.wpe.weight"],
    "sequences": 2,
    "tokens": 6,
    "shortest": 4,
    "embeddings": "words-frozen",
    "dropout": True,
    "defenses": ["noise:0.001"],
    "pseudo": True,
    "data": "pseudo-data",
    "reduction": "hash",
    "share": 0.2,
    "output": "vocabulary",
    "hidden": [64, 32],
    "direct": False,
    "seed": 3,
    "samples": 1536,
    "accuracy": 73.1,
}


def test_every_setting_says_what_it_means() -> None:
    declared = settings_of(Recipe)
    assert declared.keys() - settings_of(TrainingSettings).keys() == {"defenses"}
    assert all(one.meaning for one in declared.values())


def test_the_command_line_has_the_settings_own_names_and_defaults() -> None:
    options = {field.name: field.default for field in fields(InverterChoice)}
    declared = settings_of(TrainingSettings)
    by_other_options = {"embeddings", "dropout", "seed", "probe"}
    assert declared.keys() - options.keys() == by_other_options
    different = {name for name, default in options.items() if default != declared[name].default}
    # These follow other options or the device, are given as text, or have a default for the command line.
    assert different == {"shortest", "chunk", "hidden", "lr", "share"}
    assert (options["hidden"], float(str(options["lr"])), options["share"]) == ("600,1000", 1e-3, 0.02)


def test_the_declaration_is_read_without_torch() -> None:
    code = "import gradleak.inverters.settings, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_card_has_the_settings_of_the_network_and_is_read_as_it_was_written() -> None:
    recipe = Recipe(tokens=6, shortest=4, sequences=2, hidden=(64, 32), output="vocabulary")
    card = Card(**recipe.network_settings(), origin=ORIGIN, parameters=("a", "b"), defenses=("sign",))
    assert all(getattr(card, name) == getattr(recipe, name) for name in settings_of(InverterSettings))
    assert Card.from_json(card.as_json()) == card
    assert json.loads(card.as_json()).keys() == WRITTEN.keys()


def test_a_card_of_an_earlier_release_is_read() -> None:
    card = Card.from_json(json.dumps(WRITTEN))
    assert (card.hidden, card.defenses, card.parameters) == ((64, 32), ("noise:0.001",), ("transformer.wpe.weight",))
    plain = {name: WRITTEN[name] for name in WRITTEN if name not in ("origin", "hidden", "defenses", "parameters")}
    assert all(getattr(card, name) == value for name, value in plain.items())


@pytest.mark.parametrize(("name", "value"), [("share", 2.0), ("output", "letters"), ("hidden", [0])])
def test_a_card_that_makes_no_sense_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        Card.from_json(json.dumps(WRITTEN | {name: value}))
