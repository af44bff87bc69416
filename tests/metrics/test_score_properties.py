"""What holds for all scores, whatever the sentences."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gradleak.metrics import SCORE_NAMES, Alignment, Scoring, score_tokens

light = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Ids 0 to 3 are special; the vocabulary is small so that ties and permutations are common.
sentences = st.lists(st.integers(0, 13), max_size=6)
batches = st.lists(sentences, min_size=1, max_size=4)
alignments: st.SearchStrategy[Alignment] = st.sampled_from(["assignment", "best"])
scorings: st.SearchStrategy[Scoring] = st.sampled_from(["plain", "lamp"])


@light
@given(data=st.data(), truth=batches, alignment=alignments, scoring=scorings)
def test_a_permuted_perfect_reconstruction_scores_100(
    tokenizer: PreTrainedTokenizerFast,
    data: st.DataObject,
    truth: list[list[int]],
    alignment: Alignment,
    scoring: Scoring,
) -> None:
    shuffled = data.draw(st.permutations(truth))
    result = score_tokens(shuffled, truth, tokenizer, alignment=alignment, scoring=scoring)
    assert result.as_dict() == dict.fromkeys(SCORE_NAMES, 100.0)


@light
@given(data=st.data(), words=st.lists(st.integers(4, 13), min_size=2, max_size=6))
def test_permutations_of_the_same_words_are_told_apart(
    tokenizer: PreTrainedTokenizerFast, data: st.DataObject, words: list[int]
) -> None:
    truth = [data.draw(st.permutations(words)) for _ in range(3)]
    result = score_tokens(data.draw(st.permutations(truth)), truth, tokenizer)
    assert result.as_dict() == dict.fromkeys(SCORE_NAMES, 100.0)


@light
@given(guess=st.lists(sentences, max_size=4), truth=batches, alignment=alignments, scoring=scorings)
def test_scores_lie_between_0_and_100(
    tokenizer: PreTrainedTokenizerFast,
    guess: list[list[int]],
    truth: list[list[int]],
    alignment: Alignment,
    scoring: Scoring,
) -> None:
    result = score_tokens(guess, truth, tokenizer, alignment=alignment, scoring=scoring)
    assert all(0 <= value <= 100 for value in result.as_dict().values())
    assert len(result.sentences) == len(result.matches) == len(truth)


@light
@given(guess=st.lists(sentences, max_size=3), more=sentences, truth=batches)
def test_one_more_reconstruction_never_lowers_rouge1(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], more: list[int], truth: list[list[int]]
) -> None:
    before = score_tokens(guess, truth, tokenizer).rouge1
    # Ties are broken by less than this.
    assert score_tokens([*guess, more], truth, tokenizer).rouge1 >= before - 1e-4


@light
@given(guess=batches, truth=batches)
def test_best_is_never_below_assignment(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], truth: list[list[int]]
) -> None:
    best = score_tokens(guess, truth, tokenizer, alignment="best").rouge1
    assert best >= score_tokens(guess, truth, tokenizer).rouge1 - 1e-4


@light
@given(guess=st.lists(sentences, max_size=4), truth=batches)
def test_assignment_gives_no_reconstruction_away_twice(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], truth: list[list[int]]
) -> None:
    used = [m for m in score_tokens(guess, truth, tokenizer).matches if m is not None]
    assert len(used) == len(set(used)) == min(len(guess), len(truth))
