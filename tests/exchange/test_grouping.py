from __future__ import annotations

import pytest

from gradleak.exchange import group_by_key, length_class


def test_equal_keys_form_groups_in_the_order_of_their_first_appearance() -> None:
    assert group_by_key("banana") == [[0], [1, 3, 5], [2, 4]]
    assert group_by_key([]) == []


def test_a_group_is_cut_where_it_is_too_large() -> None:
    assert group_by_key("aabaaa", most=2) == [[0, 1], [3, 4], [5], [2]]


@pytest.mark.parametrize(("length", "expected"), [(1, 0), (8, 0), (9, 1), (16, 1), (17, 2)])
def test_lengths_up_to_a_limit_share_a_class(length: int, expected: int) -> None:
    assert length_class(length, (8, 16)) == expected
