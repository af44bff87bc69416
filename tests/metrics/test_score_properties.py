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
# Ids 0 to 3 are special, 1 the unknown token; the vocabulary is small so that ties and permutations are common.
UNKNOWN = 1
sentences = st.lists(st.integers(0, 13), max_size=6)
known = st.lists(st.integers(0, 13).filter(lambda i: i != UNKNOWN), max_size=6)
batches = st.lists(sentences, min_size=1, max_size=4)
known_batches = st.lists(known, min_size=1, max_size=4)
alignments: st.SearchStrategy[Alignment] = st.sampled_from(["assignment", "best"])
scorings: st.SearchStrategy[Scoring] = st.sampled_from(["plain", "lamp"])


@light
@given(data=st.data(), truth=known_batches, alignment=alignments, scoring=scorings)
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
    assert (result.precision, result.surplus, result.unrepresentable) == (100, 0, ())


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
def test_assignment_gives_no_reconstruction_to_two_different_secrets(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], truth: list[list[int]]
) -> None:
    # What is equal without special tokens is one secret.
    secrets = [tuple(i for i in row if i == UNKNOWN or i > 3) for row in truth]
    matches = score_tokens(guess, truth, tokenizer).matches
    used = {(secret, m) for secret, m in zip(secrets, matches, strict=True) if m is not None}
    assert len({m for _, m in used}) == len(used)
    guesses = {tuple(i for i in row if i == UNKNOWN or i > 3) for row in guess}
    assert len({secret for secret, _ in used}) >= min(len({*secrets}), len(guesses))


@light
@given(guess=st.lists(known, max_size=6), truth=known_batches)
def test_nothing_is_lost_where_one_secret_is_one_sentence(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], truth: list[list[int]]
) -> None:
    """Sharing what was found of a text that occurs twice never costs, compared with LAMP's one for one."""
    plain = [[i for i in row if i > 3] for row in guess], [[i for i in row if i > 3] for row in truth]
    one_for_one = score_tokens(*plain, tokenizer, scoring="lamp").rouge1  # no special tokens: the same words count
    assert score_tokens(*plain, tokenizer).rouge1 >= one_for_one - 1e-4


@light
@given(data=st.data(), guess=st.lists(sentences, max_size=4), truth=batches, alignment=alignments)
def test_a_reference_with_an_unknown_token_is_never_recovered(
    tokenizer: PreTrainedTokenizerFast,
    data: st.DataObject,
    guess: list[list[int]],
    truth: list[list[int]],
    alignment: Alignment,
) -> None:
    lossy = [[*row, UNKNOWN] for row in truth]
    result = score_tokens([*guess, *data.draw(st.permutations(lossy))], lossy, tokenizer, alignment=alignment)
    assert result.exact == result.right == 0
    assert max(max(s.as_dict().values()) for s in result.sentences) < 100
    assert result.unrepresentable == tuple(range(len(truth)))


@light
@given(guess=st.lists(sentences, max_size=6), more=sentences, truth=batches, alignment=alignments)
def test_a_wrong_guess_more_never_raises_precision_and_surplus_is_what_no_sentence_asked_for(
    tokenizer: PreTrainedTokenizerFast,
    guess: list[list[int]],
    more: list[int],
    truth: list[list[int]],
    alignment: Alignment,
) -> None:
    before = score_tokens(guess, truth, tokenizer, alignment=alignment)
    after = score_tokens([*guess, more], truth, tokenizer, alignment=alignment)
    assert 0 <= after.surplus <= max(0, len(guess) + 1 - len(truth))
    if after.right == before.right and before.precision is not None:
        assert (after.precision or 0) <= before.precision


@light
@given(guess=st.lists(sentences, min_size=1, max_size=3), truth=batches, copies=st.integers(1, 4))
def test_copies_score_as_the_same_text_returned_several_times(
    tokenizer: PreTrainedTokenizerFast, guess: list[list[int]], truth: list[list[int]], copies: int
) -> None:
    counted = score_tokens(guess, truth, tokenizer, copies=[copies] * len(guess))
    written = score_tokens([row for row in guess for _ in range(copies)], truth, tokenizer)
    assert counted.as_dict() == written.as_dict()
    assert (counted.precision, counted.surplus) == (written.precision, written.surplus)
