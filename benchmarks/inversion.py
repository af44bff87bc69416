"""Learning to Invert on WikiText-2: throughput, and table 2 of the paper, with nothing installed but the core.

    python benchmarks/inversion.py speed  --inside valid.txt --outside other.txt -o speed.json
    python benchmarks/inversion.py table  --inside valid.txt --outside other.txt --test test.txt -o table.json
    python benchmarks/inversion.py tag    --test test.txt --samples 100 -o table.json
    python benchmarks/inversion.py score  -o table.json

The first three run where the GPU is; `score` needs rouge-score and prints the table. Rows that are in the output file
already are not run again. The inverters of all defenses learn side by side from the same gradients.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks import Tag, Victim
from gradleak.defenses import Defense, defend_each, parse_defense
from gradleak.exchange import Knowledge, Update
from gradleak.inversion import (
    PAPER,
    AuxiliaryText,
    GradientSource,
    InverterTrainer,
    JointTraining,
    PseudoText,
    Recipe,
    Stream,
)
from gradleak.inversion.sentence_order import best_orders, take_order
from gradleak.inversion.streams import Shape, cut_texts, mixed, training_stream
from gradleak.inverters.storage import save_inverter
from gradleak.matching import L2L1, Distance, Sign
from gradleak.optimisation.descent import Guess
from gradleak.priors import marginal_of_tokens
from gradleak.targets import Target, Tokens, load_target

DEFENSES = ("none", "sign", "prune-global:0.99", "noise:0.01")
SHAPE = Shape(16, 16)


def main() -> None:
    """Run one of the commands."""
    arguments = _arguments()
    if arguments.command == "score":
        _score(Path(arguments.output))
        return
    target = load_target("lti-lm", task="causal-lm", device=arguments.device)
    {"speed": _speed, "table": _table, "tag": _tag}[arguments.command](target, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["speed", "table", "tag", "score"])
    parser.add_argument("--inside", help="text like the private one: WikiText-2's valid.txt")
    parser.add_argument("--outside", help="other text")
    parser.add_argument("--test", help="the private text: WikiText-2's test.txt")
    parser.add_argument("--samples", type=int, default=1_000, help="private samples")
    parser.add_argument("--learn", type=int, default=3_600_000, help="samples to learn from")
    parser.add_argument("--auxiliary", type=int, default=180_000, help="size of the auxiliary set of LTI")
    parser.add_argument("--method", action="append", choices=["lti", "lti-p"])
    parser.add_argument("--defense", action="append", help="none, or as on the command line")
    parser.add_argument("--sequences", type=int, default=1, help="samples in a batch")
    parser.add_argument("--embeddings", default="words-frozen", choices=["frozen", "words-frozen"])
    parser.add_argument("--reduction", default="keep")
    parser.add_argument("--share", type=float, default=0.005)
    parser.add_argument("--hidden", default="1024,1024")
    parser.add_argument("--output-layer", default="words")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=1_024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tag-steps", type=int, default=2_500)
    parser.add_argument("--tag-lr", type=float, default=0.05, help="falls to zero in a straight line")
    parser.add_argument("--name", default="", help="prefix of the rows' names, for variants")
    parser.add_argument("--save", help="folder for the inverters")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="inversion.json")
    return parser.parse_args()


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """The attacker's text."""

    inside: Tokens
    outside: Tokens
    marginal: Tensor

    @classmethod
    def read(cls, target: Target, arguments: argparse.Namespace) -> Data:
        """Cut both files into samples; the marginal distribution is the mean of theirs."""
        texts = [Path(name).read_text(encoding="utf-8").splitlines() for name in (arguments.inside, arguments.outside)]
        inside, outside = (cut_texts(target, lines, SHAPE) for lines in texts)
        marginal = torch.stack([marginal_of_tokens(target, tokens.ids) for tokens in (inside, outside)]).mean(dim=0)
        return cls(inside, outside, marginal)

    def stream(self, target: Target, method: str, arguments: argparse.Namespace) -> Stream:
        """Return what a method learns from: all in-distribution text there is, and other text to fill the set."""
        if method == "lti-p":
            return PseudoText(target, self.marginal, SHAPE, seed=arguments.seed, size=arguments.auxiliary)
        size = min(arguments.auxiliary, len(self.inside.ids) + len(self.outside.ids))
        share = len(self.inside.ids) / size
        tokens = mixed(self.inside, self.outside, share, size, arguments.seed)
        return AuxiliaryText(
            tokens, seed=arguments.seed, description=f"valid and other text, {100 * share:.0f} % valid"
        )


def _private(target: Target, arguments: argparse.Namespace) -> Tensor:
    """Return the private samples `[samples, 16]`: pieces of the test text, chosen by the seed."""
    pieces = cut_texts(target, Path(arguments.test).read_text(encoding="utf-8").splitlines(), SHAPE).ids
    chosen = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(arguments.seed))
    return pieces[chosen[: arguments.samples].to(pieces.device)]


