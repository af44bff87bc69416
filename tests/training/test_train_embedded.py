from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

import train_embedded
from embedded_corpus import (
    BUCKETS,
    CLS,
    PAD,
    SEP,
    Batch,
    BatchSource,
    Corpus,
    load_corpus,
    pack,
    plan_once,
    plan_pass,
)
from embedded_evaluation import measure, shuffled, swapped, text_losses
from embedded_loss import linear_cross_entropy
from embedded_models import CausalObjective, Shape, make_objective, mask_words, unique_state
from embedded_trainer import Settings, Trainer, learning_rate
from gradleak.assets import asset_path

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = asset_path("tiny")
SMALL = Shape(hidden=8, layers=1, heads=2, dropout=0.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    who, does = ["the cat", "a dog", "my aunt", "the old king"], ["sees", "likes", "paints"]
    lines = [f"{who[random.integers(4)]} {does[random.integers(3)]} {who[random.integers(4)]} ." for _ in range(500)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text: Path) -> Corpus:
    return load_corpus(text, VOCABULARY, text.parent)


def make_trainer(
    name: str, corpus: Corpus, work: Path, *, steps: int, lr: float = 1e-2, dropout: float = 0.0
) -> Trainer:
    how = Settings(minutes=None, steps=steps, batch_tokens=128, peak_lr=lr, weight_decay=0.0, seed=3)
    shape = Shape(hidden=8, layers=1, heads=2, dropout=dropout)
    return Trainer(make_objective(name, shape), corpus, how, work, CPU, lambda _: None)


def test_corpus_is_read_from_its_cache_unchanged(text: Path, corpus: Corpus) -> None:
    again = load_corpus(text, VOCABULARY, text.parent)
    assert np.array_equal(again.tokens, corpus.tokens)
    assert len(corpus.lengths) == 500
    assert set(corpus.tokens[corpus.offsets[:-1]]) == {CLS}
    assert set(corpus.tokens[corpus.offsets[1:] - 1]) == {SEP}


def test_held_out_lines_are_never_trained_on(corpus: Corpus) -> None:
    parts = [corpus.training_lines(), corpus.evaluation_lines(), corpus.selection_lines()]
    assert sorted(np.concatenate(parts)) == list(range(500))


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(3, 256), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_a_pass_holds_every_line_in_batches_of_fixed_shape(lengths: list[int], seed: int) -> None:
    sizes = np.array(lengths)
    lines = np.arange(len(lengths))
    plan = plan_pass(sizes, lines, 512, np.random.default_rng(seed))
    assert set(plan.lines) == set(lines)
    for bucket, first, last in plan.batches:
        assert last - first == max(1, 512 // bucket)
        assert sizes[plan.lines[first:last]].max() <= bucket
    assert sorted(plan_once(sizes, lines, 512).lines) == list(lines)


def test_batches_carry_the_lines_padded_on_the_right() -> None:
    lines = [[CLS, 7, SEP], [CLS, 7, 8, 9, SEP]]
    packed = pack(lines)
    (batch,) = BatchSource(packed, CPU).serve(plan_once(packed.lengths, np.arange(2), 512))
    assert batch.ids.shape == (2, BUCKETS[0])
    assert batch.total == 8
    for row, line in zip(batch.ids.tolist(), lines, strict=True):
        assert row == line + [PAD] * (BUCKETS[0] - len(line))
    assert torch.equal(batch.real, batch.ids != PAD)


def test_masking_hides_the_asked_number_of_words_and_no_special_token() -> None:
    ids = torch.randint(1000, 2000, (8, 16))
    ids[:, 0], ids[:, 11], ids[:, 12:] = CLS, SEP, PAD
    batch = Batch(ids, torch.full((8,), 12), total=96)
    inputs, positions, targets = mask_words(batch, 12, torch.Generator().manual_seed(0))
    assert len(set(positions.tolist())) == 12
    assert torch.equal(ids.flatten()[positions], targets)
    assert (targets >= 1000).all()
    untouched = torch.ones(ids.numel(), dtype=torch.bool).index_fill(0, positions, False)
    assert torch.equal(inputs.flatten()[untouched], ids.flatten()[untouched])


@pytest.mark.parametrize("with_bias", [True, False])
def test_chunked_loss_and_its_gradients_equal_the_plain_ones(with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedded_loss._CHUNK", 3)
    shapes = [(7, 5), (11, 5), (11,)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    hidden, weight, bias = inputs
    targets = torch.randint(11, (7,))
    used = inputs if with_bias else inputs[:2]
    offset = bias if with_bias else None
    fast = linear_cross_entropy(hidden, weight, offset, targets, torch.float32)
    plain = F.cross_entropy(F.linear(hidden, weight, offset), targets)
    assert torch.allclose(fast, plain)
    for mine, theirs in zip(torch.autograd.grad(fast, used), torch.autograd.grad(plain, used), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_prior_scores_a_text_as_transformers_does() -> None:
    objective = CausalObjective(SMALL)
    model = objective.build().eval()
    lines = [[CLS, 1996, 4937, SEP], [CLS, *range(2000, 2030), SEP], [CLS, 2061, SEP]]
    totals = text_losses(objective, model, lines, CPU)
    for line, total in zip(lines, totals, strict=True):
        ids = torch.tensor([line])
        mean = model(ids, labels=ids).loss.detach()
        assert float(total) == pytest.approx(float(mean) * (len(line) - 1), rel=1e-4)


def test_masked_model_gives_the_same_words_as_its_own_head() -> None:
    objective = make_objective("tiny", SMALL)
    model = objective.build().eval()
    ids = torch.tensor([[CLS, *range(2000, 2012), SEP, PAD, PAD]])
    batch = Batch(ids, torch.tensor([14]), total=14)
    said = objective.predict(model, batch, torch.Generator().manual_seed(1))
    inputs, positions, _ = mask_words(batch, 2, torch.Generator().manual_seed(1))
    logits = model(inputs, attention_mask=(ids != PAD).long()).logits[0, positions]
    assert torch.allclose(F.linear(said.hidden, said.weight, said.bias), logits, atol=1e-5)


def test_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [learning_rate(i / 100, 1.0) for i in range(101)]
    top = rates.index(max(rates))
    assert 0 < rates[0] < rates[1]
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)


def test_word_orders_differ_from_the_original() -> None:
    random = np.random.default_rng(0)
    words = ["a", "a", "b"]
    for _ in range(20):
        assert shuffled(words, random) != words
        assert swapped(words, random) == ["a", "b", "a"]


@pytest.mark.parametrize("name", ["tiny", "prior"])
def test_the_loss_falls(name: str, corpus: Corpus, tmp_path: Path) -> None:
    trainer = make_trainer(name, corpus, tmp_path, steps=12, lr=0.1)
    before = measure(trainer.objective, trainer.model, corpus, None, VOCABULARY, CPU)
    trainer.model.train()
    trainer.run(lambda: False, lambda _: None)
    after = measure(trainer.objective, trainer.model, corpus, None, VOCABULARY, CPU)
    assert after["held_out_loss"] < before["held_out_loss"] - 1


def test_a_stopped_run_continues_to_the_same_weights(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = make_trainer("prior", corpus, tmp_path / "whole", steps=6, dropout=0.1)
    whole.run(lambda: False, lambda _: None)
    first = make_trainer("prior", corpus, tmp_path, steps=6, dropout=0.1)
    first.run(lambda: first.step == 3, lambda _: None)
    second = make_trainer("prior", corpus, tmp_path, steps=6, dropout=0.1)
    assert second.step == 3
    second.run(lambda: False, lambda _: None)
    expected = unique_state(whole.model)
    for name, tensor in unique_state(second.model).items():
        assert torch.allclose(tensor, expected[name], atol=1e-6), name


def command(text: Path, folder: Path, *more: str) -> list[str]:
    cola = folder / "cola.tsv"
    cola.write_text("label\ttext\n1\tThe cat sees the old king.\n0\tCat the.\n", encoding="utf-8")
    script = str(ROOT / "training" / "train_embedded.py")
    given = {"corpus": text, "cola": cola, "work": folder / "work", "output": folder / "out"}
    paths = [part for name, path in given.items() for part in (f"--{name}", str(path))]
    size = ["--hidden", "8", "--layers", "1", "--heads", "2", "--batch-tokens", "64"]
    return [sys.executable, script, *paths, *size, "--device", "cpu", *more]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_script_trains_both_models_and_measures_them_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment().items():  # of the processes that train one model each
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    _, _, *arguments = command(text, tmp_path, "--steps", "3")
    assert train_embedded.main(arguments) == 0
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/*/*"))
    names = ["CARD.md", "config.json", "metrics.json", "model.safetensors"]
    assert files == [f"{model}/{name}" for model in ("prior", "tiny") for name in names]
    capsys.readouterr()
    assert train_embedded.main([*arguments, "--evaluate", str(tmp_path / "out")]) == 0
    measured = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [figures["model"] for figures in measured] == ["tiny", "prior"]
    for figures in measured:
        metrics = json.loads((tmp_path / "out" / figures["model"] / "metrics.json").read_text())
        assert metrics["training"]["steps"] == 3
        assert metrics["shipped"].items() <= figures.items()
        assert metrics["sha256"] in (tmp_path / "out" / figures["model"] / "CARD.md").read_text()


@pytest.mark.slow
def test_a_terminated_run_leaves_usable_files(text: Path, tmp_path: Path) -> None:
    run = command(text, tmp_path, "--minutes", "5", "--model", "tiny", "--checkpoint-seconds", "0")
    child = subprocess.Popen(run, env=environment())
    deadline = time.monotonic() + 60
    while not (tmp_path / "work" / "tiny.checkpoint").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 0
    metrics = json.loads((tmp_path / "out" / "tiny" / "metrics.json").read_text())
    assert metrics["training"]["steps"] >= 1
