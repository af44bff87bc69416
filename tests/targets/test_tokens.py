"""Rows of token ids become padded batches."""

from __future__ import annotations

import torch

from gradleak.targets import Target


def test_rows_are_padded_on_the_right_with_the_tokenizers_id(any_target: Target) -> None:
    rows = [[5, 6, 7], [8], [9, 5]]
    ids, mask = any_target.pad(rows)
    pad = any_target.tokenizer.pad_token_id
    assert ids.tolist() == [[5, 6, 7], [8, pad, pad], [9, 5, pad]]
    assert mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert (ids.dtype, mask.dtype) == (torch.long, torch.bool)
    assert ids.device == mask.device == any_target.device


def test_an_empty_row_is_all_padding(bert: Target) -> None:
    tokens = bert.pad([[], [5]])
    assert tokens.lengths == (0, 1)
    assert not tokens.mask[0].any()


def test_texts_are_encoded_as_their_padded_rows(any_target: Target) -> None:
    texts = ["the cat sat on a mat", "a dog"]
    encoded, padded = any_target.encode(texts), any_target.pad(any_target.tokenizer(texts)["input_ids"])
    assert torch.equal(encoded.ids, padded.ids)
    assert torch.equal(encoded.mask, padded.mask)
