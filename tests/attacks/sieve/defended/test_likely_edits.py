from __future__ import annotations

import torch

import gradleak as gl
from gradleak.attacks.sieve.defended.likely_edits import likely_edits
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.priors import load_prior
from gradleak.targets import Target


def texts_near(target: Target, text: str, *, prior: bool, resize: bool = True) -> list[str]:
    words = torch.arange(1000, len(target.word_embeddings))
    language_model = load_prior("embedded", target) if prior else None
    observed = ObservedUpdate(
        target, first_layer_inputs(target), {}, words, target.max_length, load_prior=lambda: language_model
    )
    groups = likely_edits(observed, target.encode([text]).ids[0], resize=resize)
    assert all(len(set(map(len, group.tolist()))) == 1 for group in groups)
    return [target.decode(ids) for group in groups for ids in group.tolist()]


def test_other_forms_and_expected_words_are_tried_and_the_sentence_itself_is_not() -> None:
    target = gl.load_target("tiny")
    near = texts_near(target, "he walk in the park", prior=True)
    assert "he walked in the park" in near
    assert "he walk in the park" not in near
    assert len(near) == len(set(near))
    assert any(text.endswith("park.") for text in near)


def test_nothing_is_inserted_without_a_prior_or_where_the_length_is_known() -> None:
    target = gl.load_target("tiny")
    length = len(target.encode(["he walk in the park"]).ids[0])
    for prior, resize in ((False, True), (True, False)):
        near = texts_near(target, "he walk in the park", prior=prior, resize=resize)
        assert {len(target.encode([text]).ids[0]) for text in near} == {length}
