"""The training loop: a schedule by time or by steps, and checkpoints from which it resumes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from embedded_corpus import Batch, BatchSource, Corpus, Plan, plan_once, plan_pass
from embedded_models import Objective, unique_state

State = dict[str, Tensor]
WARM_UP = 0.03  # fraction of the budget in which the learning rate rises


@dataclass(frozen=True)
class Settings:
    """Settings of a training; exactly one of `minutes` and `steps` limits the run."""

    minutes: float | None
    steps: int | None
    batch_tokens: int
    peak_lr: float
    weight_decay: float
    seed: int = 0
    compile: bool = False
    checkpoint_seconds: float = 60.0
    export_seconds: float = 120.0


def learning_rate(progress: float, peak: float) -> float:
    """Return the rate after a fraction of the budget: a short linear rise, then half a cosine to zero."""
    if progress < WARM_UP:
        return peak * max(progress / WARM_UP, 0.01)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


@torch.no_grad()
def held_out_score(
    objective: Objective, model: PreTrainedModel, source: BatchSource, plan: Plan, seed: int = 0
) -> tuple[float, float]:
    """Return the mean loss and the top-1 accuracy over the batches of a plan."""
    loss, hits, count = 0.0, 0, 0
    generator = torch.Generator().manual_seed(seed)  # on the CPU: masks the same words for every device
    for batch in source.serve(plan):
        losses, right = objective.score(model, batch, generator)
        loss += float(losses.double().sum())
        hits += int(right.sum())
        count += len(losses)
    return loss / max(count, 1), hits / max(count, 1)


class Trainer:
    """Trains one model and keeps its best snapshot on the selection lines."""

    def __init__(
        self,
        objective: Objective,
        corpus: Corpus,
        settings: Settings,
        work: Path,
        device: torch.device,
        log: Callable[[str], None],
    ) -> None:
        self.objective, self.settings, self.device, self.log = objective, settings, device, log
        self.checkpoint_path = work / f"{objective.name}.checkpoint"
        self.step, self.tokens, self.passes, self.place = 0, 0, 0, 0
        self.elapsed = 0.0
        self.best: tuple[float, int, State] = (math.inf, 0, {})
        self.history: list[dict[str, float]] = []
        self._corpus = corpus
        self._lines = corpus.training_lines()
        self.source = BatchSource(corpus, device)
        self._selection = plan_once(self.source.lengths, corpus.selection_lines(), settings.batch_tokens)
        torch.manual_seed(settings.seed)
        self.model = objective.build()
        self._probe = objective.build()
        torch.nn.Module.to(self.model, device).train()
        torch.nn.Module.to(self._probe, device).train(False)
        if settings.compile:
            torch._dynamo.config.recompile_limit = 64  # one graph for each bucket and mode
            objective.body(self.model).compile(dynamic=False)
        self._generator = torch.Generator(device).manual_seed(settings.seed)
        self._optimizer = self._make_optimizer()
        self._resume()

    def run(self, should_stop: Callable[[], bool], export: Callable[[State], None]) -> None:
        """Train until the budget is spent or `should_stop` returns True, then write a checkpoint."""
        now = time.monotonic()
        self._started = now - self.elapsed
        checkpointed = exported = selected = now
        selection_cost = 0.0
        logged, logged_step = now, self.step
        losses = torch.zeros((), device=self.device)
        batches = self._batches()
        while self.progress() < 1 and not should_stop():
            losses += self._train_step(next(batches))
            now = time.monotonic()
            # Reading the loss waits for the device, so it is read rarely.
            if self.step % 100 == 0 or now - logged > 15:
                self._report(
                    float(losses) / (self.step - logged_step), self.step - logged_step, time.monotonic() - logged
                )
                losses.zero_()
                logged, logged_step = time.monotonic(), self.step
            if now - selected > max(20.0, 20 * selection_cost):
                selection_cost = self.select()
                selected = time.monotonic()
            if now - exported > self.settings.export_seconds:
                self.select()
                export(self.best[2])
                exported = time.monotonic()
            if now - checkpointed > self.settings.checkpoint_seconds:
                self.save()
                checkpointed = time.monotonic()
        self.progress()
        self.select()
        self.save()

    def progress(self) -> float:
        """Update `elapsed`, and return the fraction of the budget that is spent."""
        self.elapsed = time.monotonic() - self._started
        if self.settings.steps is not None:
            return self.step / self.settings.steps
        return self.elapsed / (60 * (self.settings.minutes or 1.0))

    def select(self) -> float:
        """Measure the selection lines, keep the snapshot if it is the best, and return the seconds it took."""
        started = time.monotonic()
        self._probe.load_state_dict(self.model.state_dict())
        loss, accuracy = held_out_score(self.objective, self._probe, self.source, self._selection)
        if loss < self.best[0] or not self.best[2]:
            self.best = (loss, self.step, unique_state(self._probe))
        self.history.append({"minutes": round(self.elapsed / 60, 3), "step": self.step, "loss": round(loss, 4)})
        self.log(f"held-out loss {loss:.4f}, top-1 {accuracy:.4f}, best {self.best[0]:.4f}")
        return time.monotonic() - started

    def save(self) -> None:
        """Write a checkpoint atomically."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "counters": [self.step, self.tokens, self.passes, self.place],
            "elapsed": self.elapsed,
            "best": self.best,
            "history": self.history,
            "generator": self._generator.get_state(),
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }
        partial = self.checkpoint_path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint_path)

    def _resume(self) -> None:
        if not self.checkpoint_path.is_file():
            return
        state = torch.load(self.checkpoint_path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.passes, self.place = state["counters"]
        self.elapsed, self.best, self.history = state["elapsed"], state["best"], state["history"]
        self._generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])
        if state["cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"])
        self.log(f"resumed at step {self.step} after {self.elapsed / 60:.2f} minutes")

    def _batches(self) -> Iterator[Batch]:
        """Yield batches endlessly, beginning at the current place of the current pass."""
        while True:
            random = np.random.default_rng([self.settings.seed, self.passes])
            plan = plan_pass(self.source.lengths, self._lines, self.settings.batch_tokens, random)
            for batch in self.source.serve(plan, self.place):
                self.place += 1
                yield batch
            self.passes, self.place = self.passes + 1, 0

    def _train_step(self, batch: Batch) -> Tensor:
        """Take one step and return its loss as a tensor on the device."""
        rate = learning_rate(self.progress(), self.settings.peak_lr)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        cuda = self.device.type == "cuda"
        dtype = torch.bfloat16 if cuda else torch.float32
        precision: AbstractContextManager[Any] = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=cuda)
        with precision:
            loss = self.objective.loss(self.model, batch, self._generator, dtype)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.total
        return loss.detach()

    def _make_optimizer(self) -> torch.optim.AdamW:
        parameters = list(self.model.parameters())
        matrices = [p for p in parameters if p.ndim > 1]
        vectors = [p for p in parameters if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": self.settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def _report(self, loss: float, steps: int, seconds: float) -> None:
        if not math.isfinite(loss):
            raise SystemExit(f"the loss of {self.objective.name} is {loss} at step {self.step}")
        speed = steps / max(seconds, 1e-9)
        mean_tokens = self.tokens / max(self.step, 1)
        self.log(
            f"step {self.step} pass {self.passes} minute {self.elapsed / 60:.2f} "
            f"loss {loss:.4f} {speed:.1f} steps/s {speed * mean_tokens / 1000:.0f}k tokens/s"
        )
