"""One table of attacks drives these tests: a new attack joins them with one line in QUICK."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from untrained_inverters import untrained_inverters

from conftest import ALL_KINDS, TARGET_KINDS, small_target
from gradleak.attacks import ATTACKS, DEFAULT_ATTACK, Attack, Dlg, Tag, find_attack
from gradleak.attacks.base import NEEDS
from gradleak.errors import GradleakError
from gradleak.exchange import FACTS, Knowledge, Progress, Reconstruction, Update
from gradleak.federation import Client, FedAvg
from gradleak.optimisation.slots import impossible_words
from gradleak.targets import Target, Task
from gradleak.version import __version__

LAMP = {"steps": "3", "steps_per_round": "2", "starts": "2", "permutations": "2", "moves": "2", "alpha_lm": "0"}
QUICK: dict[str, dict[str, str]] = {
    "dlg": {"steps": "3"},
    "tag": {"steps": "3"},
    "lamp": LAMP | {"polish": "0"},
    "lamp-l2l1": LAMP | {"polish": "1"},
    "edr": {"iterations": "3", "starts": "2", "adjusted": "1", "adjustments": "1", "attempts": "1"},
    "fet": {"population": "8", "generations": "3", "hall_of_fame": "2", "iterations": "2"},
    "auto": {"budget": "0.000001"},
    "grab": {"steps": "2", "starts": "2", "permutations": "2", "rounds": "1", "passes": "1", "polish": "0"},
    "mosaic": {"ways": "1"},
    "sieve": {},
    "lti": {},
    "lti-p": {},
}
"""Settings that make an attack take a moment."""

CLASSIFIERS_ONLY = {"edr", "fet", "mosaic"}
"""They read tokens from the rows of the word embeddings' gradient, all of which an output layer that is tied fills."""

DECODERS_ONLY = {"forest"}
"""They refuse every encoder, and are tested on decoders in folders of their own."""

LONGER = ("lamp", "lamp-l2l1", "grab")
"""They descend as dlg does, which runs on every kind of target, and take several times as long."""

LEARNT = {"lti", "lti-p"}
"""They read an update with a network that was trained before, and leave nothing to chance."""

TEXTS = ["the cat sat on a mat", "dog ran"]
LABELS = [1, 0]

every_attack = pytest.mark.parametrize("attack", list(QUICK))
every_kind = pytest.mark.parametrize(("family", "task"), TARGET_KINDS)


def kinds_of(attack: str) -> list[tuple[str, Task]]:
    """Return the kinds of target that an attack is run on: every second one where the engine alone depends on them."""
    kinds = [kind for kind in TARGET_KINDS if attack not in CLASSIFIERS_ONLY or kind[1] == "classification"]
    return kinds[LONGER.index(attack) % 2 :: 2] if attack in LONGER else kinds


every_attack_and_kind = pytest.mark.parametrize(
    ("attack", "family", "task"), [(attack, *kind) for attack in QUICK for kind in kinds_of(attack)]
)


def each_attack_on_some_kind(first: int) -> pytest.MarkDecorator:
    """Run every attack once, and every kind of target with some attack."""
    pairs = []
    for number, name in enumerate(QUICK):
        kinds = [kind for kind in TARGET_KINDS if name not in CLASSIFIERS_ONLY or kind[1] == "classification"]
        pairs.append((name, *kinds[(first + number) % len(kinds)]))
    return pytest.mark.parametrize(("attack", "family", "task"), pairs)


def quick(name: str) -> Attack:
    trained = {"inverter": untrained_inverters()} if name in LEARNT else {}
    return find_attack(name).with_settings(settings=QUICK[name] | trained)


def captured(target: Target, **client: Any) -> tuple[Update, Knowledge]:
    labels = LABELS if target.task == "classification" else None
    known = Knowledge(labels=labels, lengths=target.encode(TEXTS).lengths)
    return Client(target, **{"embeddings": "trained"} | client).update(TEXTS, labels), known


@functools.cache
def attacked(attack: str, family: str, task: Task) -> tuple[Target, Update, Knowledge, Reconstruction]:
    """Return one run of an attack, which several tests look at."""
    target = small_target(family, task)
    update, known = captured(target)
    return target, update, known, quick(attack)(target, update, known, seed=4)


