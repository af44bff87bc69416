from __future__ import annotations

import math

import pytest
import torch

from conftest import DECODERS, FAMILY_NAMES, TARGET_KINDS, small_target
from gradleak.attacks import Dlg, Victim
from gradleak.defenses import defend, parse_defense
from gradleak.exchange import Knowledge, Update
from gradleak.federation import Client
from gradleak.leakage import labels as inference
from gradleak.leakage.labels import class_counts, known_labels, single_label
from gradleak.leakage.lengths import lengths_to_try, longest_length
from gradleak.leakage.tokens import observed_tokens, used_rows
from gradleak.targets import Target, Task, family_of

TEXT = "the cat sat on a mat"


def victim(update: Update, knowledge: Knowledge | None = None) -> Victim:
    return Victim(update.gradient(), knowledge or Knowledge(), torch.Generator().manual_seed(0))


# --- labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(set(FAMILY_NAMES) - set(DECODERS)))
@pytest.mark.parametrize("label", range(3))
def test_the_label_of_a_single_text_is_read_from_the_bias_gradient(family: str, label: int) -> None:
    for seed in range(3):
        target = small_target(family, num_labels=3, seed=seed)
        update = Client(target).update([TEXT], [label])
        assert single_label(target, update.gradient()) == label
    result = Dlg(steps=1)(target, update, Knowledge(lengths=target.encode([TEXT]).lengths))
    assert result.labels == (label,)
    assert f"label {label}: read from the classifier's bias gradient" in result.notes


def test_a_label_is_not_read_where_there_is_nothing_to_read_it_from(bert: Target) -> None:
    mixed = Client(bert).update([TEXT, "dog"], [0, 1]).gradient() | {"classifier.bias": torch.tensor([-1.0, -1.0])}
    assert single_label(bert, mixed) is None
    assert single_label(bert, {}) is None
    language = small_target("gpt2", "causal-lm")
    assert single_label(language, Client(language).update([TEXT]).gradient()) is None


def test_a_classifier_without_bias_has_its_label_searched() -> None:
    target = small_target("gpt2")
    update = Client(target).update([TEXT], [1])
    labels, note = known_labels(target, victim(update))
    assert (labels, note) == (None, "labels searched together with the embeddings")
    result = Dlg(steps=2)(target, update, Knowledge(lengths=[6]))
    assert result.labels is not None
    assert result.labels[0] in (0, 1)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_unknown_labels_of_a_batch_are_searched(family: str) -> None:
    target = small_target(family, num_labels=3)
    texts = [TEXT, "dog ran"]
    update = Client(target).update(texts, [2, 0])
    result = Dlg(steps=3)(target, update, Knowledge(lengths=target.encode(texts).lengths))
    assert result.labels is not None
    assert len(result.labels) == 2
    assert set(result.labels) <= {0, 1, 2}
    assert "labels searched together with the embeddings" in result.notes


def test_a_search_finds_the_labels_of_a_batch() -> None:
    target = small_target("bert", num_labels=3, dtype=torch.float64)
    texts = [TEXT, "dog ran"]
    known = Knowledge(lengths=target.encode(texts).lengths, defenses=["clip:1000"])  # which leaves nothing to read
    for labels in ([2, 2], [0, 0]):
        result = Dlg(steps=40)(target, Client(target).update(texts, labels), known)
        assert result.labels == tuple(labels)
        assert "labels searched together with the embeddings" in result.notes


@pytest.mark.parametrize("family", sorted(set(FAMILY_NAMES) - set(DECODERS)))
@pytest.mark.parametrize("labels", [[0, 2, 2, 1], [1, 1, 1, 1], [2, 0, 2, 0]])
def test_how_many_texts_have_each_label_is_read_from_the_bias_gradient(family: str, labels: list[int]) -> None:
    target = small_target(family, num_labels=3)
    update = Client(target, dropout=True).update([TEXT, "dog ran", "a big red cat", "the mat"], labels)
    assert class_counts(target, update.gradient(), 4) == [labels.count(label) for label in range(3)]
    result = Dlg(steps=1)(target, update, Knowledge(batch_size=4, longest=8))
    assert result.labels == tuple(sorted(labels))
    assert f"labels {', '.join(map(str, sorted(labels)))}: read from the classifier's bias gradient" in result.notes


