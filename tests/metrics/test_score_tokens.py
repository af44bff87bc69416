"""Scores worked out by hand."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from gradleak.errors import GradleakError
from gradleak.metrics import SCORE_NAMES, BatchScores, Scores, score_tokens

PERFECT = dict.fromkeys(SCORE_NAMES, 100.0)
NOTHING = dict.fromkeys(SCORE_NAMES, 0.0)


def encode(tokenizer: PreTrainedTokenizerFast, *tokens: str) -> list[list[int]]:
    """Return one row of ids per text; special tokens are written out."""
    return [[tokenizer.vocab[token] for token in text.split()] for text in tokens]


def score(
    tokenizer: PreTrainedTokenizerFast,
    guess: list[str],
    truth: list[str],
    alignment: str = "assignment",
    scoring: str = "plain",
) -> BatchScores:
    return score_tokens(
        encode(tokenizer, *guess),
        encode(tokenizer, *truth),
        tokenizer,
        alignment=alignment,  # type: ignore[arg-type]  # names come from parametrize
        scoring=scoring,  # type: ignore[arg-type]
    )


def test_scores_of_one_sentence_match_the_working(tokenizer: PreTrainedTokenizerFast) -> None:
    # truth: the cat saw a dog; guess: the dog saw a cat .
    # ROUGE-1: the words are the same five (the full stop is no word): 100.
    # ROUGE-2: truth has the-cat, cat-saw, saw-a, a-dog; guess the-dog, dog-saw, saw-a, a-cat;
    #   one pair in common, P = R = 1/4: 25.
    # ROUGE-L: the saw a: P = R = 3/5: 60.
    # Tokens: the, saw, a stand in their places; guess has 6 tokens: 3/6 = 50.
    result = score(tokenizer, ["the dog saw a cat ."], ["the cat saw a dog"])
    assert result.as_dict() == pytest.approx(
        {"rouge1": 100, "rouge2": 25, "rougeL": 60, "exact": 0, "token_accuracy": 50}
    )


def test_precision_and_recall_are_joined_as_f_measure(tokenizer: PreTrainedTokenizerFast) -> None:
    # truth: the cat sat (3 words); guess: the cat (2 words).
    # ROUGE-1: P = 2/2, R = 2/3, F = 2 * 1 * 2/3 / (5/3) = 80.
    # ROUGE-2: P = 1/1, R = 1/2, F = 2/3 = 66.67. ROUGE-L: as ROUGE-1: 80. Tokens: 2/3.
    result = score(tokenizer, ["the cat"], ["the cat sat"])
    assert result.as_dict() == pytest.approx(
        {"rouge1": 80, "rouge2": 200 / 3, "rougeL": 80, "exact": 0, "token_accuracy": 200 / 3}
    )


def test_a_repeated_word_counts_as_often_as_it_occurs_in_both(tokenizer: PreTrainedTokenizerFast) -> None:
    # truth: the cat (2); guess: the the the the (4): one "the" in common, P = 1/4, R = 1/2, F = 1/3.
    assert score(tokenizer, ["the the the the"], ["the cat"]).rouge1 == pytest.approx(100 / 3)


def test_special_tokens_do_not_count(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["the cat [PAD]"], ["[CLS] the cat [SEP] [PAD] [PAD]"])
    assert result.as_dict() == PERFECT


def test_lamp_scoring_counts_separators_as_words(tokenizer: PreTrainedTokenizerFast) -> None:
    # truth: cls the cat sep; guess: cls a dog sep.
    # ROUGE-1: cls and sep in common, P = R = 2/4: 50. ROUGE-2: no pair: 0. ROUGE-L: cls sep: 50.
    # Exact match and token accuracy leave special tokens out: 0.
    guess, truth = ["[CLS] a dog [SEP]"], ["[CLS] the cat [SEP]"]
    assert score(tokenizer, guess, truth).as_dict() == NOTHING
    assert score(tokenizer, guess, truth, scoring="lamp").as_dict() == pytest.approx(
        {"rouge1": 50, "rouge2": 0, "rougeL": 50, "exact": 0, "token_accuracy": 0}
    )


def test_lamp_scoring_cuts_after_the_last_separator(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(
        tokenizer,
        ["[CLS] the cat [SEP] dog [PAD]"],
        ["[CLS] the cat [SEP] [PAD] [PAD]"],
        scoring="lamp",
    )
    # ROUGE sees cls the cat sep on both sides; by tokens the cat dog against the cat: 2/3.
    assert result.as_dict() == pytest.approx(
        {"rouge1": 100, "rouge2": 100, "rougeL": 100, "exact": 0, "token_accuracy": 200 / 3}
    )


def test_lamp_scoring_leaves_padding_out_where_no_separator_was_found(tokenizer: PreTrainedTokenizerFast) -> None:
    # cls the cat against cls the cat sep: P = 3/3, R = 3/4, F = 6/7.
    result = score(tokenizer, ["[CLS] the cat [PAD]"], ["[CLS] the cat [SEP] [PAD]"], scoring="lamp")
    assert result.rouge1 == pytest.approx(600 / 7)


@pytest.mark.parametrize("truth", ["cat", ".", "[CLS] [SEP]", "[PAD]"])
@pytest.mark.parametrize("scoring", ["plain", "lamp"])
def test_a_perfect_copy_scores_100_even_where_rouge_has_nothing_to_count(
    tokenizer: PreTrainedTokenizerFast, truth: str, scoring: str
) -> None:
    assert score(tokenizer, [truth], [truth], scoring=scoring).as_dict() == PERFECT


def test_different_texts_without_words_score_zero(tokenizer: PreTrainedTokenizerFast) -> None:
    assert score(tokenizer, ["."], ["!"]).as_dict() == NOTHING
    assert score(tokenizer, ["[CLS] [SEP]"], ["[CLS] cat [SEP]"]).as_dict() == NOTHING


def test_exact_match_compares_texts_and_token_accuracy_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["cat ##s"], ["cats"])
    assert (result.exact, result.token_accuracy) == (100, 0)


def test_assignment_uses_each_reconstruction_once(tokenizer: PreTrainedTokenizerFast) -> None:
    # truths: 0 "the cat sat", 1 "the cat saw"; guesses: 0 "the cat sat", 1 "dog".
    # ROUGE-1: truth 0 with guess 0: 100; truth 1 with guess 0: 2/3; guess 1 suits neither.
    # Assignment: 0-0 and 1-1 sum to 100, 0-1 and 1-0 to 66.7: mean 50.
    result = score(tokenizer, ["the cat sat", "dog"], ["the cat sat", "the cat saw"])
    assert result.matches == (0, 1)
    assert result.rouge1 == pytest.approx(50)


def test_best_lets_a_reconstruction_serve_twice(tokenizer: PreTrainedTokenizerFast) -> None:
    # As above, but both take guess 0: (100 + 66.67) / 2 = 83.33.
    truth = ["the cat sat", "the cat saw"]
    result = score(tokenizer, ["the cat sat", "dog"], truth, alignment="best")
    assert result.matches == (0, 0)
    assert result.rouge1 == pytest.approx(250 / 3)


def test_assignment_is_optimal_over_the_batch_not_greedy(tokenizer: PreTrainedTokenizerFast) -> None:
    # truths: 0 "the cat saw a", 1 "the cat"; guesses: 0 "the cat", 1 "saw".
    # 0-0: P = 2/2, R = 2/4, F = 2/3; 0-1: P = 1, R = 1/4, F = 2/5; 1-0: 1; 1-1: 0.
    # A greedy pass over the truths gives 2/3 + 0; the optimum is 2/5 + 1.
    result = score(tokenizer, ["the cat", "saw"], ["the cat saw a", "the cat"])
    assert result.matches == (1, 0)
    assert result.rouge1 == pytest.approx(70)


@pytest.mark.parametrize("alignment", ["assignment", "best"])
def test_order_of_words_settles_a_tie_in_rouge1(tokenizer: PreTrainedTokenizerFast, alignment: str) -> None:
    truth = ["the cat saw a dog", "the dog saw a cat", "a dog saw the cat"]
    result = score(tokenizer, [truth[2], truth[0], truth[1]], truth, alignment=alignment)
    assert result.matches == (1, 2, 0)
    assert result.as_dict() == PERFECT


@pytest.mark.parametrize("alignment", ["assignment", "best"])
@pytest.mark.parametrize("truth", [["the cat .", "the cat !"], ["cats", "cat ##s"]])
def test_punctuation_and_tokens_settle_a_tie_in_rouge(
    tokenizer: PreTrainedTokenizerFast, alignment: str, truth: list[str]
) -> None:
    assert score(tokenizer, truth[::-1], truth, alignment=alignment).as_dict() == PERFECT


@pytest.mark.parametrize("alignment", ["assignment", "best"])
def test_equally_good_reconstructions_stay_in_their_places(tokenizer: PreTrainedTokenizerFast, alignment: str) -> None:
    result = score(tokenizer, ["cat"] * 3, ["cat"] * 3, alignment=alignment)
    assert result.matches == (0, 1, 2)


def test_a_reference_without_a_reconstruction_scores_zero(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["the dog"], ["the cat sat", "the dog"])
    assert result.matches == (None, 0)
    assert result.sentences[0] == Scores(0, 0, 0, 0, 0)
    assert result.exact == 50


def test_more_reconstructions_than_references_leave_the_worst_unmatched(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["dog", "the cat", "saw"], ["the cat"])
    assert (result.matches, result.exact) == ((1,), 100)


@pytest.mark.parametrize("alignment", ["assignment", "best"])
def test_no_reconstruction_at_all_scores_zero(tokenizer: PreTrainedTokenizerFast, alignment: str) -> None:
    result = score(tokenizer, [], ["the cat", "a dog"], alignment=alignment)
    assert result.matches == (None, None)
    assert result.as_dict() == NOTHING


# --- unknown tokens --------------------------------------------------------------------------------------------------


def test_an_unknown_token_is_a_word_that_was_not_recovered(tokenizer: PreTrainedTokenizerFast) -> None:
    # truth: the UNK cat; guess: the cat. ROUGE-1: P = 2/2, R = 2/3, F = 80. ROUGE-2: guess has the-cat, truth the-UNK
    # and UNK-cat: 0. ROUGE-L: the cat: 80. Tokens: "the" stands in its place: 1/3.
    result = score(tokenizer, ["the cat"], ["the [UNK] cat"])
    assert result.as_dict() == pytest.approx(
        {"rouge1": 80, "rouge2": 0, "rougeL": 80, "exact": 0, "token_accuracy": 100 / 3}
    )
    assert result.unrepresentable == (0,)


def test_an_unknown_token_is_not_matched_by_another(tokenizer: PreTrainedTokenizerFast) -> None:
    assert score(tokenizer, ["[UNK]"], ["[UNK]"]).as_dict() == NOTHING
    assert score(tokenizer, [""], ["[UNK]"]).as_dict() == NOTHING


def test_an_unknown_token_in_a_reconstruction_is_a_wrong_word(tokenizer: PreTrainedTokenizerFast) -> None:
    # P = 2/3, R = 2/2, F = 80.
    result = score(tokenizer, ["the [UNK] cat"], ["the cat"])
    assert (result.exact, result.unrepresentable) == (0, ())
    assert result.rouge1 == pytest.approx(80)
    assert result.token_accuracy == pytest.approx(100 / 3)


def test_lamp_scoring_counts_unknown_tokens_as_words_as_its_code_does(tokenizer: PreTrainedTokenizerFast) -> None:
    guess = truth = ["[CLS] the [UNK] cat [SEP]"]
    result = score(tokenizer, guess, truth, scoring="lamp")
    assert (result.rouge1, result.rouge2, result.rougeL) == (100, 100, 100)
    assert result.exact == 0
    assert result.token_accuracy == pytest.approx(200 / 3)


# --- texts that occur several times, and guesses beyond the batch ----------------------------------------------------


def test_a_text_that_occurs_twice_is_one_secret(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["the cat", "a dog"], ["the cat", "a dog", "the cat"])
    assert (result.matches, result.exact, result.surplus) == ((0, 1, 0), 100, 0)


def test_a_secret_is_found_or_not_whatever_else_resembles_it(tokenizer: PreTrainedTokenizerFast) -> None:
    # The second guess resembles "the cat sat" more than "a dog": one for one it would be given to the second copy.
    result = score(tokenizer, ["the cat sat", "the cat a"], ["the cat sat", "the cat sat", "a dog"])
    assert result.matches == (0, 0, 1)
    assert [s.exact for s in result.sentences] == [100, 100, 0]


def test_a_text_found_twice_may_serve_two_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    truth = encode(tokenizer, "the cat sat", "the cat saw")
    guess = encode(tokenizer, "the cat sat")
    assert score_tokens(guess, truth, tokenizer).matches == (0, None)
    assert score_tokens(guess, truth, tokenizer, copies=[2]).matches == (0, 0)


def test_copies_that_equal_sentences_use_up_serve_no_other(tokenizer: PreTrainedTokenizerFast) -> None:
    truth = encode(tokenizer, "the cat sat", "the cat sat", "the cat saw")
    guess = encode(tokenizer, "the cat sat")
    assert score_tokens(guess, truth, tokenizer, copies=[2]).matches == (0, 0, None)
    assert score_tokens(guess, truth, tokenizer, copies=[3]).matches == (0, 0, 0)


@pytest.mark.parametrize("alignment", ["assignment", "best"])
def test_guesses_beyond_the_batch_cost_precision(tokenizer: PreTrainedTokenizerFast, alignment: str) -> None:
    result = score(tokenizer, ["a dog", "the cat", "saw", "the the"], ["the cat"], alignment=alignment)
    assert (result.exact, result.precision, result.surplus) == (100, 25, 3)


def test_the_same_guess_twice_is_one_text(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["the cat", "the cat", "a dog"], ["the cat"])
    assert (result.precision, result.surplus) == (50, 1)


def test_as_many_guesses_as_sentences_are_no_surplus(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["the cat a", "the cat"], ["the cat sat", "the cat sat"])
    assert (result.precision, result.surplus) == (0, 0)


def test_nothing_returned_has_no_precision(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, [], ["the cat"])
    assert (result.precision, result.surplus) == (None, 0)


def test_numbers_that_do_not_fit_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(tokenizer, "the cat")
    with pytest.raises(GradleakError, match="2 copies do not fit 1 sentences"):
        score_tokens(ids, ids, tokenizer, copies=[1, 2])
    with pytest.raises(GradleakError, match="2 texts do not fit 1 sentences"):
        score_tokens(ids, ids, tokenizer, texts=["the cat", "a dog"])


def test_no_references_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(GradleakError, match="no reference sentences"):
        score(tokenizer, ["cat"], [])


def test_unknown_names_are_refused_with_the_nearest_one(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(GradleakError, match=r"unknown alignment 'asignment'.*'assignment'"):
        score(tokenizer, ["cat"], ["cat"], alignment="asignment")
    with pytest.raises(GradleakError, match=r"unknown scoring 'lampp'.*'lamp'"):
        score(tokenizer, ["cat"], ["cat"], scoring="lampp")


def test_scores_have_the_names_of_the_interface(tokenizer: PreTrainedTokenizerFast) -> None:
    result = score(tokenizer, ["cat"], ["cat"])
    assert SCORE_NAMES == ("rouge1", "rouge2", "rougeL", "exact", "token_accuracy")
    assert tuple(result.as_dict()) == tuple(result.sentences[0].as_dict()) == SCORE_NAMES
    assert all(getattr(result, name) == 100 for name in SCORE_NAMES)
