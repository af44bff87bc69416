"""Sentences are taken out of synthetic gradients of an attention whose rows are known."""

from __future__ import annotations

import torch

from gradleak.attacks.sieve.dropout.deflation import without_sentences
from gradleak.leakage.row_space import row_space

HEADS, HEAD_WIDTH = 6, 16
WIDTH = HEADS * HEAD_WIDTH


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(lengths: list[int]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, list[list[int]]]:
    """Return gradients of query, key and value, what the maps were fed, its keys, and the rows of each sentence."""
    count = sum(lengths)
    rows = drawn(count, WIDTH)
    keys = (rows @ drawn(WIDTH, WIDTH, seed=1)).view(count, HEADS, HEAD_WIDTH)
    numbers = torch.arange(count)
    sentences = [part.tolist() for part in torch.split(numbers, lengths)]
    query = torch.zeros(count, HEADS, HEAD_WIDTH, dtype=torch.float64)
    for seed, sentence in enumerate(sentences, start=2):
        scores = drawn(HEADS, len(sentence), len(sentence), seed=seed)
        scores -= scores.mean(dim=-1, keepdim=True)  # softmax: the gradients of a token's scores sum to zero
        query[sentence] = torch.einsum("hij,jhw->ihw", scores, keys[sentence])
    outputs = [query.view(count, WIDTH), drawn(count, WIDTH, seed=20), drawn(count, WIDTH, seed=21)]
    return [(each.T @ rows).float() for each in outputs], rows, keys, sentences


def test_whole_sentences_leave_the_space_of_the_others_rows_found_or_not() -> None:
    maps, rows, keys, sentences = attention([7, 5, 9, 6])
    lost = [sentences[2][4], sentences[3][0]]
    found = [row for row in range(len(rows)) if row not in lost]
    place = {row: number for number, row in enumerate(found)}
    known = [[place[row] for row in sentence if row in place] for sentence in sentences]
    space, whole = without_sentences(maps, rows[found], keys[found], known, row_space(maps))
    assert whole == known[:2]
    assert space is not None
    assert space.rank == 9 + 6
    assert space.outside(rows[sentences[2] + sentences[3]]).max() < 1e-4
    assert space.outside(rows[sentences[0] + sentences[1]]).min() > 0.5


def test_a_sentence_that_lacks_its_end_or_has_a_strange_row_is_not_whole() -> None:
    maps, rows, keys, sentences = attention([7, 5, 9])
    found = list(range(len(rows) - 1))
    swapped = [[*sentences[0][:-1], sentences[1][0]], [sentences[0][-1], *sentences[1][1:]]]
    space, whole = without_sentences(maps, rows[found], keys[found], [*swapped, sentences[2][:-1]], row_space(maps))
    assert (space, whole) == (None, [])


def test_a_sentence_as_long_as_a_head_is_wide_gives_no_equations() -> None:
    maps, rows, keys, sentences = attention([HEAD_WIDTH + 1, 6])
    found = list(range(len(rows) - 1))
    assert without_sentences(maps, rows[found], keys[found], sentences[:1], row_space(maps)) == (None, [])
