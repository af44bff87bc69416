from __future__ import annotations

import hashlib
import re

import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM, GPT2LMHeadModel

from gradleak.assets import asset_path, embedded_names
from gradleak.assets.models import load_embedded_masked_lm, load_embedded_prior

MEBIBYTE = 2**20

trained = pytest.mark.skipif(
    not all((asset_path(name) / "model.safetensors").is_file() for name in embedded_names()),
    reason="the embedded models have not been trained yet",
)


@pytest.fixture(scope="module")
def prior() -> GPT2LMHeadModel:
    return load_embedded_prior()


def text_loss(model: GPT2LMHeadModel, text: str) -> float:
    tokenizer = AutoTokenizer.from_pretrained(asset_path("tiny"))
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)


def test_the_tokenizer_neither_pads_nor_cuts() -> None:
    tokenizer = AutoTokenizer.from_pretrained(asset_path("tiny"))
    assert tokenizer("The CAT.").input_ids == [101, 1996, 4937, 1012, 102]
    assert len(tokenizer("cat " * 200).input_ids) == 202
    assert tokenizer.model_max_length == 256
    assert len(tokenizer) == 30_522


@trained
def test_the_files_are_within_their_limits() -> None:
    sizes = [path.stat().st_size for name in embedded_names() for path in asset_path(name).iterdir() if path.is_file()]
    assert max(sizes) <= 16 * MEBIBYTE
    assert sum(sizes) <= 19.9 * MEBIBYTE


@trained
@pytest.mark.parametrize("name", embedded_names())
def test_the_card_tells_the_checksum_of_the_weights(name: str) -> None:
    card = (asset_path(name) / "CARD.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((asset_path(name) / "model.safetensors").read_bytes()).hexdigest()
    assert re.findall(r"[0-9a-f]{64}", card) == [digest]


@trained
def test_tiny_is_a_bert_that_guesses_a_masked_word() -> None:
    state = torch.get_rng_state()
    model = load_embedded_masked_lm()
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(model, BertForMaskedLM)
    assert not model.training
    words = model.get_input_embeddings().weight
    assert words.shape == (30_522, 128)
    assert words.dtype == torch.float32
    assert model.get_output_embeddings().weight is words
    assert model.config.hidden_dropout_prob == 0.1
    tokenizer = AutoTokenizer.from_pretrained(asset_path("tiny"))
    batch = tokenizer("he [MASK] not know what to say.", return_tensors="pt")
    with torch.no_grad():
        best = model(**batch).logits[0, 2].topk(5).indices
    assert "did" in tokenizer.convert_ids_to_tokens(best.tolist())


@trained
@pytest.mark.parametrize("shuffle", ["mat the on sat cat the", "the cat on sat the mat", "cat the sat on mat the"])
def test_the_prior_prefers_a_sentence_to_its_shuffle(prior: GPT2LMHeadModel, shuffle: str) -> None:
    assert isinstance(prior, GPT2LMHeadModel)
    assert not prior.training
    assert text_loss(prior, "the cat sat on the mat") < text_loss(prior, shuffle)