def timeless(result: Reconstruction) -> Reconstruction:
    return dataclasses.replace(result, seconds=0.0)


# --- every attack on every kind of target --------------------------------------------------------------------------


@every_attack_and_kind
def test_a_reconstruction_has_the_right_shape_and_says_where_it_comes_from(
    attack: str, family: str, task: Task
) -> None:
    target, _, known, result = attacked(attack, family, task)
    assert tuple(map(len, result.token_ids)) == known.lengths
    assert result.texts == tuple(target.decode(ids) for ids in result.token_ids)
    assert result.labels == (known.labels if task == "classification" else None)
    assert math.isfinite(result.loss)
    assert result.loss >= 0
    assert result.seconds > 0
    assert (result.attack, result.seed, result.version) == (attack, 4, __version__)
    assert result.model_hash == target.fingerprint
    assert result.settings == dataclasses.asdict(quick(attack))
    assert result.tokenizer is target.tokenizer


@every_attack_and_kind
def test_special_tokens_stand_at_their_places_and_nowhere_else(attack: str, family: str, task: Task) -> None:
    target, _, _, result = attacked(attack, family, task)
    before, after = target.special_tokens
    for ids in result.token_ids:
        inner = ids[len(before) : len(ids) - len(after)]
        assert ids == (*before, *inner, *after)
        assert not set(inner) & set(impossible_words(target).tolist())


def each_other_kind_with_an_attack() -> pytest.MarkDecorator:
    """Run the kinds of target that the table above leaves out, each with an attack, and nearly every attack on some."""
    pairs = []
    for number, kind in enumerate(kind for kind in ALL_KINDS if kind not in TARGET_KINDS):
        refused = LEARNT | (CLASSIFIERS_ONLY if kind[1] == "causal-lm" else set())
        able = [name for name in QUICK if name not in refused]
        pairs.append((able[number % len(able)], *kind))
    return pytest.mark.parametrize(("attack", "family", "task"), pairs)


@each_other_kind_with_an_attack()
def test_every_family_is_attacked(attack: str, family: str, task: Task) -> None:
    target = small_target(family, task)
    update, known = captured(target)
    result = quick(attack)(target, update, known, seed=4)
    assert tuple(map(len, result.token_ids)) == known.lengths
    assert math.isfinite(result.loss)
    assert result.texts == tuple(target.decode(ids) for ids in result.token_ids)


@each_attack_on_some_kind(0)
def test_the_same_seed_gives_the_same_result_and_another_seed_another_start(
    attack: str, family: str, task: Task
) -> None:
    target, update, known, first = attacked(attack, family, task)
    again, other = (quick(attack)(target, update, known, seed=seed) for seed in (4, 5))
    assert timeless(first) == timeless(again)
    if attack != "mosaic":  # what is read depends on no seed, and what is searched does
        assert (first.history[0].loss != other.history[0].loss) == (attack not in LEARNT | {"sieve", "auto"})


@each_attack_on_some_kind(3)
def test_an_attack_leaves_target_update_and_random_state_alone(attack: str, family: str, task: Task) -> None:
    target = small_target(family, task)
    update, known = captured(target)
    tensors = {name: tensor.clone() for name, tensor in update.tensors.items()}
    weights = {name: parameter.clone() for name, parameter in target.parameters.items()}
    state = torch.get_rng_state()
    quick(attack)(target, update, known)
    assert torch.equal(torch.get_rng_state(), state)
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.parameters.values())
    assert all(torch.equal(weights[name], parameter) for name, parameter in target.parameters.items())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in update.tensors.items())


@every_attack
@pytest.mark.parametrize("embeddings", ["frozen", "words-frozen", "trained"])
def test_attacks_take_what_each_kind_of_client_sends(attack: str, embeddings: str) -> None:
    target = small_target("bert")
    update, known = captured(target, embeddings=embeddings)
    if all(NEEDS[need](target, update) for need in find_attack(attack).needs):
        assert math.isfinite(quick(attack)(target, update, known).loss)
    else:
        with pytest.raises(GradleakError, match=f"{attack} needs .* gradients; this update has none"):
            quick(attack)(target, update, known)