class _Fixed(Stream):
    """The private samples, in order."""

    pseudo, description = False, "private samples"

    def __init__(self, ids: Tensor) -> None:
        self.ids, self.size = ids, len(ids)

    def draw(self, number: int, count: int) -> Tokens:
        """Return them all, or one part."""
        ids = self.ids[number * count : (number + 1) * count]
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))


def _recipe(arguments: argparse.Namespace, defense: str) -> Recipe:
    return Recipe(
        embeddings=arguments.embeddings,
        sequences=arguments.sequences,
        defenses=_parse(defense),
        reduction=arguments.reduction,
        share=arguments.share,
        output=arguments.output_layer,
        hidden=tuple(map(int, arguments.hidden.split(","))),
        direct=arguments.direct,
        lr=arguments.lr,
        batch=arguments.batch,
        chunk=arguments.chunk,
        probe=4_096,
        seed=arguments.seed,
    )


def _parse(defense: str) -> tuple[Defense, ...]:
    return () if defense == "none" else tuple(parse_defense(part) for part in defense.split("+"))


# --- table -----------------------------------------------------------------------------------------------------------


def _table(target: Target, arguments: argparse.Namespace) -> None:
    """Train the inverters of each method side by side, and let them read the private samples' gradients."""
    path = Path(arguments.output)
    document = _read(path)
    data = Data.read(target, arguments)
    private = _private(target, arguments)
    for method in arguments.method or ["lti-p", "lti"]:
        names = {f"{arguments.name}{method} {defense}": defense for defense in arguments.defense or DEFENSES}
        missing = {name: defense for name, defense in names.items() if name not in document["rows"]}
        if missing:
            stream = data.stream(target, method, arguments)
            document["rows"] |= _train(target, missing, stream, private, arguments)
            path.write_text(json.dumps(document), encoding="utf-8")


