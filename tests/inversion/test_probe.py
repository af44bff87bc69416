"""The probe finds the gradients that tell most about the text."""

from __future__ import annotations

import torch
from small_inverters import QUICK, language_model, pseudo

from gradleak.inversion import GradientSource, choose_rows, informativeness
from gradleak.inversion.probe import ProbeResult


def test_the_probe_finds_the_gradient_that_tells_the_text() -> None:
    target = language_model()
    source = GradientSource(target, pseudo(target), [])
    chunks = []
    for number in range(2):
        chunk = source.make(number, 300)
        told = target.embed(chunk.ids).flatten(1)
        noise = torch.randn(300, 8, 9, generator=torch.Generator().manual_seed(number))
        rows = torch.cat([told.view(300, -1, 8), torch.zeros(300, 5, 8)], dim=1)  # the last rows are never used
        chunks.append((chunk, {"transformer.h.0.mlp.c_fc.weight": noise, "transformer.wpe.weight": rows}))
        chunk.gradients.update(chunks[-1][1])
    found = informativeness(target, chunks)
    assert found["transformer.wpe.weight"].explained > 0.9
    assert found["transformer.h.0.mlp.c_fc.weight"].explained < 0.1
    assert found["transformer.wpe.weight"].rows.tolist() == list(range(6 * 32 // 8))


def result(explained: float, rows: int, width: int) -> ProbeResult:
    return ProbeResult(explained, torch.arange(rows), width)


def test_the_most_informative_come_first_and_the_last_is_kept_in_part() -> None:
    found = {"a": result(0.1, 10, 5), "b": result(0.5, 4, 5), "c": result(0.3, 6, 5), "d": result(0.001, 2, 1)}
    kept = choose_rows(found, 60)
    assert kept is not None
    assert {name: len(rows) for name, rows in kept.rows.items()} == {"a": 2, "b": 4, "c": 6}
    assert kept.rows["a"].tolist() == [0, 9]
    assert kept.features == 60


def test_what_says_little_is_taken_only_where_nothing_says_more() -> None:
    assert list(choose_rows({"a": result(0.5, 10, 1), "b": result(0.0, 10, 1)}, 20).rows) == ["a"]  # type: ignore[union-attr]
    assert list(choose_rows({"a": result(0.5, 2, 1), "b": result(0.0, 10, 1)}, 20).rows) == ["a", "b"]  # type: ignore[union-attr]
    assert choose_rows({"a": result(0.5, 10, 30)}, 20) is None


def test_noise_does_not_hide_which_rows_are_not_zero() -> None:
    target = language_model()
    source = GradientSource(target, pseudo(target), ["transformer.wpe.weight"])
    chunk = source.make(0, QUICK.chunk)
    noisy = {name: tensor + torch.randn_like(tensor) for name, tensor in chunk.gradients.items()}
    found = informativeness(target, [(chunk, noisy)])
    assert found["transformer.wpe.weight"].rows.tolist() == [0, 1, 2, 3, 4]  # the last token predicts nothing
