"""Small models are attacked by one thread, larger work by as many as there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gradleak.audit import threads
from gradleak.audit.threads import fitting_threads
from gradleak.exchange import Knowledge
from gradleak.targets import Target


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("sequences", "expected"), [((1, 1), 1), ((2, 1), 2), ((1, 1, 1), 2)])
def test_threads_fit_the_work(
    bert: Target, sequences: tuple[int, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = bert.embedding_parameters
    layers = sum(parameter.numel() for name, parameter in bert.parameters.items() if name not in embeddings)
    monkeypatch.setattr(threads, "SMALL_WORK", 3 * layers)
    with fitting_threads(bert, [Knowledge(batch_size=count) for count in sequences]):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2
