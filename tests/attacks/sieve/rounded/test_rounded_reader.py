from __future__ import annotations

import torch

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.rounded.reader import RoundedReader
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from wide_targets import LABELS, TEXTS, ids_of, wider_target


def test_of_a_sentence_and_its_near_miss_the_one_that_explains_more_is_kept() -> None:
    target = wider_target()
    update = Client(target, send="bf16").update(TEXTS, LABELS)
    words = torch.arange(5, len(target.word_embeddings))
    observed = ObservedUpdate(target, first_layer_inputs(target), update.tensors, words, 16, protocol=update.protocol)
    reader = RoundedReader(observed, 16, 1)
    truth = ids_of(target)
    near_miss = (*truth[2][:-1], truth[2][-2], truth[2][-1])  # its last word twice
    reader.fit.keep([near_miss, *truth])
    reader.drop_doubles()
    assert sorted(reader.found) == sorted(truth)
