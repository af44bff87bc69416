"""EDR recovers texts of every kind: repeated tokens, one token, pieces alone, forty tokens, batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.assignment import grouping
from gradleak.assignment.position_sums import read_places
from gradleak.assignment.problem import AssignmentProblem, assignment_problems
from gradleak.assignment.scoring import CandidateScorer, ScoreQuery, run_in_lockstep
from gradleak.attacks import Edr
from gradleak.attacks.edr import group
from gradleak.attacks.edr.proposals import TokenLayout
from gradleak.attacks.edr.token_adjustment import Adjustment, ScoredSolution, adjust, crossed, neighbours, open_places
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Progress, Reconstruction, Update, Victim
from gradleak.federation import Client
from gradleak.matching import L2L1, Candidates, Cosine, Matcher
from gradleak.targets import Target, load_target

FORTY = "the big red cat b c d e f g h i j k l m n o p q r s t u v w x y z sat on mat ran dog a , . the"


@functools.cache
def model(**changes: Any) -> Target:
    """Return a small BERT whose output depends on the positions of words, as that of trained ones does."""
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
    ("text", "settings"),
    [
        ("dog", {}),
        ("dog dog dog", {}),
        ("the cat ran", {}),
        ("the cat sat on the red mat", {"starts": 2, "attempts": 1}),
        ("a dog , a cat , a mat .", {"starts": 2, "attempts": 1}),
    ],
)
def test_a_sentence_is_recovered_word_for_word(text: str, settings: dict[str, Any]) -> None:
    result = attacked(model(), [text], [1], **settings)
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


@pytest.mark.parametrize(
    "text", ["snorkel", "indiscretions", pytest.param("gorbachev snorkel", marks=pytest.mark.slow)]
)
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
        ({"cooling": 1.5}, "cooling must be at most 1, not 1.5"),
        ({"temperature": 0.0}, "temperature must be above 0, not 0"),
        ({"iterations": 0}, "iterations must be at least 1, not 0"),
        ({"tabu": 0}, "tabu must be at least 1, not 0"),
        ({"failures": -0.1}, "failures must be at least 0, not -0.1"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Edr(**settings)


# --- gradient analysis and adjustment ------------------------------------------------------------------------------


@dataclass
class Scored:
    """One assignment problem, its scorer, and its solution."""

    scorer: CandidateScorer
    problem: AssignmentProblem
    layout: TokenLayout
    gradient: Mapping[str, torch.Tensor]
    truth: torch.Tensor

    def row_errors(self, solution: torch.Tensor) -> torch.Tensor:
        return self.scorer.row_errors(solution[None])[0]

    def loss(self, solution: torch.Tensor) -> float:
        return float(self.scorer.distances(solution[None, None]))

    def adjusted(self, solution: torch.Tensor, rounds: int) -> ScoredSolution:
        start = ScoredSolution(solution, self.loss(solution))
        how = Adjustment(layout=self.layout, sequences=self.problem.sequences, rounds=rounds, tolerance=1e-9)
        return run_in_lockstep(self.scorer, {0: adjust(start, how)})[0]


def scored(texts: list[str], labels: list[int]) -> Scored:
    target = model()
    one = victim(target, texts, labels)
    problem = assignment_problems(target, one, 1)[0][0]
    matcher = Matcher(target, [one.gradient], Edr().judged_by(len(texts)))
    scorer = CandidateScorer([problem], torch.tensor([labels]), [one.gradient], matcher)
    ids = target.encode(texts).ids[problem.slots.free[0, 0]]
    truth = torch.searchsorted(problem.vocabulary, ids)
    return Scored(scorer, problem, TokenLayout.of(problem), one.gradient, truth)


def test_rows_agree_where_the_text_is_right_and_nowhere_else() -> None:
    one = scored(["the cat sat on a mat"], [1])
    assert float(one.row_errors(one.truth).max()) < 1e-6
    wrong = one.truth[[1, 0, 2, 3, 4, 5]]
    assert float(one.row_errors(wrong).min()) > 0.01


def test_a_sentence_that_is_right_is_left_alone() -> None:
    one = scored(["the cat sat", "red dog ran on"], [1, 0])
    wrong = one.truth[[0, 1, 2, 6, 4, 5, 3]]
    is_open = open_places(one.row_errors(wrong), wrong, one.layout.sentences)
    assert is_open.tolist() == [False] * 3 + [True] * 4
    assert all(torch.equal(tried[:3], one.truth[:3]) for tried in neighbours(wrong, 3, one.layout, is_open))
    found, loss = one.adjusted(wrong, rounds=5)
    assert torch.equal(found, one.truth)
    assert loss == pytest.approx(one.loss(one.truth), abs=1e-8)


def test_shared_tokens_say_nothing_about_a_sentence() -> None:
    one = scored(["the cat sat", "the dog ran on"], [1, 0])
    wrong = one.truth[[0, 1, 2, 6, 4, 5, 3]]
    assert float(one.row_errors(wrong)[0]) > 0.01, "the row of `the` is the sum of both"
    assert open_places(one.row_errors(wrong), wrong, one.layout.sentences).tolist() == [False] * 3 + [True] * 4


def test_scores_with_a_sentence_held_are_the_same() -> None:
    one = scored(["the cat sat", "red dog ran on"], [1, 0])
    wrong = torch.stack([one.truth[[0, 1, 2, 6, 4, 5, 3]], one.truth[[0, 1, 2, 4, 3, 5, 6]]])
    expected = one.scorer.distances(wrong[None])
    held = one.scorer.with_fixed_sequences(one.truth[None], torch.tensor([1]))
    assert torch.allclose(held.distances(wrong[None]), expected, rtol=1e-9)
    assert torch.allclose(one.scorer.answer({0: ScoreQuery(wrong, 1)})[0], expected, rtol=1e-9)


def test_a_swap_between_sentences_is_found_and_undone() -> None:
    one = scored(["the cat sat", "red dog ran on"], [1, 0])
    found, _ = one.adjusted(one.truth[[3, 1, 2, 0, 4, 5, 6]], rounds=5)
    assert torch.equal(found, one.truth)


def test_a_run_of_tokens_in_the_wrong_place_is_put_right() -> None:
    one = scored(["the big red cat sat on a mat . dog"], [1])
    found, _ = one.adjusted(one.truth[[5, 6, 7, 8, 9, 0, 1, 2, 3, 4]], rounds=20)
    assert torch.equal(found, one.truth)


def test_a_token_that_is_repeated_too_often_becomes_another() -> None:
    one = scored(["the cat sat on the mat"], [1])
    wrong = one.truth.clone()
    wrong[4] = one.truth[1]  # "the cat sat on cat mat"
    found, _ = one.adjusted(wrong, rounds=5)
    assert torch.equal(found, one.truth)


def test_sentences_cross_at_every_position_that_both_have() -> None:
    solution, sentences = torch.arange(9), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    found = crossed(solution, sentences, sentences != 1)
    assert found.tolist() == [
        [5, 1, 2, 3, 4, 0, 6, 7, 8],
        [0, 6, 2, 3, 4, 5, 1, 7, 8],
        [0, 1, 7, 3, 4, 5, 6, 2, 8],
        [5, 6, 7, 3, 4, 0, 1, 2, 8],
        [0, 6, 7, 3, 4, 5, 1, 2, 8],
        [0, 1, 7, 3, 4, 5, 6, 2, 8],
    ]
    assert not len(crossed(solution, torch.zeros_like(sentences), sentences >= 0))


# --- victims side by side ------------------------------------------------------------------------------------------

SINGLE = [["a dog , a cat"], ["dog"], ["the big dog ran"]]
PAIRS = [["the cat sat", "red dog ran on"], ["dog", "the cat ran"]]


def many(batches: list[list[str]], preset: str = "paper", know: bool = True, **settings: str) -> list[Reconstruction]:
    target = model()
    labels = [1, 0][: len(batches[0])]
    cases = [sent(target, texts, labels) for texts in batches]
    known = [own if know else Knowledge(batch_size=len(labels)) for _, own in cases]
    return Edr.with_settings(preset, settings).many(target, [update for update, _ in cases], known)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack all victims together, as a GPU does."""
    monkeypatch.setattr(grouping, "ONE_BY_ONE", frozenset())


