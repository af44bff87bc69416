from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_target, small_tokenizer
from gradleak.errors import GradleakError
from gradleak.targets import Target

WORDS = ["cat", "dog", "sat", "red", "mat", "."]
BERT = small_target("bert")
GPT2 = small_target("gpt2")


def test_special_tokens_are_those_that_the_tokenizer_puts_around_a_text(any_target: Target) -> None:
    expected = ((), ()) if "causal-lm" in any_target.family.tasks else ((2,), (3,))
    assert any_target.special_tokens == expected


def test_word_directions_follow_the_table() -> None:
    target = small_target("bert")
    assert target.word_directions is target.word_directions
    for _ in range(2):
        assert torch.equal(target.word_directions, torch.nn.functional.normalize(target.word_embeddings, dim=-1))
        with torch.no_grad():
            target.word_embeddings[3] += 1


def test_every_parameter_has_an_owner(any_target: Target) -> None:
    for target in (any_target, any_target.to(dtype=torch.float64)):
        named = {
            name: getattr(module, own)
            for module, names in target.parameter_owners.items()
            for own, name in names.items()
        }
        assert named.keys() == target.parameters.keys()
        assert all(named[name] is parameter for name, parameter in target.parameters.items())


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=1, max_size=4))
def test_texts_come_back_from_their_tokens(texts: list[list[str]]) -> None:
    for target, specials in ((BERT, 2), (GPT2, 0)):
        tokens = target.encode([" ".join(words) for words in texts])
        assert tokens.lengths == tuple(len(words) + specials for words in texts)
        assert tokens.ids.shape == tokens.mask.shape == (len(texts), max(tokens.lengths))
        for words, row, keep in zip(texts, tokens.ids, tokens.mask, strict=True):
            assert target.decode(row.tolist()).split() == words
            assert (row[~keep] == target.tokenizer.pad_token_id).all()
            assert keep.tolist() == sorted(keep.tolist(), reverse=True)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "there is no text"),
        ("the cat sat", "must be a list of strings, not one string"),
        ([""], "text 1 is empty"),
        (["the cat", "   "], "text 2 is empty"),
        (["cat", "cat " * 39], "text 2 has 41 tokens; small-bert takes at most 40"),
    ],
)
def test_texts_that_cannot_be_encoded_are_refused_with_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        BERT.encode(texts)
    assert "\n" not in str(caught.value)


def test_padding_is_on_the_right_even_if_the_tokenizer_likes_it_on_the_left() -> None:
    tokenizer = small_tokenizer()
    tokenizer.padding_side = "left"
    target = Target(copy.deepcopy(BERT.model), tokenizer, BERT.family)
    assert target.encode(["cat", "cat sat"]).mask.tolist() == [[True, True, True, False], [True] * 4]


def test_a_tokenizer_is_left_as_it_is() -> None:
    tokenizer = small_tokenizer(special=False)
    tokenizer.pad_token = None
    tokenizer.padding_side = "left"
    Target(copy.deepcopy(GPT2.model), tokenizer, GPT2.family).encode(["cat", "cat sat"])
    assert tokenizer.pad_token is None
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize(("pad", "end", "filled"), [(None, "[SEP]", 3), (None, None, 1), ("[PAD]", "[SEP]", 0)])
def test_positions_without_a_token_are_filled_with_an_id_that_no_text_has(
    pad: str | None, end: str | None, filled: int
) -> None:
    tokenizer = small_tokenizer(special=False)
    tokenizer.pad_token, tokenizer.eos_token = pad, end
    target = Target(copy.deepcopy(GPT2.model), tokenizer, GPT2.family)
    tokens = target.encode(["cat", "cat sat"])
    assert target.pad_id in target.impossible_ids
    assert tokens.ids[0].tolist()[1] == target.pad_id
    if end or pad:
        assert target.pad_id == filled
    assert tokens.lengths == (1, 2)


def test_a_padding_token_that_ends_every_text_marks_no_padding() -> None:
    tokenizer = small_tokenizer()
    tokenizer.pad_token = "[SEP]"
    target = Target(copy.deepcopy(BERT.model), tokenizer, BERT.family)
    assert target.special_tokens == ((2,), (3,))
    assert target.pad_id not in (2, 3)
    tokens = target.encode(["cat", "cat sat"])
    assert tokens.lengths == (3, 4)
    assert tokens.ids[0].tolist() == [2, 7, 3, target.pad_id]


def test_num_labels_are_classes_or_for_a_language_model_words() -> None:
    assert small_target("bert", num_labels=5).num_labels == 5
    assert small_target("gpt2", "causal-lm", num_labels=5).num_labels == len(small_tokenizer())


def test_a_task_that_the_family_does_not_know_is_refused() -> None:
    with pytest.raises(GradleakError, match="bert models are not supported for causal-lm; try classification"):
        Target(copy.deepcopy(BERT.model), BERT.tokenizer, BERT.family, task="causal-lm")


def test_a_target_is_in_evaluation_mode_and_requires_no_gradient(any_target: Target) -> None:
    assert not any_target.model.training
    assert not any(parameter.requires_grad for parameter in any_target.parameters.values())


def test_tied_parameters_appear_once() -> None:
    names = list(small_target("gpt2", "causal-lm").parameters)
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


def test_repr_names_model_family_and_task() -> None:
    assert repr(BERT) == "Target('small-bert', family='bert', task='classification', num_labels=2)"


def test_fingerprint_changes_with_any_one_weight(any_target: Target) -> None:
    kind = any_target.family.name, any_target.task
    before = any_target.fingerprint
    assert small_target(*kind).fingerprint == before
    for name in any_target.parameters:
        other = small_target(*kind)
        with torch.no_grad():
            other.parameters[name].view(-1)[-1] += 1e-3
        assert other.fingerprint != before, name


def test_fingerprint_follows_a_weight_that_is_changed_later() -> None:
    target = small_target("bert")
    before = target.fingerprint
    with torch.no_grad():
        target.parameters["classifier.bias"] += 1.0
    assert target.fingerprint != before


def test_fingerprint_depends_on_names_and_shapes_too() -> None:
    square = small_target("bert")
    flat = small_target("bert")
    weight = flat.model.classifier.weight.detach()
    flat.model.classifier.weight = torch.nn.Parameter(weight.reshape(-1, 2), requires_grad=False)
    assert flat.fingerprint != square.fingerprint


def test_fingerprint_stays_through_a_round_trip_to_float64() -> None:
    expected = small_target("bert").fingerprint
    wide = small_target("bert").to(dtype=torch.float64)
    assert wide.fingerprint == expected
    assert small_target("bert").to(dtype=torch.float64).to("cpu", torch.float32).fingerprint == expected


def test_moving_gives_the_target_itself_with_its_new_dtype() -> None:
    target = small_target("bert")
    assert target.to(dtype=torch.float64) is target
    assert target.dtype == torch.float64
    assert target.device == torch.device("cpu")