@pytest.mark.parametrize("attack", sorted(CLASSIFIERS_ONLY & set(QUICK)))
def test_attacks_on_classifiers_refuse_a_language_model(attack: str) -> None:
    target = small_target("gpt2", "causal-lm")
    with pytest.raises(GradleakError, match=f"{attack} .*classifier.* causal-lm model"):
        quick(attack)(target, *captured(target))


@pytest.mark.parametrize(
    ("attack", "dtype"),
    [
        *((name, torch.float64) for name in QUICK),
        *zip(QUICK, itertools.cycle([torch.float16, torch.bfloat16])),
    ],
    ids=str,
)
def test_an_update_in_another_precision_is_taken(attack: str, bert: Target, dtype: torch.dtype) -> None:
    update, known = captured(bert)
    result = quick(attack)(bert, update.to("cpu", dtype), known, seed=4)
    assert math.isfinite(result.loss)
    if dtype == torch.float64:
        assert timeless(result) == timeless(attacked(attack, "bert", "classification")[-1])


@every_attack
def test_rounding_in_the_update_does_not_change_where_an_attack_starts(attack: str, bert: Target) -> None:
    """Another number of threads or a GPU rounds otherwise: the same seed must still tell the same story."""
    update, known = captured(bert)
    rounded = update.with_tensors({name: tensor * (1 + 1e-6) for name, tensor in update.tensors.items()})
    expected, found = attacked(attack, "bert", "classification")[-1], quick(attack)(bert, rounded, known, seed=4)
    assert found.history[0].texts == expected.history[0].texts
    assert found.history[0].loss == pytest.approx(expected.history[0].loss, rel=1e-3, abs=1e-6)


@every_attack
def test_a_listener_hears_of_the_end_and_changes_nothing(attack: str, bert: Target) -> None:
    update, known = captured(bert)
    heard: list[Progress] = []
    result = quick(attack)(bert, update, known, seed=4, listener=heard.append)
    assert timeless(result) == timeless(attacked(attack, "bert", "classification")[-1])
    assert heard
    assert heard[-1].step == heard[-1].total
    assert all(len(progress.texts) == len(TEXTS) for progress in heard)


@every_attack
def test_the_history_goes_forward_and_losses_only_fall(attack: str) -> None:
    history = attacked(attack, "bert", "classification")[-1].history
    assert history
    assert [snapshot.step for snapshot in history] == sorted({snapshot.step for snapshot in history})
    losses = [snapshot.loss for snapshot in history]
    assert losses == sorted(losses, reverse=True)
    assert all(len(snapshot.texts) == len(TEXTS) for snapshot in history)


# --- what an attack declares ---------------------------------------------------------------------------------------


def test_every_attack_is_in_the_table_of_these_tests() -> None:
    ours = {name for name, kind in ATTACKS.items() if kind.__module__.startswith("gradleak.")}
    assert set(QUICK) | DECODERS_ONLY == ours


def test_the_default_attack_is_one_of_them() -> None:
    assert DEFAULT_ATTACK in ATTACKS


@every_attack
def test_an_attack_declares_its_name_paper_needs_and_assumptions(attack: str) -> None:
    kind = find_attack(attack)
    assert kind.name == attack
    assert kind.paper
    assert kind.__doc__
    assert set(kind.needs) <= set(NEEDS)
    assert set(kind.assumes) <= set(FACTS)


@every_attack
def test_presets_are_valid_and_the_papers_values_are_the_defaults(attack: str) -> None:
    kind = find_attack(attack)
    assert {"paper", "best"} & set(kind.presets)
    assert "fast" in kind.presets
    assert kind.presets.get("paper", {}) == {}
    for preset, settings in kind.presets.items():
        built = kind.with_settings(preset)
        assert {key: getattr(built, key) for key in settings} == settings
        texts = {key: str(value) for key, value in settings.items()}
        plain = "paper" if "paper" in kind.presets else None
        assert kind.with_settings(plain, texts) == kind.with_settings(preset), "presets can be typed by hand too"


@every_attack
def test_where_no_preset_is_named_the_best_is_taken_and_else_the_papers(attack: str) -> None:
    kind = find_attack(attack)
    expected = "best" if "best" in kind.presets else "paper"
    assert kind.default_preset() == expected
    assert kind.with_settings() == kind.with_settings(expected)


