"""Build the samples of public datasets that the package ships.

    python training/build_samples.py --data DIR

DIR holds the sets as tab-separated files with a header `label<TAB>text`: `NAME/train.tsv` (and
`banking77/test.tsv`) and `lamp_selection/NAME.tsv`, the sentences that LAMP and GRAB report on. The
samples start with those, to compare results with the papers' on the same sentences. The same DIR
always gives the same samples.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

SIZE = 100
SEED = 101  # the seed of LAMP's own selection
FROM_PAPERS = 64  # sentences of SST-2 and Rotten Tomatoes that the papers report on
FEWEST_WORDS = 4
OUT = Path(__file__).resolve().parents[1] / "src" / "gradleak" / "assets" / "datasets"

Example: TypeAlias = tuple[str, str]  # label, text


def read(path: Path) -> list[Example]:
    """Read a file of `label<TAB>text` lines below a header."""
    lines = path.read_text(encoding="utf-8").split("\n")[1:]
    pairs = (line.split("\t") for line in lines if line.strip())
    return [(label.strip(), text.strip()) for label, text in pairs]


def without_repeats(examples: Iterable[Example], taken: Iterable[Example] = ()) -> list[Example]:
    """Drop examples whose text repeats an earlier one or one in `taken`, ignoring case."""
    seen = {text.casefold() for _, text in taken}
    kept = []
    for label, text in examples:
        if text.casefold() not in seen:
            seen.add(text.casefold())
            kept.append((label, text))
    return kept


def cola(data: Path) -> list[Example]:
    """Return the first sentences of the papers' selection."""
    return read(data / "lamp_selection" / "cola.tsv")[:SIZE]


def selection_and_more(data: Path, name: str) -> list[Example]:
    """Return the papers' selection, completed with longer sentences drawn from the training set."""
    chosen = read(data / "lamp_selection" / f"{name}.tsv")[:FROM_PAPERS]
    pool = [e for e in read(data / name / "train.tsv") if len(e[1].split()) >= FEWEST_WORDS]
    return chosen + random.Random(SEED).sample(without_repeats(pool, chosen), SIZE - len(chosen))


def banking77(data: Path) -> list[Example]:
    """Return questions of the test set: one of each intent, then any, shuffled."""
    generator = random.Random(SEED)
    pool = without_repeats(read(data / "banking77" / "test.tsv"))
    intents = sorted({label for label, _ in pool})
    chosen = [generator.choice([e for e in pool if e[0] == intent]) for intent in intents]
    chosen += generator.sample(without_repeats(pool, chosen), SIZE - len(chosen))
    generator.shuffle(chosen)
    return chosen


def build(data: Path) -> dict[str, list[Example]]:
    """Return the samples by name."""
    return {
        "cola": cola(data),
        "sst2": selection_and_more(data, "sst2"),
        "rotten_tomatoes": selection_and_more(data, "rotten_tomatoes"),
        "banking77": banking77(data),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Build all samples and write them as TSV files."""
    parser = argparse.ArgumentParser(description="Build the dataset samples that the package ships.")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the full sets")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name, examples in build(options.data).items():
        lines = ["label\ttext", *(f"{label}\t{text}" for label, text in examples)]
        path = options.out / f"{name}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        print(f"{path}: {len(examples)} examples")


if __name__ == "__main__":
    main()