def test_labels_are_not_read_where_predictions_or_the_update_hide_them(
    bert: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, labels = [TEXT, "dog ran", "a big red cat", "the mat"], [0, 1, 1, 1]
    update = Client(bert).update(texts, labels)
    gradient = update.gradient()
    assert class_counts(bert, gradient, 4) == [1, 3]
    bias = gradient["classifier.bias"]
    assert class_counts(bert, gradient | {"classifier.bias": bias / 3}, 4) is None  # between two numbers
    assert class_counts(bert, gradient | {"classifier.bias": bias.sign()}, 4) is None
    assert class_counts(bert, gradient | {"classifier.bias": torch.zeros(2)}, 4) is None
    assert class_counts(bert, {}, 4) is None
    noisy = defend(update, [parse_defense("noise:1")], torch.Generator().manual_seed(0))
    assert class_counts(bert, noisy.gradient(), 4) is None
    learnt = torch.tensor([[0.1, 0.9], [0.9, 0.1]] * 16)  # to tell texts apart
    monkeypatch.setattr(inference, "predictions_for_random_texts", lambda _: learnt)
    assert class_counts(bert, gradient, 4) is None


def test_lengths_that_differ_need_to_know_whose_label_is_whose(bert: Target) -> None:
    texts = [TEXT, "dog ran"]
    lengths = bert.encode(texts).lengths
    for labels, known, read in (
        ([0, 1], Knowledge(lengths=lengths), None),
        ([1, 1], Knowledge(lengths=lengths), [1, 1]),
        ([1, 0], Knowledge(lengths=[8, 8]), [0, 1]),
        ([1, 0], Knowledge(batch_size=2), [0, 1]),
        ([1, 0], Knowledge(batch_size=2, defenses=["dpsgd:1,0"]), None),
    ):
        one = victim(Client(bert).update(texts, labels), known)
        assert known_labels(bert, one, any_order=True)[0] == read
        assert known_labels(bert, one)[0] is None


def test_labels_that_were_told_are_taken_without_a_note(bert: Target) -> None:
    update = Client(bert).update([TEXT], [1])
    labels, note = known_labels(bert, victim(update, Knowledge(labels=[0])))
    assert (tuple(labels or ()), note) == ((0,), None)


def test_a_language_model_has_no_labels_to_find() -> None:
    target = small_target("gpt2", "causal-lm")
    assert known_labels(target, victim(Client(target).update([TEXT]))) == (None, None)


# --- lengths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "task"), [kind for kind in TARGET_KINDS if not family_of(kind[0]).rotary])
@pytest.mark.parametrize("embeddings", ["words-frozen", "trained"])
@pytest.mark.parametrize(
    "texts", [["dog ran"], [TEXT], ["dog ran", TEXT + " .", "the cat"]], ids=["short", "one", "three"]
)
def test_the_longest_length_is_read_from_the_position_gradient(
    family: str, task: Task, embeddings: str, texts: list[str]
) -> None:
    target = small_target(family, task)
    update = Client(target, embeddings=embeddings).update(texts, [0] * len(texts))  # type: ignore[arg-type]
    assert longest_length(target, update.gradient()) == max(target.encode(texts).lengths)


def test_without_a_position_gradient_no_length_is_read(bert: Target) -> None:
    rotary = small_target("llama")
    assert longest_length(rotary, Client(rotary, embeddings="trained").update([TEXT], [0]).gradient()) is None
    assert longest_length(bert, Client(bert).update([TEXT], [0]).gradient()) is None
    zeros = {"bert.embeddings.position_embeddings.weight": torch.zeros(40, 16)}
    assert longest_length(bert, zeros) is None


def test_the_length_of_a_single_text_is_read_and_noted(bert: Target) -> None:
    update = Client(bert, embeddings="words-frozen").update([TEXT], [0])
    result = Dlg(steps=2)(bert, update)
    assert tuple(map(len, result.token_ids)) == (8,)
    assert "length 8: read from the position embeddings' gradient" in result.notes
    assert "batch size not told: 1 assumed" in result.notes


def test_a_longest_length_that_was_told_is_believed_more_than_a_noisy_gradient(bert: Target) -> None:
    update = Client(bert, embeddings="trained").update([TEXT], [0])
    noise = torch.Generator().manual_seed(0)
    noisy = update.with_tensors(
        {n: t + 1e-3 * torch.randn(t.shape, generator=noise) for n, t in update.tensors.items()}
    )
    tried, _ = lengths_to_try(bert, victim(noisy, Knowledge(longest=8)), most=24)
    assert tried == [[8]]


@pytest.mark.parametrize(
    ("knowledge", "expected", "note"),
    [
        (Knowledge(lengths=[8, 4]), [[8, 4]], None),
        (Knowledge(longest=7), [[7]], "length 7: told"),
        (Knowledge(), [[3], [4], [5]], "lengths 3 to 5 tried"),
        (Knowledge(batch_size=2), [[3, 3], [4, 4], [5, 5]], "lengths 3 to 5 tried"),
        (Knowledge(batch_size=2, longest=4), [[3, 3], [4, 4]], "lengths 3 to 4 tried"),
    ],
    ids=str,
)
def test_lengths_that_are_not_known_are_tried(
    bert: Target, knowledge: Knowledge, expected: list[list[int]], note: str | None
) -> None:
    update = Client(bert).update([TEXT], [0])
    assert lengths_to_try(bert, victim(update, knowledge), most=5) == (expected, note)


def test_lengths_beyond_what_the_model_takes_are_not_tried(bert: Target) -> None:
    tried, _ = lengths_to_try(bert, victim(Client(bert).update([TEXT], [0])), most=1_000)
    assert tried[-1] == [40]


@pytest.mark.parametrize(
    ("steps", "family", "task"),
    [*((3, *kind) for kind in TARGET_KINDS), *((20, *kind) for kind in (TARGET_KINDS[0], TARGET_KINDS[-1]))],
)
def test_an_attack_without_any_knowledge_gives_a_text_of_a_length_it_tried(steps: int, family: str, task: Task) -> None:
    target = small_target(family, task)
    update = Client(target).update(["dog ran"], [1])
    result = Dlg(steps=steps, longest_tried=8, lengths_kept=2)(target, update)
    shortest = 3 if target.special_tokens[0] else 2 if task == "causal-lm" else 1
    assert shortest <= len(result.token_ids[0]) <= 8
    assert math.isfinite(result.loss)
    assert f"lengths {shortest} to 8 tried" in result.notes
    assert result.history[-1].step <= steps + steps // 10


# --- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize(
    "texts", [["dog"], [TEXT], ["the cat sat on the mat", "dog ran , the cat ran"]], ids=["single", "one", "two"]
)
def test_tokens_are_read_from_the_word_gradient_each_once(family: str, texts: list[str]) -> None:
    target = small_target(family)
    update = Client(target, embeddings="trained").update(texts, [0, 1][: len(texts)])
    expected = {token for text in texts for token in target.tokenizer(text, add_special_tokens=False)["input_ids"]}
    assert observed_tokens(target, update.gradient()).tolist() == sorted(expected)


def test_an_unknown_word_is_seen_and_special_tokens_are_not(bert: Target) -> None:
    update = Client(bert, embeddings="trained").update(["the zebra"], [0])
    assert observed_tokens(bert, update.gradient()).tolist() == sorted(
        bert.tokenizer.convert_tokens_to_ids(["[UNK]", "the"])
    )


def test_rows_of_rounding_noise_count_as_unused() -> None:
    table = torch.zeros(6, 4)
    table[1], table[3], table[4, 2] = 1.0, 1e-9, -1e-3
    assert used_rows(table).tolist() == [1, 4]
    assert used_rows(torch.zeros(6, 4)).tolist() == []


def test_noise_in_every_row_says_nothing_of_the_length(bert: Target) -> None:
    update = Client(bert, embeddings="words-frozen").update([TEXT], [0])
    assert longest_length(bert, update.gradient()) == 8
    noisy = defend(update, [parse_defense("noise:0.0001")], torch.Generator().manual_seed(0))
    assert longest_length(bert, noisy.gradient()) is None
