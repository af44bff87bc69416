"""Which words are at each position is read from the embeddings' gradients, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from conftest import SMALL_WITHOUT_ATTENTION, small_target
from gradleak.assignment import position_angles
from gradleak.assignment.position_angles import read_grid
from gradleak.assignment.problem import AssignmentProblem
from gradleak.attacks import Victim
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.search import ColumnGrid
from gradleak.targets import Target

FAMILIES = ["bert", "roberta", "distilbert", "albert"]
TEXTS = ["the cat sat on a mat .", "big dog ran on .", "b c d the e f g h", "the j k ."]


def victim(target: Target, texts: Sequence[str], noise: float = 0.0, **client: bool) -> Victim:
    labels = [number % 2 for number in range(len(texts))]
    gradient = dict(Client(target, embeddings="trained", **client).update(texts, labels).gradient())
    stream = torch.Generator().manual_seed(0)
    noisy = {name: part + noise * torch.randn(part.shape, generator=stream) for name, part in gradient.items()}
    return Victim(noisy, Knowledge(labels=labels), stream)


def read(target: Target, texts: Sequence[str], most: int = 256) -> tuple[AssignmentProblem, ColumnGrid]:
    found = read_grid(target, victim(target, texts), most)
    assert found is not None
    return found


def standing(target: Target, texts: Sequence[str]) -> list[set[int]]:
    """The ids at each position, special tokens left out."""
    rows = [target.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [{row[place] for row in rows if len(row) > place} for place in range(max(map(len, rows)))]


def frames_of(problem: AssignmentProblem, grid: ColumnGrid) -> list[tuple[list[set[int]], list[int]]]:
    return [
        ([set(problem.vocabulary[list(column)].tolist()) for column in frame.columns], sorted(frame.lengths))
        for frame in grid.frames
    ]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_words_and_lengths_are_read_whatever_the_family(family: str, count: int) -> None:
    for seed in range(3):
        target = small_target(family, seed=seed, dtype=torch.float64)
        texts = TEXTS[:count]
        lengths = sorted(len(text.split()) for text in texts)
        assert (standing(target, texts), lengths) in frames_of(*read(target, texts))


@pytest.mark.parametrize("text", ["dog", "dog dog dog", "the cat sat the dog , the cat ran .", "the zebra sat"])
def test_a_single_sentence_is_read_as_it_stands(bert: Target, text: str) -> None:
    problem, grid = read(bert, [text])
    assert len(grid.frames) == 1
    assert problem.texts(grid.draw(1, torch.Generator())[0]) == (bert.decode(bert.tokenizer(text)["input_ids"]),)


def test_words_that_change_places_are_all_that_is_left_open() -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat sat", "cat the ran"]  # two words, each at the same two positions: no row belongs to one alone
    ((columns, lengths),) = frames_of(*read(target, texts))
    assert columns == standing(target, texts)
    assert lengths == [3, 3]


def test_what_explains_the_same_rows_is_kept_with_the_fewest_tokens_first() -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat", "the dog", "a", "a"]  # two sentences that end alike, or one
    frames = frames_of(*read(target, texts))
    assert (standing(target, texts), [1, 1, 2, 2]) in frames
    sizes = [sum(lengths) for _, lengths in frames]
    assert sizes == sorted(sizes)
    assert len(frames_of(*read(target, texts, most=1))) == 1


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """Count the calls of a function; return where they are counted."""
    calls, function = [0], getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, call)
    return calls


def test_of_many_explanations_only_so_many_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["the cat", "cat the", "the cat on", "on the cat", "the on"]  # 136 explanations
    examined = counted(monkeypatch, position_angles, "ColumnFrame")
    monkeypatch.setattr(position_angles, "POSSIBILITIES", 50)
    found = read_grid(target, victim(target, texts), 4)
    assert examined[0] == 50
    assert found is not None
    assert len(found[1].frames) == 4


def test_where_no_explanation_is_found_among_so_many_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert", dtype=torch.float64)
    stream = torch.Generator().manual_seed(0)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "big"]
    texts = [" ".join(words[i] for i in torch.randint(10, (8,), generator=stream)) for _ in range(12)]
    one = victim(target, texts)
    tried = counted(monkeypatch, torch, "bincount")  # of the words in each combination
    monkeypatch.setattr(position_angles, "POSSIBILITIES", 300)
    assert read_grid(target, one, 16) is None
    assert tried[0] == 300


def test_dropout_hides_nothing() -> None:
    target = small_target("bert", dtype=torch.float64)
    found = read_grid(target, victim(target, TEXTS[:2], dropout=True), 8)
    assert found is not None
    assert frames_of(*found)[0][0] == standing(target, TEXTS[:2])


@pytest.mark.parametrize("family", ["gpt2", *SMALL_WITHOUT_ATTENTION])
def test_without_positions_or_a_norm_after_them_nothing_is_read(family: str) -> None:
    target = small_target(family)
    assert read_grid(target, victim(target, TEXTS[:1]), 8) is None


@pytest.mark.parametrize("noise", [1e-7, 1e-4])
def test_noise_hides_where_words_stand(bert: Target, noise: float) -> None:
    assert read_grid(bert, victim(bert, TEXTS[:2], noise), 8) is None


def test_an_update_without_the_positions_gradient_shows_nothing(bert: Target) -> None:
    one = victim(bert, TEXTS[:2])
    hidden = {name: part for name, part in one.gradient.items() if "position" not in name}
    assert read_grid(bert, Victim(hidden, one.knowledge, one.generator), 8) is None
