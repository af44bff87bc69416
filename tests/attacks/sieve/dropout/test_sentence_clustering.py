from __future__ import annotations

import torch

from gradleak.attacks.sieve.dropout.sentence_clustering import cluster_rows

WIDTH = 64


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_tokens_are_sorted_into_their_sentences() -> None:
    lengths = [5, 3, 7]
    positions = [p for n in lengths for p in range(n)]
    each = drawn(WIDTH, sum(lengths))
    start = 0
    for n in lengths:  # softmax: the key gradients of a sentence sum to zero
        each[:, start + n - 1] -= each[:, start : start + n].sum(dim=1)
        start += n
    rows = drawn(sum(lengths), WIDTH, seed=4)
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    found = cluster_rows((each @ rows).float(), rows[shuffled], [positions[i] for i in shuffled], 3)
    assert found.complete
    assert found.spread < 1e-3
    sentences = sorted(sorted(int(shuffled[row]) for row in sentence) for sentence in found.sentences)
    assert sentences == [list(range(5)), list(range(5, 8)), list(range(8, 15))]


def test_a_missing_row_is_noticed() -> None:
    rows, each = drawn(6, WIDTH, seed=4), drawn(WIDTH, 6)
    found = cluster_rows(each @ rows, rows, [0, 0, 1, 1, 3, 2], 2)
    assert not found.complete


def test_rows_that_were_not_found_do_not_spoil_the_sorting_of_the_others() -> None:
    lengths = [6, 6, 6]
    each = drawn(WIDTH, 18)
    for start in (0, 6, 12):
        each[:, start + 5] -= each[:, start : start + 6].sum(dim=1)
    rows = drawn(18, WIDTH, seed=4)
    positions = [p for n in lengths for p in range(n)]
    kept = [row for row in range(18) if row not in (0, 9, 14)]  # one of them the start of a sentence
    found = cluster_rows((each @ rows).float(), rows[kept], [positions[row] for row in kept], 3)
    assert not found.complete
    assert found.spread < 1e-3
    sentences = sorted(sorted(kept[row] for row in sentence) for sentence in found.sentences)
    assert sentences == [[1, 2, 3, 4, 5], [6, 7, 8, 10, 11], [12, 13, 15, 16, 17]]
