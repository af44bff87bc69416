"""EDR recovers texts of every kind: repeated tokens, one token, pieces alone, forty tokens, batches."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Edr
from gradleak.attacks.adjustment import Judge, Text, adjust, neighbours, open_places
from gradleak.attacks.base import Victim
from gradleak.attacks.lexemes import LexemeMoves
from gradleak.attacks.places import read_places
from gradleak.attacks.puzzle import puzzles
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Progress, Reconstruction, Update
from gradleak.federation import Client
from gradleak.matching import L2L1, Cosine, Matcher
from gradleak.targets import Target, load_target

FORTY = "the big red cat b c d e f g h i j k l m n o p q r s t u v w x y z sat on mat ran dog a , . the"


@functools.cache
def model(**changes: Any) -> Target:
    """Return a small BERT that feels where words stand, as trained ones do."""
    target = small_target(
        "bert", dtype=torch.float64, hidden_size=48, num_attention_heads=4, intermediate_size=48, **changes
    )
    with torch.no_grad():
        for name, parameter in target.parameters.items():
            if parameter.ndim > 1:
                parameter *= 3.0 if "embeddings" in name else 0.7
    return target


def sent(target: Target, texts: list[str], labels: list[int]) -> tuple[Update, Knowledge]:
    known = Knowledge(labels=labels, lengths=target.encode(texts).lengths)
    return Client(target, embeddings="trained").update(texts, labels), known


def attacked(target: Target, texts: list[str], labels: list[int], **settings: Any) -> Reconstruction:
    return Edr(**settings)(target, *sent(target, texts, labels))


def victim(target: Target, texts: list[str], labels: list[int]) -> Victim:
    update, known = sent(target, texts, labels)
    return Victim(update.gradient(), known, torch.Generator().manual_seed(0))


# --- texts of every kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["dog", "dog dog dog", "the cat ran", "the cat sat on the red mat", "a dog , a cat , a mat ."],
)
def test_a_sentence_is_recovered_word_for_word(text: str) -> None:
    result = attacked(model(), [text], [1])
    assert result.texts == (text,)
    assert result.loss < 1e-9


def test_a_sentence_of_forty_tokens_is_handled_and_every_word_of_it_is_found() -> None:
    target = model()
    result = attacked(
        target,
        [FORTY],
        [0],
        temperature=1e-3,
        iterations=40,
        failures=1.0,
        starts=2,
        adjustments=2,
        adjusted=1,
        attempts=1,
    )
    assert len(result.token_ids[0]) == target.max_length == 40
    assert set(result.texts[0].split()) == set(FORTY.split())
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize("text", ["snorkel", "indiscretions", "gorbachev snorkel"])
def test_words_that_are_pieces_alone_are_recovered_from_the_embedded_model(text: str) -> None:
    target = load_target("tiny")
    assert any(token.startswith("##") for token in target.tokenizer.tokenize(text))
    assert attacked(target, [text], [1], starts=2).texts == (text,)


def test_a_batch_is_recovered_with_every_sentence_whole() -> None:
    texts = ["the cat sat", "red dog ran on"]
    result = attacked(model(), texts, [1, 0], temperature=20.0, iterations=800, starts=3)
    assert result.texts == tuple(texts)


def test_an_attacker_who_is_told_nothing_finds_length_and_label() -> None:
    target = model()
    update, _ = sent(target, ["the cat sat on a mat"], [1])
    result = Edr()(target, update)
    assert (result.texts, result.labels) == (("the cat sat on a mat",), (1,))
    assert any("length 8" in note for note in result.notes)


def test_labels_and_lengths_of_a_batch_need_not_be_told() -> None:
    target = model()
    update, _ = sent(target, ["dog ran", "the cat"], [1, 0])
    result = Edr(iterations=300, attempts=1)(target, update, Knowledge(batch_size=2))
    assert sorted(result.labels or ()) == [0, 1]
    assert {token for text in result.texts for token in text.split()} == {"dog", "ran", "the", "cat"}


def test_a_listener_hears_the_end_of_a_search_that_need_not_begin() -> None:
    target = model()
    heard: list[Progress] = []
    result = Edr()(target, *sent(target, ["dog"], [1]), listener=heard.append)
    assert (heard[-1].step, heard[-1].texts) == (heard[-1].total, ("dog",))
    assert result.history[0].texts == ("dog",)


# --- what is published ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        (1, (300, 0.95, 3_000)),
        (2, (400, 0.99, 4_000)),
        (3, (500, 0.99, 5_000)),
        (4, (500, 0.99, 5_000)),
        (8, (500, 0.99, 5_000)),
    ],
)
def test_schedules_are_those_of_the_paper(sequences: int, expected: tuple[float, float, int]) -> None:
    schedule = Edr().schedule(sequences)
    assert (schedule.temperature, schedule.cooling, schedule.iterations) == expected
    assert schedule.failures == 0.1
    changed = Edr(temperature=1.0, cooling=0.5, iterations=7).schedule(sequences)
    assert (changed.temperature, changed.cooling, changed.iterations) == (1.0, 0.5, 7)


def test_the_distance_is_the_cosine_for_one_sentence_and_l2_l1_for_more() -> None:
    assert Edr().judged_by(1) == Cosine()
    assert Edr(alpha=0.5).judged_by(2) == Edr(alpha=0.5).judged_by(4) == L2L1(alpha=0.5, squared=False)
    assert Edr(distance="cosine").judged_by(4) == Cosine()
    assert Edr(distance="l2+l1").judged_by(1) == L2L1(squared=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": 0}, "starts must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"adjusted": 0}, "adjusted must be at least 1"),
        ({"cooling": 1.5}, "cooling from 0 to 1"),
        ({"temperature": 0.0}, "temperature above 0"),
        ({"iterations": 0.0}, "iterations, tabu and tries of at least 1"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Edr(**settings)


# --- gradient analysis and adjustment ------------------------------------------------------------------------------


def judged(texts: list[str], labels: list[int]) -> tuple[Judge, LexemeMoves, torch.Tensor]:
    """Return what adjusts, and the true solution."""
    target = model()
    one = victim(target, texts, labels)
    puzzle = puzzles(target, one, 1)[0][0]
    distance = Edr().judged_by(len(texts))
    judge = Judge(puzzle, torch.tensor(labels), Matcher(target, [one.gradient], distance), one.gradient, 1e-9)
    ids = target.encode(texts).ids[puzzle.slots.free[0, 0]]
    sentences = puzzle.slots.free[0, 0].nonzero()[:, 0]
    moves = LexemeMoves(torch.zeros(puzzle.kinds, dtype=torch.bool), sentences, puzzle.places > puzzle.kinds)
    return judge, moves, torch.searchsorted(puzzle.vocabulary, ids)


def test_rows_agree_where_the_text_is_right_and_nowhere_else() -> None:
    judge, _, truth = judged(["the cat sat on a mat"], [1])
    assert float(judge.misfits(truth).max()) < 1e-6
    wrong = truth[[1, 0, 2, 3, 4, 5]]
    assert float(judge.misfits(wrong).min()) > 0.01


def test_a_sentence_that_is_right_is_left_alone() -> None:
    judge, moves, truth = judged(["the cat sat", "red dog ran on"], [1, 0])
    wrong = truth[[0, 1, 2, 6, 4, 5, 3]]
    is_open = open_places(judge.misfits(wrong), wrong, moves.sentences)
    assert is_open.tolist() == [False] * 3 + [True] * 4
    assert all(torch.equal(tried[:3], truth[:3]) for tried in neighbours(wrong, 3, moves, is_open))
    found, loss = adjust(judge, moves, Text(wrong, float(judge.score(wrong[None]))), rounds=5)
    assert torch.equal(found, truth)
    assert loss == pytest.approx(float(judge.score(truth[None])), abs=1e-9)


def test_shared_tokens_say_nothing_about_a_sentence() -> None:
    judge, moves, truth = judged(["the cat sat", "the dog ran on"], [1, 0])
    wrong = truth[[0, 1, 2, 6, 4, 5, 3]]
    assert float(judge.misfits(wrong)[0]) > 0.01, "the row of `the` is the sum of both"
    assert open_places(judge.misfits(wrong), wrong, moves.sentences).tolist() == [False] * 3 + [True] * 4


def test_scores_with_a_sentence_held_are_the_same() -> None:
    judge, _, truth = judged(["the cat sat", "red dog ran on"], [1, 0])
    wrong = torch.stack([truth[[0, 1, 2, 6, 4, 5, 3]], truth[[0, 1, 2, 4, 3, 5, 6]]])
    expected = judge._distances(wrong)
    judge.hold(truth, 1)
    assert torch.allclose(judge._distances(wrong), expected, rtol=1e-9)


def test_a_swap_between_sentences_is_found_and_undone() -> None:
    judge, moves, truth = judged(["the cat sat", "red dog ran on"], [1, 0])
    wrong = truth[[3, 1, 2, 0, 4, 5, 6]]
    found, _ = adjust(judge, moves, Text(wrong, float(judge.score(wrong[None]))), rounds=5)
    assert torch.equal(found, truth)


def test_a_run_of_tokens_in_the_wrong_place_is_put_right() -> None:
    judge, moves, truth = judged(["the big red cat sat on a mat . dog"], [1])
    wrong = truth[[5, 6, 7, 8, 9, 0, 1, 2, 3, 4]]
    found, _ = adjust(judge, moves, Text(wrong, float(judge.score(wrong[None]))), rounds=20)
    assert torch.equal(found, truth)


def test_a_token_that_is_repeated_too_often_becomes_another() -> None:
    judge, moves, truth = judged(["the cat sat on the mat"], [1])
    kinds = judge.puzzle.vocabulary.tolist()
    cat = kinds.index(model().tokenizer.convert_tokens_to_ids("cat"))
    wrong = truth.clone()
    wrong[4] = cat  # "the cat sat on cat mat"
    found, _ = adjust(judge, moves, Text(wrong, float(judge.score(wrong[None]))), rounds=5)
    assert torch.equal(found, truth)


# --- the shortcut through position embeddings ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["dog", "the cat sat on a mat", "a dog , a cat , a mat .", FORTY])
def test_the_order_of_a_sentence_can_be_read_from_the_positions(text: str) -> None:
    judge, _, truth = judged([text], [1])
    read = read_places(judge.puzzle, judge.gradient, 2, torch.Generator().manual_seed(0))
    assert torch.equal(read, truth.expand(2, -1))


def test_the_fast_preset_reads_it_and_searches_where_positions_are_hidden() -> None:
    target = model()
    update, known = sent(target, ["the cat sat on a mat"], [1])
    fast = Edr.with_settings("fast")
    assert fast(target, update, known).texts == ("the cat sat on a mat",)
    shown = {name: tensor for name, tensor in update.tensors.items() if "position" not in name}
    assert fast(target, update.with_tensors(shown), known).texts == ("the cat sat on a mat",)


def test_who_stands_at_a_position_is_read_for_a_batch_but_not_in_which_sentence() -> None:
    judge, _, truth = judged(["the cat sat on", "red dog ran big"], [1, 0])
    read = read_places(judge.puzzle, judge.gradient, 8, torch.Generator().manual_seed(0))
    for solution in read:
        columns = solution.view(2, 4).sort(dim=0).values
        assert torch.equal(columns, truth.view(2, 4).sort(dim=0).values)
    assert len({tuple(solution.tolist()) for solution in read}) > 1