@pytest.mark.parametrize("attack", ["lamp", "lamp-l2l1", "grab"])
def test_the_papers_presets_end_without_an_ordering_that_no_paper_has(attack: str) -> None:
    presets = find_attack(attack).presets
    built = {preset: find_attack(attack).with_settings(preset) for preset in presets}
    polish = {preset: getattr(one, "polish") for preset, one in built.items()}  # noqa: B009
    ours = {"best": 10, "fast": 10 if attack != "grab" else 2, "thorough": 10}
    assert polish == {preset: ours.get(preset, 0) for preset in presets}
    assert dataclasses.replace(built["best"], polish=0) == built["paper"], "the ordering is all that is added"  # type: ignore[call-arg]
    assert find_attack(attack)() == built["paper"], "an attack's own defaults are its paper's values"


def test_the_papers_values_of_dlg_and_tag_are_those_of_lamps_appendix() -> None:
    for attack in (Dlg(), Tag()):
        assert (attack.steps, attack.lr, attack.optimizer, attack.clip) == (2500, 0.1, "adam", 0.0)
        large = type(attack).with_settings("large")
        assert (large.steps, large.optimizer, large.linear, large.clip) == (10_000, "adamw", True, 1.0)
    assert Tag().alpha == 0.01
    assert Tag.with_settings("large").lr == 0.01


@every_attack
def test_repr_shows_every_setting(attack: str) -> None:
    built = quick(attack)
    for field in dataclasses.fields(built):
        assert f"{field.name}={getattr(built, field.name)!r}" in repr(built)


@pytest.mark.parametrize(
    ("name", "message"),
    [("tg", "unknown attack 'tg'; did you mean 'tag'"), ("DLG", "did you mean 'dlg'"), ("zzz", "known: .*dlg.*tag")],
)
def test_an_unknown_attack_says_what_is_near(name: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        find_attack(name)


# --- settings as text ----------------------------------------------------------------------------------------------


def test_settings_given_as_text_are_read_by_their_kind() -> None:
    texts = {"steps": "7", "lr": "1e-2", "linear": "True", "optimizer": "adamw", "clip": "2"}
    assert Dlg.with_settings(settings=texts) == Dlg(steps=7, lr=0.01, linear=True, optimizer="adamw", clip=2.0)
    assert Dlg.with_settings("large", {"linear": "no", "steps": "5"}).linear is False
    assert Dlg.with_settings("large", {"steps": "5"}).clip == 1.0
    assert isinstance(Dlg.with_settings(settings=texts).clip, float)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("YES", True), ("false", False), ("0", False), ("No", False)],
)
def test_truth_can_be_written_in_several_ways(text: str, value: bool) -> None:
    assert Dlg.with_settings(settings={"linear": text}).linear is value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("steps", "many", "setting steps takes a whole number, not 'many'"),
        ("steps", "1.5", "setting steps takes a whole number, not '1.5'"),
        ("steps", "-1", "steps"),
        ("lr", "fast", "setting lr takes a number, not 'fast'"),
        ("lr", "nan", "setting lr takes a number, not 'nan'"),
        ("lr", "inf", "setting lr takes a number, not 'inf'"),
        ("clip", "-1", "clip must be at least 0, not -1"),
        ("linear", "perhaps", "setting linear takes true or false, not 'perhaps'"),
        ("optimizer", "sgd", "optimizer.*adam"),
        ("lengths_kept", "0", "lengths_kept"),
        ("longest_tried", "0", "longest_tried"),
        ("step", "3", "unknown setting of dlg 'step'; did you mean 'steps'"),
        ("name", "3", "unknown setting of dlg 'name'"),
    ],
)
def test_a_bad_setting_is_refused_with_one_line(key: str, text: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        Dlg.with_settings(settings={key: text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attack", "key", "least"),
    [
        *(("lamp", key, 1) for key in ("steps", "steps_per_round", "moves", "starts", "permutations")),
        *(("grab", key, 1) for key in ("rounds", "passes", "beams", "starts", "permutations")),
        *((name, "alpha", 0) for name in ("tag", "lamp-l2l1", "grab")),
        *(("grab", "alternatives", 0), ("grab", "polish", 0), ("lamp", "alpha_lm", 0), ("lamp", "alpha_reg", 0)),
    ],
)
def test_too_few_of_something_are_refused(attack: str, key: str, least: int) -> None:
    with pytest.raises(GradleakError, match=f"^{key} must be at least {least}, not {least - 1}$"):
        find_attack(attack).with_settings(settings={key: str(least - 1)})
    find_attack(attack).with_settings(settings={key: str(least)})


@every_attack
def test_an_unknown_preset_says_what_is_near(attack: str) -> None:
    with pytest.raises(GradleakError, match=f"unknown preset of {attack} 'fats'; did you mean 'fast'"):
        find_attack(attack).with_settings("fats")


# --- what is checked before anything runs --------------------------------------------------------------------------


class Unstartable(Dlg):
    """An attack that must not be started."""

    def run(self, *_: object) -> Any:  # type: ignore[override]
        raise AssertionError("the attack was started")


def test_an_update_that_lacks_what_the_attack_needs_is_refused_before_it_starts(bert: Target) -> None:
    whole, known = captured(bert)
    only_words = whole.with_tensors({n: t for n, t in whole.tensors.items() if n in bert.embedding_parameters})
    message = "dlg needs gradients of layers; this update has none"
    with pytest.raises(GradleakError, match=message):
        Unstartable()(bert, only_words, known)
    with pytest.raises(GradleakError, match=message):
        Unstartable().many(bert, [whole, only_words], [known, known])


@every_kind
def test_needs_are_seen_in_what_each_kind_of_client_sends(family: str, task: Task) -> None:
    target = small_target(family, task)
    for embeddings, words in (("trained", True), ("words-frozen", False), ("frozen", False)):
        update, _ = captured(target, embeddings=embeddings)
        assert NEEDS["word-embedding gradients"](target, update) is words
        assert NEEDS["attention gradients"](target, update)
        assert NEEDS["gradients of layers"](target, update)
    if task == "classification":
        head = Update({f"{target.classifier}.weight": torch.zeros(1)})
        assert NEEDS["classifier gradients"](target, head)
        assert not NEEDS["attention gradients"](target, head)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"lengths": [8, 2]}, "a length of 2 tokens is not possible"),  # [CLS] and [SEP] alone
        ({"lengths": [41, 4]}, "a length of 41 tokens is not possible"),
        ({"lengths": [0, 4]}, "a length of 0 tokens"),
        ({"labels": [1, 2]}, "label 2 is not one of 2"),
        ({"labels": [-1, 0]}, "label -1 is not one of 2"),
        ({"longest": 41}, "a length of 41 tokens is not possible"),
        ({"longest": 2}, "a length of 2 tokens is not possible"),
    ],
    ids=str,
)
def test_knowledge_that_cannot_be_true_is_refused_before_it_starts(
    bert: Target, facts: dict[str, Any], message: str
) -> None:
    update, _ = captured(bert, embeddings="frozen")
    with pytest.raises(GradleakError, match=message):
        Unstartable()(bert, update, Knowledge(**facts))


