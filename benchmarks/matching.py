"""How much faster is the engine than one backward pass per candidate?

    python benchmarks/matching.py [--targets tiny,minilm,bert-base,bert-large] [--device auto] [--json FILE]

Both ways run in the same process on the same candidates; a row's `ratio` is the loop's time over the engine's. The loop
is what the published codes do: for each candidate a forward and a backward pass, and the distance tensor by tensor; for
an optimisation step, the same with a second backward pass. It is timed on a few candidates and scaled to all of them,
since it does the same work for each. On a GPU, distances with an L1 part use kernels that never write gradients to
memory; `--distance l2+l1` with and without `--no-kernels` shows what these bring.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.matching import DISTANCES, Candidates, Distance, Matcher, free_bytes
from gradleak.matching.kernels import dispatch as fused
from gradleak.targets import MODELS, Target, load_target, resolve_device

NAMES = {"tiny": "tiny", "minilm": "minilm", "bert-base": "bert-base-uncased", "bert-large": "bert-large-uncased"}
CANDIDATES = 200
LENGTHS = (12, 28)
VICTIMS = (1, 64)
WARM_UP = 3  # a GPU's graphs are recorded at the second call


@dataclass(frozen=True)
class Row:
    """One measurement."""

    target: str
    tokens: int
    task: str
    victims: int
    ratio: float
    seconds: float
    baseline_seconds: float
    peak_mib: float


def main() -> None:
    """Measure, print a table, and write the rows if asked to."""
    arguments = _arguments()
    device = resolve_device(arguments.device)
    distance = DISTANCES[arguments.distance]()
    if arguments.no_kernels:
        fused.DEVICES = ()
    kernels = "kernels" if fused.fused_sums_work(device) else "no kernels"
    print(f"{_machine(device)}; {arguments.distance} distance, {kernels}; {CANDIDATES} candidates to score")
    heads = ("tokens", 7), ("task", 7), ("victims", 9), ("loop s", 10), ("engine s", 10), ("ratio", 8), ("peak MiB", 10)
    print(f"{'target':<12}" + "".join(f"{head:>{width}}" for head, width in heads))
    rows: list[Row] = []
    for name in arguments.targets.split(","):
        target = _load(name, device)
        for tokens in LENGTHS:
            for row in _measure(name, target, tokens, distance, arguments):
                rows.append(row)
                print(
                    f"{row.target:<12}{row.tokens:>7}{row.task:>7}{row.victims:>9}{row.baseline_seconds:>10.3f}"
                    f"{row.seconds:>10.4f}{row.ratio:>8.1f}{row.peak_mib:>10.0f}",
                    flush=True,
                )
    if arguments.json:
        document = {"machine": _machine(device), "distance": arguments.distance, "rows": [asdict(row) for row in rows]}
        Path(arguments.json).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="tiny,minilm,bert-base,bert-large", help="comma-separated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--distance", default="cosine", choices=sorted(DISTANCES))
    parser.add_argument("--sample", type=int, default=40, help="candidates that the loop is timed on")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median counts")
    parser.add_argument("--no-kernels", action="store_true", help="build gradients on a GPU as on a CPU")
    parser.add_argument("--json", help="file for the rows")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.targets.split(",") if name not in NAMES]
    if unknown:
        parser.error(f"unknown target {unknown[0]}; known: {', '.join(NAMES)}")
    return arguments


def _measure(name: str, target: Target, tokens: int, distance: Distance, arguments: argparse.Namespace) -> list[Row]:
    rows = []
    gradient = _observed_gradient(target, tokens, seed=0)
    candidates = _draw(target, 1, CANDIDATES, tokens)
    sample = min(arguments.sample, CANDIDATES)
    _check(target, candidates, gradient, distance)
    matcher = Matcher(target, [gradient], distance)

    def loop_scores() -> None:
        for number in range(sample):
            _loop_distance(target, candidates, gradient, distance, 0, number, differentiable=False)

    rows.append(
        Row(
            *(name, tokens, "score", 1),
            *_compared(loop_scores, CANDIDATES / sample, lambda: matcher(candidates), target.device, arguments.repeats),
        )
    )
    for victims in VICTIMS:
        size = sum(tensor.nbytes for tensor in gradient.values())
        if victims * size > 0.5 * free_bytes(target.device):
            print(f"{name:<12}{tokens:>7}   step{victims:>9}   left out: {victims} observed gradients do not fit")
            continue
        gradients = [gradient] * victims  # values do not change the time, and 64 of BERT-large's fill a GPU
        stepper = Matcher(target, gradients, distance)
        guesses = _draw(target, victims, 1, tokens)
        guesses = Candidates(target.embed(guesses.inputs).requires_grad_(), guesses.mask, guesses.labels)
        timed = min(victims, max(1, sample // 2))

        def loop_steps(
            guesses: Candidates = guesses, gradients: list[dict[str, Tensor]] = gradients, timed: int = timed
        ) -> None:
            for victim in range(timed):
                found = _loop_distance(target, guesses, gradients[victim], distance, victim, 0, differentiable=True)
                torch.autograd.grad(found, guesses.inputs)

        def engine_step(stepper: Matcher = stepper, guesses: Candidates = guesses) -> Any:  # noqa: ANN401
            return stepper.gradients(guesses)

        measured = _compared(loop_steps, victims / timed, engine_step, target.device, arguments.repeats)
        rows.append(Row(name, tokens, "step", victims, *measured))
    return rows


def _compared(
    loop: Callable[[], Any], scale: float, engine: Callable[[], Any], device: torch.device, repeats: int
) -> tuple[float, float, float, float]:
    """Return the engine's speed-up over a loop whose seconds are scaled, both their seconds, and the engine's peak."""
    seconds, peak = _time(engine, device, repeats)
    baseline = _time(loop, device, repeats)[0] * scale
    return baseline / seconds, seconds, baseline, peak


def _check(target: Target, candidates: Candidates, gradient: Mapping[str, Tensor], distance: Distance) -> None:
    """Stop unless engine and loop agree: at first, while a GPU's graph is recorded, and when it is replayed."""
    matcher = Matcher(target, [gradient], distance)
    seen = {name: gradient[name] for name in matcher.parameters}
    loop = torch.stack(
        [_loop_distance(target, candidates, seen, distance, 0, n, differentiable=False).detach() for n in range(4)]
    ).double()
    loop = loop / len(seen) if type(distance).__name__ == "Cosine" else loop
    for _ in range(3):
        error = ((matcher(candidates)[0, :4] - loop).abs() / loop.abs()).max()
        assert error < 1e-3, f"engine and loop differ by {error:.1e}"


