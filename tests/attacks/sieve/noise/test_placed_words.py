from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.attacks.sieve.noise.placed_words import PlacedWords
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from wide_targets import ids_of, wider_target

ANY_ORDER = ["bert", "roberta", "distilbert", "albert"]
POSITIONS = 12


def placed_words(target: Target) -> PlacedWords:
    return PlacedWords(target, first_layer_inputs(target), torch.arange(5, len(target.word_embeddings)), POSITIONS)


def in_slots(target: Target, placed: PlacedWords, ids: tuple[int, ...], order: list[int]) -> Tensor:
    """Return embeddings `[tokens, width]` of a sentence whose words stand in slots in another order."""
    rows = target.embed(torch.tensor(ids))
    for slot, position in enumerate(order, start=1):
        rows[slot] = placed.embedding(ids[position], position, slot)
    return rows


@pytest.mark.parametrize("family", ANY_ORDER)
def test_a_model_sees_the_same_sentence_whatever_slots_its_words_stand_in(family: str) -> None:
    target = wider_target(family)
    (ids,) = ids_of(target, ["the cat sat on a mat"])
    order = [4, 1, 6, 2, 5, 3, *range(7, len(ids))]
    embeddings = in_slots(target, placed_words(target), ids, order)
    there = torch.ones(1, len(ids), dtype=torch.bool)
    assert placed_words(target).any_order
    expected = target.logits(target.embed(torch.tensor(ids))[None], there)
    torch.testing.assert_close(target.logits(embeddings[None], there), expected)


@pytest.mark.parametrize("family", ANY_ORDER)
def test_the_word_and_its_position_are_read_off_the_vector_of_any_slot(family: str) -> None:
    target = wider_target(family)
    placed = placed_words(target)
    for token, position, slot in [(7, 1, 9), (20, 11, 1), (33, 5, 5)]:
        found = placed.nearest(placed.embedding(token, position, slot), slot)
        assert (found.token, found.position) == (token, position)
        assert found.cosine == pytest.approx(1.0, abs=1e-4)
        assert placed.nearest(placed.embedding(token, position, slot), slot, {position}).position != position


@pytest.mark.parametrize("family", ["gpt2", "mpnet"])
def test_where_the_order_of_slots_counts_a_word_stays_in_its_slot(family: str) -> None:
    target = wider_target(family)
    placed = placed_words(target)
    assert not placed.any_order
    assert placed.nearest(target.word_embeddings[9], 3) == placed.nearest(target.word_embeddings[9], 3, {4})
    assert placed.nearest(target.word_embeddings[9], 3)[1:] == (9, 3)