QUICK = {"temperature": "5", "iterations": "100", "starts": "3"}


@pytest.mark.parametrize(
    ("batches", "preset", "know"),
    [(SINGLE, "paper", True), (PAIRS, "paper", True), (PAIRS, "fast", True), (PAIRS, "paper", False)],
    ids=["sentences", "batches", "positions", "unknown"],
)
def test_victims_find_side_by_side_what_each_finds_alone(
    batches: list[list[str]], preset: str, know: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = QUICK | ({} if know else {"attempts": "1", "iterations": "50"})
    alone = many(batches, preset, know, **settings)
    monkeypatch.setattr(grouping, "ONE_BY_ONE", frozenset())
    together = many(batches, preset, know, **settings)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.loss for one in together] == pytest.approx([one.loss for one in alone], rel=1e-6, abs=1e-8)
    assert [one.notes for one in together] == [one.notes for one in alone]
    if know:
        assert [one.texts for one in together] == [tuple(texts) for texts in batches]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_no_more_victims_are_attacked_together_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    update, _ = sent(model(), ["dog"], [1])
    room = 2.5 * grouping.COPIES * sum(tensor.nbytes for tensor in update.tensors.values())
    monkeypatch.setattr(grouping, "free_bytes", lambda _: int(room))
    sizes: list[int] = []
    matcher = group.Matcher

    def counted(target: Target, gradients: list[Any], *arguments: Any) -> Matcher:
        sizes.append(len(gradients))
        return matcher(target, gradients, *arguments)

    monkeypatch.setattr(group, "Matcher", counted)
    many([["dog"], ["cat"], ["mat"], ["red"], ["big"]], **QUICK)
    assert sizes == [2, 2, 1]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_victims_share_calls_and_are_retired_when_they_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int, int]] = []
    call = Matcher.__call__

    def counted(matcher: Matcher, candidates: Candidates) -> torch.Tensor:
        shapes.append(candidates.shape)
        return call(matcher, candidates)

    monkeypatch.setattr(Matcher, "__call__", counted)
    many([["dog"], ["cat"], ["the cat sat on a mat"]], **QUICK)
    assert shapes[0] == (3, 1, 1), "all begin in one call"
    assert len(shapes) > 10
    assert {victims for victims, _, _ in shapes[1:]} == {1}, "one word alone is right from the beginning"
    shapes.clear()
    many([["the cat"], ["the cat sat on a mat"], ["red dog ran on a mat"]], **QUICK)
    assert (3, 3, 1) in shapes, "starts of all victims are annealed together"
    assert shapes[-1][0] < 3


