"""The forward-only matcher agrees with the engine, which agrees with autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from conftest import FAMILY_NAMES, SMALL_WITHOUT_ATTENTION, PassesAfter, small_target
from gradleak.errors import GradleakError
from gradleak.federation import Client
from gradleak.matching import (
    DISTANCES,
    Candidates,
    ClassifierMatcher,
    Matcher,
    autograd_gradients,
    memory,
    select_parameters,
)
from gradleak.targets import Target

TEXTS = ["the cat sat on a mat", "dog ran"]
FAMILIES = [*FAMILY_NAMES, *SMALL_WITHOUT_ATTENTION]


def gradients(target: Target, count: int = 2) -> list[dict[str, Any]]:
    client = Client(target, embeddings="trained")
    return [client.update(TEXTS, [number % 2, 1]).gradient() for number in range(count)]


def guesses(target: Target, count: int = 7, victims: int = 2) -> Candidates:
    stream = torch.Generator().manual_seed(1)
    ids = torch.randint(5, len(target.word_embeddings), (victims, count, 2, 6), generator=stream)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[..., 1, 4:] = False
    labels = torch.randint(target.num_labels, (victims, count, 2), generator=stream)
    ids[:, 1, 0] = ids[:, 0, 0]  # a sequence that occurs twice
    return Candidates(ids, mask, labels)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_distances_are_those_of_the_engine(family: str, distance: str) -> None:
    target = small_target(family, num_labels=3, dtype=torch.float64)
    observed = gradients(target)
    names = select_parameters(target, observed[0], "classifier")
    candidates = guesses(target)
    engine = Matcher(target, observed, DISTANCES[distance](), names)
    assert_close(ClassifierMatcher(target, observed, DISTANCES[distance]())(candidates), engine(candidates))


def test_soft_labels_and_embeddings_are_scored_too(bert: Target) -> None:
    bert.to(dtype=torch.float64)
    observed, candidates = gradients(bert), guesses(bert)
    matcher = ClassifierMatcher(bert, observed, DISTANCES["l2"]())
    soft = torch.nn.functional.one_hot(candidates.labels, 2).double()
    for inputs, labels in ((bert.embed(candidates.inputs), candidates.labels), (candidates.inputs, soft)):
        assert_close(matcher(Candidates(inputs, candidates.mask, labels)), matcher(candidates))


def test_the_truth_has_no_distance_and_parts_do_not_matter(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = gradients(bert, 1)
    tokens = bert.encode(TEXTS)
    matcher = ClassifierMatcher(bert, observed, DISTANCES["l2"]())
    truth = Candidates(tokens.ids[None, None], tokens.mask[None, None], torch.tensor([[[0, 1]]]))
    assert float(matcher(truth)) < 1e-6 * float(observed[0]["classifier.weight"].norm())
    candidates = guesses(bert, victims=1)
    whole = matcher(candidates)
    monkeypatch.setattr("gradleak.matching.classifier_matcher.candidates_at_once", lambda *_: 2)
    assert_close(matcher(candidates), whole, rtol=1e-5, atol=0)
    assert matcher(candidates.select(slice(None), slice(0, 0))).shape == (1, 0)


def test_differences_are_those_of_the_gradients_themselves(bert: Target) -> None:
    bert.to(dtype=torch.float64)
    observed, candidates = gradients(bert), guesses(bert)
    matcher = ClassifierMatcher(bert, observed, DISTANCES["squared-l2"]())
    distances, differences = matcher.compare(candidates)
    assert_close(distances, matcher(candidates))
    names = ["classifier.weight", "classifier.bias"]
    whole = autograd_gradients(bert, candidates, names)
    expected = [torch.stack([g[name] for g in observed])[:, None] - whole[name] for name in names]
    assert_close(differences, torch.cat([part.flatten(2) for part in expected], dim=2))
    assert_close(differences.square().sum(dim=2), distances)


def test_gradients_of_the_sequences_add_up_to_the_gradient(bert: Target) -> None:
    bert.to(dtype=torch.float64)
    observed, candidates = gradients(bert), guesses(bert)
    matcher = ClassifierMatcher(bert, observed, DISTANCES["l2"]())
    terms = matcher.per_sequence_gradients(candidates)
    assert terms.shape[:3] == candidates.shape
    assert_close(matcher.goal[:, None] - terms.sum(dim=2), matcher.compare(candidates)[1])


def test_each_sequence_runs_once(bert: Target) -> None:
    rows: list[int] = []
    handle = bert.model.get_submodule("classifier").register_forward_pre_hook(lambda _, x: rows.append(len(x[0])))
    same = guesses(bert, victims=1)
    same = Candidates(
        same.inputs[:, :1].repeat(1, 9, 1, 1), same.mask[:, :1].repeat(1, 9, 1, 1), same.labels[:, :1].repeat(1, 9, 1)
    )
    matcher, before = ClassifierMatcher(bert, gradients(bert, 1), DISTANCES["l2"]()), sum(rows)
    for _ in range(2):  # nor again when it is asked for later
        matcher(same)
    handle.remove()
    assert sum(rows) - before == 2


def test_an_update_or_a_model_without_a_classifier_is_refused(bert: Target) -> None:
    without = {name: tensor for name, tensor in gradients(bert)[0].items() if not name.startswith("classifier")}
    language = small_target("gpt2", "causal-lm")
    for target, observed in ((bert, without), (language, Client(language).update(TEXTS).gradient())):
        with pytest.raises(GradleakError, match="no classifier gradient"):
            ClassifierMatcher(target, [observed], DISTANCES["l2"]())


@pytest.mark.parametrize(("asks", "compared"), [(0, 1), (1, 1), (3, 3)])
def test_what_there_was_no_time_for_is_infinitely_far(
    bert: Target, asks: int, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(memory.QUICK_PASS, "cpu", 1.0)  # one candidate after the other
    matcher, candidates = ClassifierMatcher(bert, gradients(bert), DISTANCES["l2"]()), guesses(bert)
    expected, lacking = matcher.compare(candidates)
    found = matcher.until(PassesAfter(asks))(candidates)
    assert_close(found[:, :compared], expected[:, :compared])
    assert found[:, compared:].isinf().all()
    distances, differences = matcher.until(PassesAfter(asks)).compare(candidates)
    assert_close(distances, found)
    assert_close(differences[:, :compared], lacking[:, :compared])
    assert not differences[:, compared:].any()
