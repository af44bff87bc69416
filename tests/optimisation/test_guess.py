from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TARGET_KINDS, small_target
from gradleak.optimisation import slots
from gradleak.optimisation.slots import Slots, impossible_words, nearest_words, pick_starts, trimmed
from gradleak.targets import Target, Task

BERT = small_target("bert")
GPT2 = small_target("gpt2")

lengths_of_starts = st.integers(1, 3).flatmap(
    lambda sequences: st.integers(1, 3).flatmap(
        lambda starts: st.lists(
            st.lists(
                st.lists(st.integers(3, 9), min_size=sequences, max_size=sequences), min_size=starts, max_size=starts
            ),
            min_size=1,
            max_size=3,
        )
    )
)


@settings(deadline=None)
@given(lengths_of_starts)
def test_slots_put_special_tokens_around_the_free_places_of_every_length(lengths: list[list[list[int]]]) -> None:
    for target, before, after in ((BERT, [2], [3]), (GPT2, [], [])):
        slots = Slots.of(target, lengths)
        longest = max(n for starts in lengths for sequences in starts for n in sequences)
        assert slots.ids.shape == (len(lengths), len(lengths[0]), len(lengths[0][0]), longest)
        for v, starts in enumerate(lengths):
            for s, sequences in enumerate(starts):
                for b, length in enumerate(sequences):
                    inner = length - len(before) - len(after)
                    padding = longest - length
                    assert slots.mask[v, s, b].tolist() == [True] * length + [False] * padding
                    free = [False] * len(before) + [True] * inner + [False] * (len(after) + padding)
                    assert slots.free[v, s, b].tolist() == free
                    fixed = before + [0] * inner + after + [0] * padding
                    assert slots.ids[v, s, b].tolist() == fixed


def test_slots_agree_with_the_frame_of_encoded_texts(any_target: Target) -> None:
    tokens = any_target.encode(["the cat sat", "dog ran"])
    slots = Slots.of(any_target, [[list(tokens.lengths)]])
    assert torch.equal(slots.mask[0, 0], tokens.mask)
    fixed = ~slots.free[0, 0]
    assert torch.equal(slots.ids[0, 0][fixed], tokens.ids[fixed])


def test_filling_changes_nothing_but_special_tokens_and_padding(any_target: Target) -> None:
    slots = Slots.of(any_target, [[[5, 3]]])
    embeddings = torch.randn(
        1, 1, 2, 5, any_target.word_embeddings.shape[1], generator=torch.Generator().manual_seed(0)
    )
    filled = slots.fill(any_target, embeddings)
    assert torch.equal(filled[slots.free], embeddings[slots.free])
    assert torch.equal(filled[~slots.free], any_target.embed(slots.ids[~slots.free]))


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), near=st.sampled_from([0, 1, 2, 3, 4]), scale=st.floats(1e-3, 1e3))
def test_projection_never_yields_special_tokens(seed: int, near: int, scale: float) -> None:
    """Not even for embeddings that are those of a special token."""
    noise = torch.randn(1, 2, 2, 6, 16, generator=torch.Generator().manual_seed(seed))
    for embeddings in (noise * scale, BERT.word_embeddings[near] * scale + 1e-3 * noise):
        slots = Slots.of(BERT, [[[6, 4], [3, 5]]])
        ids = slots.project(BERT, embeddings)
        assert not torch.isin(ids[slots.free], torch.tensor(BERT.tokenizer.all_special_ids)).any()
        assert torch.equal(ids[~slots.free], slots.ids[~slots.free])


@pytest.mark.parametrize(("family", "task"), TARGET_KINDS)
def test_the_word_nearest_to_a_words_embedding_is_that_word_at_any_length(family: str, task: Task) -> None:
    target = small_target(family, task)
    words = sorted(set(range(len(target.word_embeddings))) - set(impossible_words(target).tolist()))
    for scale in (0.1, 1.0, 30.0):
        assert nearest_words(target, target.word_embeddings[words] * scale, 1)[:, 0].tolist() == words


def test_words_are_the_same_however_many_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = torch.randn(7, 16, generator=torch.Generator().manual_seed(0))
    at_once = nearest_words(BERT, embeddings, 3)
    monkeypatch.setattr(slots, "PROJECTED_AT_ONCE", 2)
    assert torch.equal(nearest_words(BERT, embeddings, 3), at_once)


def test_words_that_no_text_has_are_impossible() -> None:
    target = small_target("bert")
    target.model.resize_token_embeddings(len(target.tokenizer) + 3)
    target.tokenizer.add_tokens(["[unused0]"])
    unused = target.tokenizer.convert_tokens_to_ids("[unused0]")
    impossible = impossible_words(target).tolist()
    assert set(target.tokenizer.all_special_ids) < set(impossible)
    assert {unused, len(target.word_embeddings) - 1} < set(impossible)
    assert not set(target.tokenizer("the cat sat .", add_special_tokens=False)["input_ids"]) & set(impossible)


def test_starts_are_picked_for_each_victim() -> None:
    tensor = torch.arange(2 * 3 * 4).view(2, 3, 4)
    chosen = torch.tensor([[2, 0], [1, 1]])
    assert torch.equal(pick_starts(tensor, chosen), torch.stack([tensor[0, [2, 0]], tensor[1, [1, 1]]]))
    slots = Slots.of(BERT, [[[3], [4], [5]], [[6], [7], [8]]])
    picked = slots.starts(chosen)
    assert picked.mask.sum(dim=-1).flatten().tolist() == [5, 3, 7, 7]


def test_trimming_leaves_the_tokens() -> None:
    ids = torch.tensor([[2, 9, 3, 0], [2, 9, 9, 3]])
    mask = torch.tensor([[True, True, True, False], [True] * 4])
    assert trimmed(ids, mask) == [[2, 9, 3], [2, 9, 9, 3]]
