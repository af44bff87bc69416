"""Train the models that gradleak ships: `tiny`, a BERT, and `prior`, a GPT-2.

    PYTHONPATH=src python training/train_embedded.py --corpus english.txt.gz --cola train.tsv \
        --work /tmp/train --output out --minutes 7

Stopped by a signal, it writes its best snapshot; started again with the same `--work`, it resumes.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from embedded_card import write_card, write_weights
from embedded_corpus import Corpus, load_corpus
from embedded_evaluation import load_shipped, measure
from embedded_models import Objective, Shape, make_objective
from embedded_trainer import Settings, Trainer

NAMES = ("tiny", "prior")
PEAK_LR = {"tiny": 2e-3, "prior": 2e-3}
WEIGHT_DECAY = {"tiny": 0.05, "prior": 0.1}
_ASSETS = Path(__file__).resolve().parent.parent / "src" / "gradleak" / "assets"
_started = time.monotonic()
_stop = threading.Event()


def log(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - _started:7.1f}s {text}", flush=True)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_argument
    add("--corpus", type=Path, required=True, help="text, one sample a line, plain or .gz")
    add("--vocabulary", type=Path, default=_ASSETS / "tiny", help="folder of tokenizer.json")
    add("--cola", type=Path, help="CoLA as label<TAB>text, to measure the prior on")
    add("--work", type=Path, required=True, help="folder for the cache and the checkpoints")
    add("--output", type=Path, help="folder to write tiny/ and prior/ to")
    add("--evaluate", type=Path, metavar="DIR", help="only measure the models in DIR again")
    add("--model", choices=(*NAMES, "both"), default="both")
    add("--minutes", type=float, default=7.0, help="wall-clock budget of each model")
    add("--steps", type=int, help="a budget in steps instead")
    add("--device", default="auto")
    add("--compile", action="store_true", help="compile the models: pays on long runs only")
    add("--batch-tokens", type=int, help="default: 65,536 on CUDA, 4,096 elsewhere")
    add("--lr", type=float, help="peak learning rate")
    add("--weight-decay", type=float)
    add("--hidden", type=int)
    add("--layers", type=int)
    add("--heads", type=int)
    add("--dropout", type=float)
    add("--seed", type=int, default=0)
    add("--checkpoint-seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    if options.output is None and options.evaluate is None:
        parser.error("give --output, or --evaluate to measure finished models")
    return options


def choose_device(name: str) -> torch.device:
    """Return the named device; `auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def chosen_objective(name: str, options: argparse.Namespace) -> Objective:
    """Return the objective of `name` with the shape that the options ask for."""
    usual = make_objective(name).shape
    shape = Shape(
        hidden=options.hidden or usual.hidden,
        layers=options.layers or usual.layers,
        heads=options.heads or usual.heads,
        dropout=usual.dropout if options.dropout is None else options.dropout,
    )
    return make_objective(name, shape)


def chosen_settings(name: str, options: argparse.Namespace, device: torch.device) -> Settings:
    """Return the settings of the training of `name`."""
    usual_tokens = 65_536 if device.type == "cuda" else 4_096
    decay = options.weight_decay
    return Settings(
        minutes=None if options.steps else options.minutes,
        steps=options.steps,
        batch_tokens=options.batch_tokens or usual_tokens,
        peak_lr=options.lr or PEAK_LR[name],
        weight_decay=WEIGHT_DECAY[name] if decay is None else decay,
        seed=options.seed,
        compile=options.compile,
        checkpoint_seconds=options.checkpoint_seconds,
    )


def train_one(name: str, options: argparse.Namespace) -> None:
    """Train one model, write its folder, and measure what was written."""
    device = choose_device(options.device)
    objective, settings = chosen_objective(name, options), chosen_settings(name, options, device)
    corpus = load_corpus(options.corpus, options.vocabulary, options.work)
    log(f"{len(corpus.offsets) - 1:,} lines, {len(corpus.tokens):,} tokens, on {device}")
    trainer = Trainer(objective, corpus, settings, options.work, device, log)
    folder = options.output / name
    trainer.run(_stop.is_set, lambda state: write_weights(folder, objective, state))
    write_weights(folder, objective, trainer.best[2])
    log("weights written; measuring them")
    figures = {
        "model": name,
        "training": describe_run(trainer, corpus),
        **measure_both(trainer, folder, corpus, options),
    }
    write_card(folder, objective, figures)
    log(f"shipped {json.dumps(figures['shipped'])}")
    log(f"before quantisation {json.dumps(figures['unquantised'])}")


def measure_both(trainer: Trainer, folder: Path, corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the written file, and the weights before quantisation."""
    exact = trainer.objective.build()
    exact.load_state_dict(trainer.best[2], strict=False)
    models = {"shipped": load_shipped(trainer.objective.name, folder), "unquantised": exact}
    return {
        kind: measure(trainer.objective, model, corpus, options.cola, options.vocabulary, trainer.device)
        for kind, model in models.items()
    }


def describe_run(trainer: Trainer, corpus: Corpus) -> dict[str, Any]:
    """Return the facts on the training for the card."""
    settings, cuda = trainer.settings, trainer.device.type == "cuda"
    trained_tokens = int(corpus.lengths[corpus.training_lines()].sum())
    return {
        "steps": trainer.step,
        "best_step": trainer.best[1],
        "tokens": trainer.tokens,
        "corpus_tokens": trained_tokens,
        "passes": round(trainer.tokens / trained_tokens, 2),
        "minutes": round(trainer.elapsed / 60, 2),
        "hardware": f"one {torch.cuda.get_device_name()}" if cuda else "a CPU",
        "memory_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2) if cuda else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "batch_tokens": settings.batch_tokens,
        "peak_lr": settings.peak_lr,
        "weight_decay": settings.weight_decay,
        "seed": settings.seed,
        "history": trainer.history,
    }


def train_both(options: argparse.Namespace, arguments: list[str]) -> int:
    """Train both models at once, each in a separate process; return the exit code."""
    load_corpus(options.corpus, options.vocabulary, options.work)  # once, not in each process
    log("corpus tokenised; training both models")
    children = {}
    for name in NAMES:
        # The last --model wins: the rest of the command line is passed on unchanged.
        command = [sys.executable, "-u", __file__, *arguments, "--model", name]
        children[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    readers = [threading.Thread(target=relay, args=(name, child)) for name, child in children.items()]
    for reader in readers:
        reader.start()
    while any(child.poll() is None for child in children.values()):
        if _stop.wait(0.2):
            for child in children.values():
                child.terminate()
            break
    for reader in readers:
        reader.join()
    return max(abs(child.wait()) for child in children.values())


def relay(name: str, child: subprocess.Popen[str]) -> None:
    """Print the lines of a child process, each prefixed with its name."""
    assert child.stdout is not None
    for line in child.stdout:
        print(f"[{name}] {line}", end="", flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """Measure finished models, in a folder of both or of one, and print their figures."""
    device = choose_device(options.device)
    corpus = load_corpus(options.corpus, options.vocabulary, options.work)
    for name in NAMES if options.model == "both" else (options.model,):
        folder = options.evaluate / name
        if not (folder / "config.json").is_file():
            folder = options.evaluate
        model = load_shipped(name, folder)
        objective = make_objective(name)
        figures = measure(objective, model, corpus, options.cola, options.vocabulary, device)
        print(json.dumps({"model": name, **figures}), flush=True)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _stop.set()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _on_signal)
    if options.evaluate is not None:
        evaluate(options)
        return 0
    if options.model == "both":
        return train_both(options, arguments)
    train_one(options.model, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