def _loop_distance(
    target: Target,
    candidates: Candidates,
    observed: Mapping[str, Tensor],
    distance: Distance,
    victim: int,
    number: int,
    *,
    differentiable: bool,
) -> Tensor:
    """Return one candidate's distance the way published codes compute it."""
    batch = candidates.select(slice(victim, victim + 1), slice(number, number + 1)).flat()
    parameters = [parameter for name, parameter in target.model.named_parameters() if name in observed]
    for parameter in parameters:
        parameter.requires_grad_()
    loss = target.sequence_losses(batch.embeddings(target), batch.mask, batch.labels).mean()
    gradients = torch.autograd.grad(loss, parameters, create_graph=differentiable)
    for parameter in parameters:
        parameter.requires_grad_(False)
    total = torch.zeros((), device=target.device)
    for gradient, seen in zip(gradients, observed.values(), strict=True):
        if type(distance).__name__ == "Cosine":
            total = total + 1 - (gradient * seen).sum() / (gradient.norm() * seen.norm() + 1e-9)
        else:
            total = total + (gradient - seen).square().sum()
            if type(distance).__name__ == "L2L1":
                total = total + 0.01 * (gradient - seen).abs().sum()
    return total


def _observed_gradient(target: Target, tokens: int, seed: int) -> dict[str, Tensor]:
    """Return the gradient of a random private sentence, embeddings frozen."""
    named = {n: p.requires_grad_() for n, p in target.parameters.items() if n not in target.embedding_parameters}
    secret = _draw(target, 1, 1, tokens, seed=1_000 + seed).flat()
    loss = target.sequence_losses(secret.embeddings(target), secret.mask, secret.labels).mean()
    gradients = torch.autograd.grad(loss, list(named.values()))
    target.model.requires_grad_(False)
    return dict(zip(named, gradients, strict=True))


def _draw(target: Target, victims: int, count: int, tokens: int, seed: int = 0) -> Candidates:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1_000, 20_000, (victims, count, 1, tokens), generator=generator).to(target.device)
    labels = torch.zeros(victims, count, 1, dtype=torch.long, device=target.device)
    return Candidates(ids, torch.ones_like(ids, dtype=torch.bool), labels)


def _load(name: str, device: torch.device) -> Target:
    """Load real weights where they lie on this machine; the shape alone decides the speed."""
    known = NAMES[name]
    if known == "tiny":
        return load_target(known, device=device)
    package = MODELS[known].package
    real = package is not None and importlib.util.find_spec(package) is not None
    return load_target(known, device=device, random_weights=not real)


def _time(run: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a run after a few to warm up, and its peak memory in MiB."""
    with _PeakMemory(device) as memory:
        run()
    for _ in range(WARM_UP if device.type == "cuda" else 1):
        run()
    times = []
    for _ in range(repeats):  # nothing else may run now: a thread that watches memory slows a loop in Python
        _synchronise(device)
        started = time.perf_counter()
        run()
        _synchronise(device)
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2], memory.peak_mib


class _PeakMemory:
    """Peak memory on top of what was there before: the allocator's on a GPU, the process's on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._done = threading.Event()
        self.peak_mib = 0.0

    def __enter__(self) -> _PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            self._before = _resident_bytes()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self.peak_mib = (torch.cuda.max_memory_allocated(self._device) - self._before) / 2**20
        else:
            self._done.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.peak_mib = max(self.peak_mib, (_resident_bytes() - self._before) / 2**20)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"CPU with {torch.get_num_threads()} threads, torch {torch.__version__}"


if __name__ == "__main__":
    main()