@pytest.mark.usefixtures("as_on_a_gpu")
def test_progress_of_victims_side_by_side_adds_up() -> None:
    target = model()
    heard: list[Progress] = []
    cases = [sent(target, texts, [1]) for texts in SINGLE[:2]]
    attack = Edr(temperature=20.0, iterations=50, starts=2)
    attack.many(target, [update for update, _ in cases], [known for _, known in cases], listener=heard.append)
    steps = [progress.step for progress in heard]
    assert steps == sorted(steps)
    assert steps[-1] == heard[-1].total == 2 * (2 * 50 + 3 * 2)


# --- the shortcut through position embeddings ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["dog", "the cat sat on a mat", "a dog , a cat , a mat .", FORTY])
def test_the_order_of_a_sentence_can_be_read_from_the_positions(text: str) -> None:
    one = scored([text], [1])
    read = read_places(one.problem, one.gradient, 2, torch.Generator().manual_seed(0))
    assert torch.equal(read, one.truth.expand(2, -1))


def test_the_fast_preset_reads_it_and_searches_where_positions_are_hidden() -> None:
    target = model()
    update, known = sent(target, ["the cat sat on a mat"], [1])
    fast = Edr.with_settings("fast")
    assert fast(target, update, known).texts == ("the cat sat on a mat",)
    shown = {name: tensor for name, tensor in update.tensors.items() if "position" not in name}
    assert fast(target, update.with_tensors(shown), known).texts == ("the cat sat on a mat",)


def test_the_words_of_a_position_are_read_for_a_batch_but_not_their_sentences() -> None:
    one = scored(["the cat sat on", "red dog ran big"], [1, 0])
    read = read_places(one.problem, one.gradient, 8, torch.Generator().manual_seed(0))
    for solution in read:
        columns = solution.view(2, 4).sort(dim=0).values
        assert torch.equal(columns, one.truth.view(2, 4).sort(dim=0).values)
    assert len({tuple(solution.tolist()) for solution in read}) > 1
