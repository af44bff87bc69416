"""Sentences are edited by their contexts, and one that others explain gives way to one that is missing."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.candidate_words import CandidateWords
from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.defended.context_search import ContextSearch
from gradleak.attacks.sieve.observed import EVEN, ObservedUpdate
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import load_target

TEXTS = ["The weather was cold and grey.", "My neighbour sold his boat.", "She likes to play chess."]


def searched() -> tuple[ContextSearch, list[Tensor]]:
    """Return a search in the update of three sentences, whose words are known, and the sentences."""
    target = load_target("tiny", 2)
    inputs, gradient = first_layer_inputs(target), Client(target).update(TEXTS, [0, 1, 1]).gradient()
    words = torch.tensor(sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids)))
    texts = [target.encode([text]).ids[0] for text in TEXTS]
    observed = ObservedUpdate(target, inputs, gradient, words, 16)
    found = torch.unique(torch.cat([ids[1:-1] for ids in texts]))
    candidates = CandidateWords(observed, observed.space.basis, found, missing=0)
    return ContextSearch(observed, ContextScore(target, inputs, gradient, EVEN), candidates), texts


def test_a_double_gives_way_to_the_sentence_that_is_missing() -> None:
    search, texts = searched()
    double = torch.cat([texts[0][:2], texts[0][3:]])
    found = search.without_doubles([texts[0], texts[1], double])
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in texts]


def test_sentences_that_do_not_explain_each_other_stay() -> None:
    search, texts = searched()
    assert [ids.tolist() for ids in search.without_doubles(texts)] == [ids.tolist() for ids in texts]
