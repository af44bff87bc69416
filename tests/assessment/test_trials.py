from __future__ import annotations

import pytest

from gradleak.assessment.request import SafetyLine
from gradleak.assessment.trials import Trial, TrialResult, without_quotes
from gradleak.studies.records.outcome import Sentence

TRIAL = Trial(axis="own", name="own setup", sentences=2, batch_size=1, seconds=10.0)


def result(*scores: tuple[str, float, bool], seconds: float = 1.0) -> TrialResult:
    sentences = tuple(
        Sentence(
            batch=0,
            position=0,
            reference=text,
            reconstruction=text,
            label=None,
            rouge1=rouge,
            rouge2=rouge,
            rougeL=rouge,
            exact=100.0 * exact,
            token_accuracy=rouge,
            loss=None,
        )
        for text, rouge, exact in scores
    )
    return TrialResult(TRIAL, sentences, tuple(range(len(sentences))), seconds)


@pytest.mark.parametrize(
    ("scores", "leaks"),
    [
        ([("a b c d e", 19.9, False)], False),
        ([("a b c d e", 20.0, False)], True),
        ([("a b c d e", 0.0, False), ("a b c d e", 39.0, False)], False),
        ([("a b c d", 100.0, True), *[("x", 0.0, False)] * 9], False),  # four words: chance may find them
        (
            [("a b c d e", 100.0, True), *[("x", 0.0, False)] * 9],
            True,
        ),  # one long sentence is a leak, whatever the mean
    ],
)
def test_line_is_crossed_by_the_mean_or_by_one_long_sentence(
    scores: list[tuple[str, float, bool]], leaks: bool
) -> None:
    assert result(*scores).leaks(SafetyLine()) is leaks


def test_interval_is_given_from_thirty_sentences_on() -> None:
    few, many = result(*[("a", 50.0, False)] * 29), result(*[("a", 50.0, False)] * 30)
    assert few.scores()["rougeL"] == {"mean": 50.0, "min": 50.0, "max": 50.0, "low": None, "high": None}
    assert many.scores()["rougeL"]["low"] == 50.0


def test_least_and_most_are_those_of_single_sentences() -> None:
    scores = result(("a", 0.0, False), ("b", 100.0, True)).scores()["rougeL"]
    assert (scores["mean"], scores["min"], scores["max"]) == (50.0, 0.0, 100.0)


def test_attack_that_used_all_its_time_in_vain_is_told_from_one_that_was_done() -> None:
    assert result(("a", 0.0, False), seconds=9.5).out_of_time
    assert not result(("a", 0.0, False), seconds=1.0).out_of_time
    assert not result(("a", 100.0, True), seconds=9.5).out_of_time


def test_errors_quote_no_private_text() -> None:
    error = "text 1 has 700 tokens; tiny takes at most 128 ('the patient was given'…)"
    assert "patient" not in without_quotes(error)
    assert without_quotes("the client's update isn't finite") == "the client's update isn't finite"