def test_an_update_that_does_not_fit_is_refused_before_it_starts(bert: Target) -> None:
    update, known = captured(small_target("bert", seed=1))
    with pytest.raises(GradleakError, match="other weights"):
        Unstartable()(bert, update, known)
    spoiled = update.with_tensors({**update.tensors, "classifier.bias": torch.tensor([math.nan, 0.0])})
    with pytest.raises(GradleakError, match="NaN or Inf"):
        Unstartable()(bert, spoiled, known)


# --- the loss is what it is said to be -----------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ["dlg", "tag"])
@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=2, lr=0.01)], ids=["fedsgd", "fedavg"])
@pytest.mark.parametrize("embeddings", ["frozen", "trained"])
def test_the_loss_is_the_distance_of_the_recovered_texts_gradient(
    attack: str,
    embeddings: Any,
    fedavg: FedAvg | None,
) -> None:
    target = small_target("bert", dtype=torch.float64)
    update, known = captured(target, embeddings=embeddings, fedavg=fedavg)
    result = quick(attack)(target, update, known)
    again = Client(target, embeddings=embeddings).update(result.texts, result.labels).tensors
    differences = [
        tensor - again[name]
        for name, tensor in update.gradient().items()
        if name not in target.word_parameters and not name.endswith("key.bias")
    ]
    expected = sum(float(d.square().sum() + (0.01 * d.abs().sum() if attack == "tag" else 0)) for d in differences)
    assert result.loss == pytest.approx(expected, rel=1e-6)
