from __future__ import annotations

import torch

from gradleak.attacks.sieve.plain.skeletons import distinct_rows


def test_no_skeleton_is_no_sentence() -> None:
    assert distinct_rows(torch.empty(0, 5, dtype=torch.long)).dtype == torch.long


def test_rows_are_kept_once_in_order_of_first_appearance() -> None:
    assert distinct_rows(torch.tensor([[3, 1], [2, 2], [3, 1]])).tolist() == [[3, 1], [2, 2]]