def _train(
    target: Target, names: dict[str, str], stream: Stream, private: Tensor, arguments: argparse.Namespace
) -> dict[str, Any]:
    chunks = arguments.learn // arguments.chunk
    steps = chunks * -(-arguments.chunk // arguments.batch)
    began = time.perf_counter()
    recipes = [_recipe(arguments, defense) for defense in names.values()]
    trainers = [InverterTrainer.fresh(target, recipe, stream, steps) for recipe in recipes]
    training = JointTraining(target, trainers, stream, _Fixed(private), len(private) // arguments.sequences)
    started = time.perf_counter()
    print(
        f"prepared in {started - began:.1f} s; features {[x.inverter.reduction.features for x in trainers]}", flush=True
    )
    curve: list[tuple[int, float, list[float]]] = []
    for number in range(chunks):
        training.train(number)
        if number % max(1, chunks // 12) == 0 or number == chunks - 1:
            found = training.accuracies()
            seconds = time.perf_counter() - started
            curve.append(((number + 1) * arguments.chunk, seconds, found))
            words = "  ".join(f"{name} {value:.2f}" for name, value in zip(names, found, strict=True))
            print(f"{curve[-1][0]:>9,} samples {seconds:6.1f} s  {words}", flush=True)
    rows = {}
    for place, (name, trainer) in enumerate(zip(names, trainers, strict=True)):
        test = training.tests[place]
        with torch.no_grad():
            logits = trainer.inverter(test.features)
            answers = take_order(logits.argmax(dim=-1), best_orders(logits, test.ids))
        if arguments.save:
            trainer.record_result(chunks * arguments.chunk, curve[-1][2][place])
            save_inverter(trainer.inverter, Path(arguments.save) / name.replace(" ", "-").replace(":", "-"))
        rows[name] = {
            "settings": repr(trainer.recipe),
            "features": trainer.inverter.reduction.features,
            "weights": sum(p.numel() for p in trainer.inverter.parameters()),
            "kept": list(trainer.inverter.card.parameters) if arguments.reduction == "keep" else "all",
            "samples": chunks * arguments.chunk,
            "seconds": curve[-1][1],
            "side_by_side": len(names),
            "curve": [(samples, round(seconds, 1), values[place]) for samples, seconds, values in curve],
            "references": test.ids.flatten(0, 1).tolist(),
            "reconstructions": answers.flatten(0, 1).tolist(),
        }
    return rows


# --- TAG, as LTI's appendix A.1 adapts it ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AdaptedTag(Tag):
    """TAG that knows the defense: wrong signs under sign compression, kept entries alone under pruning.

    It starts from noise as small as the target's own word embeddings: from unit noise it does not get there.
    """

    defense: str = "none"

    def _first_guess(self, target: Target, victims: Sequence[Victim]) -> tuple[Guess, list[list[str]]]:
        guess, notes = super()._first_guess(target, victims)
        return replace(guess, embeddings=guess.embeddings * target.word_embeddings.std()), notes

    def distance(self) -> Distance:
        """Equation 3 for signs, and the non-zero entries for pruning."""
        if self.defense == "sign":
            return Sign(alpha=self.alpha)
        return L2L1(alpha=self.alpha, kept_only=self.defense.startswith("prune"))


def _tag(target: Target, arguments: argparse.Namespace) -> None:
    path = Path(arguments.output)
    document = _read(path)
    private = _private(target, arguments)
    names = [name for name in target.parameters if name not in target.word_parameters]
    for defense in arguments.defense or DEFENSES:
        name = f"{arguments.name}tag {defense}"
        if name in document["rows"]:
            continue
        chunk = GradientSource(target, _Fixed(private), names).make(0, len(private))
        sent = defend_each(chunk.gradients, _parse(defense), training_stream(target.device, arguments.seed, "tag"))
        updates = [Update({name: tensor[row] for name, tensor in sent.items()}) for row in range(len(private))]
        attack = AdaptedTag(defense=defense, steps=arguments.tag_steps, lr=arguments.tag_lr, linear=True)
        started = time.perf_counter()
        found = attack.many(target, updates, [Knowledge(lengths=(SHAPE.tokens,))] * len(private), seed=arguments.seed)
        seconds = time.perf_counter() - started
        answers = [list(result.token_ids[0]) for result in found]
        references = private.tolist()
        document["rows"][name] = {
            "settings": repr(attack),
            "samples": len(private),
            "seconds": seconds,
            "references": references,
            "reconstructions": answers,
        }
        right = (torch.tensor(answers) == torch.tensor(references)).float().mean()
        print(f"{name}: {100 * float(right):.2f} % in {seconds:.1f} s", flush=True)
        path.write_text(json.dumps(document), encoding="utf-8")


# --- speed -----------------------------------------------------------------------------------------------------------


def _speed(target: Target, arguments: argparse.Namespace) -> None:
    """Time every stage for a chunk, and the whole for one inverter as the paper has it and for ours."""
    data = Data.read(target, arguments)
    stream = data.stream(target, "lti-p", arguments)
    count = arguments.chunk
    recipes = {
        "paper, batch 64": replace(PAPER, chunk=count),
        "hash, words, batch 64": replace(PAPER, chunk=count, output="words"),
        f"ours, batch {arguments.batch}": _recipe(arguments, "none"),
    }
    every = GradientSource(target, stream, recipes["paper, batch 64"].sent(target))
    found: dict[str, float] = {"drawing tokens": _clock(partial(stream.draw, 1, count))}
    found["gradients of all parameters"] = _clock(partial(every.make, 1, count))
    chunk = every.make(1, count)
    for defense in DEFENSES[1:]:
        random = training_stream(target.device, 0, "speed")
        found[f"defense {defense}"] = _clock(partial(defend_each, chunk.gradients, _parse(defense), random))
    whole = {}
    for name, recipe in recipes.items():
        trainer = InverterTrainer.fresh(target, recipe, stream, 10_000)
        found[f"{name}: reducing"] = _clock(partial(trainer.features, chunk, 1))
        features = trainer.features(chunk, 1)
        found[f"{name}: learning"] = _clock(partial(trainer.train, features, chunk.ids))
        training = JointTraining(target, [trainer], stream, stream, 64)
        seconds = _clock(partial(training.train, 2))
        whole[name] = count / seconds
        del trainer, training, features
    document = {"device": _device_name(target), "chunk": count, "milliseconds": {}, "samples_per_second": whole}
    document["milliseconds"] = {name: 1e3 * seconds for name, seconds in found.items()}
    for name, seconds in found.items():
        print(f"{name:<44}{1e3 * seconds:>9.2f} ms a chunk of {count}{count / seconds:>14,.0f} samples/s")
    for name, pace in whole.items():
        print(f"{name:<44}{pace:>10,.0f} samples/s end to end")
    Path(arguments.output).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _clock(run: Callable[[], object], repeats: int = 5) -> float:
    """Return the median of some runs, after two to warm up."""
    times = []
    for number in range(repeats + 2):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if number >= 2:
            times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def _device_name(target: Target) -> str:
    return torch.cuda.get_device_name() if target.device.type == "cuda" else "cpu"


# --- scores ----------------------------------------------------------------------------------------------------------


def _score(path: Path) -> None:
    from gradleak.metrics import score_tokens

    tokenizer = load_target("lti-lm", task="causal-lm").tokenizer
    print(f"{'row':<40}{'n':>6}{'accuracy':>10}{'ROUGE-1':>9}{'ROUGE-2':>9}{'ROUGE-L':>9}{'samples':>12}{'seconds':>9}")
    for name, row in _read(path)["rows"].items():
        pairs = list(zip(row["reconstructions"], row["references"], strict=True))
        scores = [score_tokens([a], [b], tokenizer).sentences[0] for a, b in pairs]
        means = [
            sum(getattr(score, key) for score in scores) / len(scores)
            for key in ("token_accuracy", "rouge1", "rouge2", "rougeL")
        ]
        print(
            f"{name:<40}{len(pairs):>6}{means[0]:>10.2f}"
            + "".join(f"{mean:>9.2f}" for mean in means[1:])
            + f"{row['samples']:>12,}{row['seconds']:>9.1f}"
        )


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": {}}
    return content


if __name__ == "__main__":
    main()
