"""Texts of several steps of Adam are read step by step, and nothing is claimed of a forged update."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.defended.batch_distance import batch_distance
from gradleak.attacks.sieve.defended.candidate_words import CandidateWords
from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.defended.context_search import ContextSearch
from gradleak.attacks.sieve.observed import DEEP, EVEN, ObservedUpdate
from gradleak.attacks.sieve.steps.reader import EFFORTS, StepReader
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from wide_targets import LABELS, TEXTS, ids_of, wider_target

ADAMW = FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw")


def searched(target: Target, update: Update) -> ContextSearch:
    words = torch.tensor(sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids)))
    inputs = first_layer_inputs(target)
    observed = ObservedUpdate(target, inputs, update.gradient(), words, 12, protocol=update.protocol).restored
    found = CandidateWords(observed, observed.space.basis, words)
    return ContextSearch(observed, ContextScore(target, inputs, observed.gradient, observed.context_weights), found)


def reader_of(target: Target, update: Update, texts: list[tuple[int, ...]]) -> StepReader:
    search = searched(target, update)
    distance = batch_distance(search.observed)
    reader = StepReader.of(search, distance, distance.labelled([list(ids) for ids in texts]))
    assert reader is not None
    return reader


def test_a_step_with_a_wrong_text_is_read_from_the_others() -> None:
    target = wider_target()
    update = Client(target, fedavg=ADAMW).update(TEXTS, LABELS)
    texts = ids_of(target)
    guess = list(texts)
    guess[1] = (*texts[1][:1], *reversed(texts[1][1:-1]), texts[1][-1])
    reader = reader_of(target, update, guess)
    assert reader.run(*EFFORTS[0])
    assert [tuple(ids.tolist()) for ids in reader.sentences] == texts
    assert list(reader.batch.labels) == LABELS


@pytest.mark.parametrize(
    ("training", "weights"),
    [(ADAMW, DEEP), (FedAvg(steps=1, lr=5e-5, optimizer="adamw"), EVEN), (FedAvg(steps=3, lr=0.1, batch=1), EVEN)],
)
def test_deep_layers_count_most_where_adam_took_several_steps(training: FedAvg, weights: tuple[float, ...]) -> None:
    target = wider_target()
    assert searched(target, Client(target, fedavg=training).update(TEXTS, LABELS)).observed.context_weights == weights


def test_a_forged_update_is_not_explained() -> None:
    target = wider_target()
    update = Client(target, fedavg=ADAMW).update(TEXTS, LABELS)
    name = target.layers[1].value.weight
    forged = update.with_tensors({**update.tensors, name: update.tensors[name].flip(0)})
    assert not reader_of(target, forged, ids_of(target)).run(*EFFORTS[0])


@pytest.mark.parametrize(
    "training",
    [
        FedAvg(steps=3, lr=5e-5, optimizer="adamw"),  # each step takes all texts
        FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adam", weight_decay=0.1),
        FedAvg(epochs=2, lr=5e-5, batch=1, optimizer="adamw"),
    ],
)
def test_steps_that_share_texts_or_decay_are_left_to_others(training: FedAvg) -> None:
    target = wider_target()
    search = searched(target, Client(target, fedavg=training).update(TEXTS, LABELS))
    distance = batch_distance(search.observed)
    assert StepReader.of(search, distance, distance.labelled([list(ids) for ids in ids_of(target)])) is None
