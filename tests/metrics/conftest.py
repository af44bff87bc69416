"""A tokenizer small enough to score by hand."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["the", "cat", "dog", "saw", "sat", "a", "##s", "cats", ".", "!"]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece: "cats" is one token, and the tokens "cat", "##s" give the same text."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL + WORDS)}
    core = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
