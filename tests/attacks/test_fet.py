"""FET finds the text itself, whatever is odd about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from conftest import FAMILY_NAMES, SMALL_WITHOUT_ATTENTION, WORDS, small_target
from gradleak.assignment.problem import assignment_problems, likeliest_labels
from gradleak.attacks import Fet, Victim
from gradleak.attacks.fet.surrogate import rounds_of_attempt
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Progress, Reconstruction, Update
from gradleak.federation import Client
from gradleak.targets import Target

TEXT = "the cat sat on a mat"


def sent(target: Target, texts: Sequence[str], labels: Sequence[int] = (1, 0, 1, 0)) -> Update:
    return Client(target, embeddings="trained").update(texts, list(labels[: len(texts)]))


def found(target: Target, texts: Sequence[str], knowledge: Knowledge | None = None, **settings: Any) -> Reconstruction:
    labels = Knowledge(labels=(1, 0, 1, 0)[: len(texts)])
    return Fet(**settings)(target, sent(target, texts), knowledge or labels)


def victim(target: Target, texts: Sequence[str], **facts: Any) -> Victim:
    return Victim(sent(target, texts).gradient(), Knowledge(**facts), torch.Generator().manual_seed(0))


# --- texts of every kind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*FAMILY_NAMES, *SMALL_WITHOUT_ATTENTION])
def test_a_text_is_found_word_by_word_on_every_kind_of_target(family: str) -> None:
    target = small_target(family)
    result = found(target, [TEXT])
    assert result.texts == (TEXT,)
    assert result.labels == (1,)


@pytest.mark.parametrize(
    "text",
    ["dog", "dog dog dog", "a cat", "the cat sat the dog", "the dog ran , the cat ran , a dog sat .", "the zebra sat"],
)
def test_repeated_single_and_unknown_words_are_found(text: str) -> None:
    target = small_target("bert", dtype=torch.float64)
    result = found(target, [text], **Fet.presets["thorough"])
    assert result.token_ids == (tuple(target.tokenizer(text)["input_ids"]),)


def test_a_text_of_forty_tokens_is_handled(bert: Target) -> None:
    words = [*WORDS, "the"]
    assert len(words) == 38
    result = found(bert, [" ".join(words)], population=10, generations=2, hall_of_fame=2, iterations=1, block_every=2)
    assert len(result.token_ids[0]) == 40
    assert set(result.token_ids[0]) == set(bert.tokenizer(" ".join(words))["input_ids"])


@pytest.mark.parametrize("family", list(SMALL_WITHOUT_ATTENTION))
def test_without_positions_lengths_are_tried_from_the_number_of_tokens_up(family: str) -> None:
    target = small_target(family)
    result = found(target, ["the cat sat the dog"], attempts=2)
    assert result.texts == ("the cat sat the dog",)
    assert "lengths 6 to 13 tried" in result.notes


# --- batches, and what is not told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [True, False], ids=["lengths", "no-lengths"])
def test_a_batch_is_found_with_and_without_its_lengths(lengths: bool) -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat sat on mat", "a dog ran"]
    known = Knowledge(labels=[1, 0], lengths=target.encode(texts).lengths if lengths else None)
    result = found(target, texts, known, pairs=200, attempts=3)
    assert result.texts == tuple(texts)
    assert ("length 7: read from the position embeddings' gradient" in result.notes) is not lengths


def test_sequences_of_one_length_leave_no_place_empty() -> None:
    target = small_target("bert", dtype=torch.float64)
    result = found(target, ["the cat sat", "a dog ran"], pairs=200, attempts=3)
    assert result.texts == ("the cat sat", "a dog ran")


@pytest.mark.parametrize("labels", [(0, 0), (0, 1), (1, 1)])
def test_labels_of_a_batch_that_are_not_told_are_those_that_fit(labels: tuple[int, int]) -> None:
    for seed in range(3):
        target = small_target("bert", seed=seed)
        texts = ["the cat sat on a mat", "dog ran"]
        hidden = Knowledge(batch_size=2, defenses=["clip:1000"])  # from the classifier's bias
        one = Victim(sent(target, texts, labels).gradient(), hidden, torch.Generator().manual_seed(0))
        found_labels, notes = likeliest_labels(target, one, assignment_problems(target, one, 8)[0][0])
        assert tuple(found_labels.tolist()) == labels
        assert notes == [f"labels {labels[0]}, {labels[1]}: those that fit random texts best"]


@pytest.mark.parametrize("family", ["bert", "gpt2", "lstm"])
def test_nothing_has_to_be_told(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    result = found(target, ["the cat sat on"], Knowledge(), attempts=2)
    assert result.texts == ("the cat sat on",)
    assert result.labels == (1,)
    assert "batch size not told: 1 assumed" in result.notes


def test_too_many_ways_to_label_a_batch_are_refused() -> None:
    target = small_target("bert", num_labels=20)
    with pytest.raises(GradleakError, match="ways to label this batch; the labels must be told"):
        found(target, [TEXT] * 4, Knowledge(batch_size=4, defenses=["clip:1000"]))


def test_more_tokens_than_places_leave_those_with_the_largest_gradient(bert: Target) -> None:
    update = sent(bert, [TEXT])
    stream = torch.Generator().manual_seed(0)
    noisy = {n: t + 1e-5 * torch.randn(t.shape, generator=stream) for n, t in update.tensors.items()}
    one = Victim(noisy, Knowledge(labels=[1], lengths=[8]), torch.Generator().manual_seed(0))
    (problem,), _ = assignment_problems(bert, one, 8)
    assert problem.vocabulary.tolist() == sorted(bert.tokenizer(TEXT, add_special_tokens=False)["input_ids"])


def test_a_gradient_without_words_is_refused(bert: Target) -> None:
    update = sent(bert, [TEXT])
    (table,) = bert.word_parameters
    without = update.with_tensors({**update.tensors, table: torch.zeros_like(update.tensors[table])})
    with pytest.raises(GradleakError, match="no token can be read"):
        Fet()(bert, without, Knowledge(labels=[1]))


# --- assignment problems -------------------------------------------------------------------------------------------


def test_a_solution_is_packed_into_sequences_with_padding_at_the_end(bert: Target) -> None:
    (problem,), _ = assignment_problems(bert, victim(bert, ["the cat sat", "a"], labels=[1, 0]), 8)
    words = bert.tokenizer.convert_ids_to_tokens(problem.vocabulary.tolist())
    assert sorted(words) == sorted(["the", "cat", "sat", "a", "[PAD]"])
    number = {word: kind for kind, word in enumerate(words)}
    row = [number[word] for word in ["[PAD]", "a", "[PAD]", "the", "cat", "sat", "[PAD]"]]  # the last is outside
    assert problem.texts(torch.tensor(row)) == ("a", "the cat sat")
    ids, mask = problem.decode(torch.tensor([row]))
    assert bert.tokenizer.convert_ids_to_tokens(ids[0, 0].tolist()) == ["[CLS]", "a", "[SEP]", "[PAD]", "[PAD]"]
    assert mask[0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_drawn_solutions_hold_every_token(bert: Target) -> None:
    (problem,), _ = assignment_problems(bert, victim(bert, ["the cat sat the dog"], labels=[1]), 8)
    drawn = problem.draw(50, torch.Generator().manual_seed(0))
    assert drawn.shape == (50, problem.places) == (50, 5)
    assert all(set(row) == set(range(problem.kinds)) for row in drawn.tolist())
    assert len({tuple(row) for row in drawn.tolist()}) > 25


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("layers", ["classifier", "all"])
def test_distances_and_layers_are_matched_as_asked(distance: Any, layers: Any) -> None:
    target = small_target("bert", dtype=torch.float64)
    assert found(target, [TEXT], distance=distance, layers=layers).texts == (TEXT,)


def test_the_phases_run_alone(bert: Target) -> None:
    text = "the big cat sat on a red mat , dog ran"
    both = found(bert, [text], attempts=1)
    exploration, tuning = found(bert, [text], iterations=0), found(bert, [text], generations=0)
    assert exploration.loss >= both.loss
    assert tuning.loss < found(bert, [text], generations=0, iterations=0).loss
    assert sorted(tuning.token_ids[0]) == sorted(both.token_ids[0])


def test_pairs_of_moves_come_nearer_than_single_ones() -> None:
    target = small_target("bert", dtype=torch.float64)
    text = "the big cat sat on a red mat , dog ran ."
    single, pairs = (found(target, [text], generations=0, iterations=2, pairs=count) for count in (0, 300))
    assert pairs.loss < single.loss


@pytest.mark.parametrize("distance", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("family", ["bert", "lstm", "textcnn"])
def test_learning_explores_as_far_as_the_text(family: str, distance: Any) -> None:
    result = found(small_target(family, dtype=torch.float64), [TEXT], rounds=5, iterations=0, distance=distance)
    assert result.texts == (TEXT,)


@pytest.mark.parametrize("learnable", [True, False])
def test_learning_comes_nearer_than_the_genetic_search_which_explores_what_is_too_large(
    learnable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = small_target("bert", dtype=torch.float64)
    text = "the big cat sat on a red mat , dog ran ."
    terms = 12 * (12 + 2 * 12)  # twelve tokens at twelve places, and pairs of them at two distances
    monkeypatch.setattr("gradleak.attacks.fet.surrogate.MAX_FEATURES", terms if learnable else terms - 1)
    genetic, learnt = (found(target, [text], iterations=0, rounds=rounds) for rounds in (0, 6))
    assert learnt.loss < genetic.loss if learnable else learnt.loss == genetic.loss


@pytest.mark.parametrize("lengths", [True, False], ids=["lengths", "no-lengths"])
def test_learning_explores_batches(lengths: bool) -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat sat on mat", "a dog ran"]
    known = Knowledge(labels=[1, 0], lengths=target.encode(texts).lengths if lengths else None)
    assert found(target, texts, known, rounds=10, iterations=5).texts == tuple(texts)


# --- which words stand at each place (not in the paper) --------------------------------------------------------------

BATCH = ("the cat sat on a mat .", "big dog ran on .", "b c d the e f g h", "the j k .")


@pytest.mark.parametrize(("family", "count"), [("bert", 3), ("roberta", 2), ("distilbert", 2), ("albert", 2)])
def test_sentences_of_a_batch_are_found_where_the_words_of_each_place_are_read(family: str, count: int) -> None:
    result = found(small_target(family, dtype=torch.float64), BATCH[:count], rounds=10, positions=True)
    assert sorted(result.texts) == sorted(BATCH[:count])
    assert "words of each place: read from the position embeddings' gradient" in result.notes


@pytest.mark.parametrize(
    "facts",
    [{"labels": (1, 0), "lengths": (7, 6)}, {"batch_size": 2}, {"labels": (1, 0)}],
    ids=["lengths", "no-labels", "labels"],
)
def test_words_are_put_into_sentences_whatever_is_told(facts: dict[str, Any]) -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat sat on mat", "a dog ran ."]
    result = found(target, texts, Knowledge(**facts), **Fet.presets["thorough"])
    assert sorted(result.texts) == sorted(texts)
    assert result.loss < 1e-7


@pytest.mark.parametrize(
    "texts", [["a cat sat", "a cat sat"], ["the cat sat", "cat the ran"], ["dog", "the cat sat ."]]
)
def test_equal_crossing_and_short_sentences_are_told_apart(texts: list[str]) -> None:
    target = small_target("bert", dtype=torch.float64)
    assert sorted(found(target, texts, rounds=5, positions=True).texts) == sorted(texts)


@pytest.mark.parametrize("texts", [["the cat sat the dog ."], ["dog"], ["the cat sat on mat", "a dog ran ."]], ids=len)
def test_dropout_leaves_no_distance_of_zero_and_words_where_they_stand(texts: list[str]) -> None:
    target = small_target("bert", dtype=torch.float64, hidden_dropout_prob=0.1)
    update = Client(target, embeddings="trained", dropout=True).update(texts, [1, 0][: len(texts)])
    result = Fet(rounds=3, positions=True)(target, update, Knowledge(labels=[1, 0][: len(texts)]))
    assert sorted(" ".join(result.texts).split()) == sorted(" ".join(texts).split())
    assert result.loss > 1e-3
    if len(texts) == 1:
        assert result.texts == tuple(texts)


def test_where_places_cannot_be_read_they_are_searched() -> None:
    result = found(small_target("lstm", dtype=torch.float64), [TEXT], **Fet.presets["thorough"])
    assert result.texts == (TEXT,)
    assert "which words stand at each place could not be read" in result.notes


def test_of_many_words_only_tokens_at_places_are_learnt(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.attacks.fet.surrogate.MAX_FEATURES", 1)
    assert sorted(found(bert, BATCH[:2], rounds=10, positions=True).texts) == sorted(BATCH[:2])


def test_batches_have_twice_the_population_and_fifty_iterations_unless_told() -> None:
    attack, told = Fet(), Fet(population=30, iterations=5)
    sizes = 1, 2
    assert [(attack.evolution(n).population, attack.fine_tuning_iterations(n)) for n in sizes] == [(100, 20), (200, 50)]
    assert [(told.evolution(n).population, told.fine_tuning_iterations(n)) for n in sizes] == [(30, 5)] * 2


def test_of_several_lengths_only_the_last_attempt_takes_all_rounds() -> None:
    assert [rounds_of_attempt(10, attempt, 2, lengths) for lengths in (1, 8) for attempt in (1, 2)] == [10, 10, 3, 10]
    assert rounds_of_attempt(10, 1, 1, 8) == 10
    assert rounds_of_attempt(0, 1, 1, 8) == 0


def test_the_papers_values_are_the_defaults() -> None:
    attack = Fet()
    assert (attack.generations, attack.patience, attack.tournament, attack.hall_of_fame) == (100, 10, 2, 5)
    assert (attack.crossover, attack.mutation, attack.block_every) == (0.9, 0.1, 5)
    assert (attack.layers, attack.distance, attack.attempts) == ("classifier", "l2", 1)
    assert (attack.pairs, attack.rounds, attack.positions) == (0, 0, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population": "2.5"}, "population takes"),
        ({"population": "1"}, "population must be at least 2, not 1"),
        ({"iterations": "-1"}, "iterations must be at least 0, not -1"),
        ({"attempts": "0"}, "attempts must be at least 1, not 0"),
        ({"mutation": "1.5"}, "mutation must be at most 1, not 1.5"),
        ({"crossover": "nan"}, "takes a number"),
        ({"layers": "some"}, "layers"),
        ({"distance": "l3"}, "distance"),
        ({"layers": "all", "pairs": "5"}, "layers=classifier"),
        ({"layers": "all", "rounds": "5"}, "layers=classifier"),
        ({"positions": "true"}, "needs rounds=1 or more"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        Fet.with_settings(settings=settings)
    assert "\n" not in str(caught.value)
    assert Fet.with_settings(settings={"population": "30"}).population == 30


@pytest.mark.parametrize("preset", ["paper", "thorough"])
def test_progress_of_several_victims_ends_at_its_total(bert: Target, preset: str) -> None:
    heard: list[Progress] = []
    texts = [TEXT, "dog", "a dog ran"]
    Fet.with_settings(preset).many(
        bert, [sent(bert, [t]) for t in texts], [Knowledge(labels=[1])] * 3, listener=heard.append
    )
    assert [one.step for one in heard] == sorted(one.step for one in heard)
    assert heard[-1].step == heard[-1].total
    assert heard[-1].texts == ("a dog ran",)
