"""`import gradleak as gl`: light, complete, and as the documentation shows it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import gradleak as gl
from gradleak.attacks import DEFAULT_ATTACK
from gradleak.errors import GradleakError
from gradleak.exchange import Progress
from gradleak.targets import Target

TEXT = "the cat sat on the mat"


@pytest.fixture
def update(bert: Target) -> gl.Update:
    return gl.Client(bert).update([TEXT], labels=[1])


def test_importing_gradleak_imports_no_torch() -> None:
    code = (
        "import sys, gradleak; gradleak.__version__; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there() -> None:
    for name in gl.__all__:
        assert getattr(gl, name) is not None
    assert set(gl.__all__) <= set(dir(gl))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        gl.atack  # type: ignore[attr-defined]  # noqa: B018


def test_the_example_of_the_documentation_runs() -> None:
    target = gl.load_target("tiny")
    client = gl.Client(target, dropout=True, embeddings="frozen")
    update = client.update(["the patient was given ten milligrams"], labels=[1])
    knowledge = gl.Knowledge(labels=[1], lengths=[8])  # type: ignore[arg-type]  # lists are welcome
    result = gl.attack(DEFAULT_ATTACK, target, update, knowledge=knowledge)
    assert gl.score(result, ["the patient was given ten milligrams"]).rouge2 == 100


def test_settings_and_seed_reach_the_attack_and_the_result(bert: Target, update: gl.Update) -> None:
    result = gl.attack("tag", bert, update, steps=3, lr=1, seed=7)
    assert (result.settings["steps"], result.settings["lr"], result.seed) == (3, 1, 7)
    again = gl.attack("tag", bert, update, steps=3, lr=1, seed=7)
    assert (result.token_ids, result.loss) == (again.token_ids, again.loss)


def test_without_a_preset_the_best_is_taken(bert: Target, update: gl.Update) -> None:
    few = {"steps": 2, "starts": 2, "permutations": 2, "moves": 2, "alpha_lm": 0.0}
    knowledge = gl.Knowledge(labels=[1], lengths=[8])
    best, paper = (gl.attack("lamp", bert, update, knowledge, preset=preset, **few) for preset in (None, "paper"))
    assert (best.settings["polish"], paper.settings["polish"]) == (10, 0)
    assert gl.attack("lamp", bert, update, knowledge, **few).settings == best.settings


def test_a_preset_is_the_ground_that_settings_change(bert: Target, update: gl.Update) -> None:
    knowledge = gl.Knowledge(lengths=(8,))
    result = gl.attack("tag", bert, update, knowledge, preset="large", steps=2)
    assert (result.settings["steps"], result.settings["optimizer"]) == (2, "adamw")


def test_listener_hears_of_the_run(bert: Target, update: gl.Update) -> None:
    heard: list[Progress] = []
    gl.attack("tag", bert, update, gl.Knowledge(lengths=(8,)), steps=3, listener=heard.append)
    assert heard[-1].step == heard[-1].total == 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tog", {}, "unknown attack 'tog'; did you mean 'tag'?"),
        ("tag", {"preset": "papr"}, "unknown preset of tag 'papr'; did you mean 'paper'?"),
        ("tag", {"step": 3}, "unknown setting of tag 'step'; did you mean 'steps'?"),
        ("tag", {"steps": "many"}, "setting steps of tag is like 2500, not 'many'"),
        ("tag", {"steps": 2.5}, "setting steps of tag is like 2500, not 2.5"),
        ("tag", {"steps": True}, "setting steps of tag is like 2500, not True"),
        ("tag", {"linear": 1}, "setting linear of tag is like False, not 1"),
    ],
)
def test_what_does_not_fit_is_said(
    bert: Target, update: gl.Update, name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(GradleakError) as caught:
        gl.attack(name, bert, update, **settings)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_score_aligns_a_batch(bert: Target) -> None:
    texts = ["the cat sat", "a big dog ran"]
    update = gl.Client(bert).update(texts, labels=[0, 1])
    found = gl.attack("tag", bert, update, gl.Knowledge(batch_size=2), steps=1)
    ids = tuple(tuple(row) for row in bert.tokenizer([texts[1], texts[0]])["input_ids"])
    scores = gl.score(replace(found, token_ids=ids), texts)
    assert scores.matches == (1, 0)
    assert scores.exact == 100


def test_score_says_what_is_missing(bert: Target, update: gl.Update) -> None:
    found = gl.attack("tag", bert, update, gl.Knowledge(lengths=(8,)), steps=1)
    with pytest.raises(GradleakError, match="list of strings"):
        gl.score(found, TEXT)
    with pytest.raises(GradleakError, match="no reference"):
        gl.score(found, [])
    with pytest.raises(GradleakError, match="no tokenizer"):
        gl.score(replace(found, tokenizer=None), [TEXT])
