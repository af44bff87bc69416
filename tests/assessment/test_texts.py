from __future__ import annotations

import pytest

from conftest import small_target
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.texts import prepare, shortened
from gradleak.audit.scenario import TargetSpec
from gradleak.data import Dataset
from gradleak.errors import GradleakError
from gradleak.studies.definition.specs import DataSpec


def rows(*texts: str) -> Dataset:
    return Dataset("rows", texts, tuple(number % 2 for number in range(len(texts))), ("0", "1"), "rows")


def request(**keys: object) -> AuditRequest:
    return AuditRequest(target=TargetSpec("small"), data=DataSpec("rows"), **keys)  # type: ignore[arg-type]


def test_cut_text_is_the_longest_beginning_that_the_model_takes() -> None:
    target = small_target("bert")
    text = "the cat sat on a mat " * 100
    cut = shortened(target, text)
    assert text.startswith(cut)
    assert len(target.tokenizer(cut)["input_ids"]) <= target.max_length
    assert len(target.tokenizer(text[: len(cut) + 4])["input_ids"]) >= target.max_length


def test_selection_keeps_its_order_and_a_sample_is_drawn_by_the_seed() -> None:
    target, data = small_target("bert"), rows(*(f"the cat sat {'on ' * n}" for n in range(8)))
    taken = AuditRequest(target=TargetSpec("small"), data=DataSpec("rows", "2:4"))
    assert prepare(taken, target, data).attacked.texts == data.texts[2:4]
    first, again, other = (prepare(request(seed=seed), target, data).attacked.texts for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(first) == sorted(data.texts)


def test_labels_stay_with_their_texts() -> None:
    target, data = small_target("bert"), rows(*(f"the cat sat {'on ' * n}" for n in range(8)))
    found = prepare(request(), target, data)
    pairs = dict(zip(data.texts, data.labels or (), strict=True))
    assert all(pairs[text] == label for text, label in zip(found.whole.texts, found.whole.labels or (), strict=True))


@pytest.mark.parametrize(("count", "tested"), [(100, 0), (199, 0), (200, 100), (1000, 200), (6_000, 1_000)])
def test_test_texts_are_enough_or_none(count: int, tested: int) -> None:
    target = small_target("bert")
    found = prepare(request(), target, rows(*["the cat"] * count))
    assert found.test_size == tested
    assert found.train_size + found.test_size <= count


def test_long_texts_are_refused_unless_they_may_be_cut() -> None:
    target, data = small_target("bert"), rows("the cat", "the dog " * 300)
    with pytest.raises(GradleakError, match="1 of 2 texts of rows are longer than"):
        prepare(request(), target, data)
    assert prepare(request(truncate=True), target, data).cut == 1
