"""Write the folder of a trained model: compact weights, config, metrics and model card."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from embedded_models import Objective
from gradleak.assets.storage import save_compact

LICENCE = "CC-BY-SA-4.0"

_WHAT = {
    "tiny": (
        "A small BERT with its masked-language-modelling head, for clients of a federated study "
        "to fine-tune where no larger model is at hand. It was trained without dropout; its "
        "config asks for 0.1, because clients fine-tune with it."
    ),
    "prior": (
        "A small GPT-2 that tells how likely an English text is. Attacks use it to prefer "
        "readable reconstructions. A text is scored as `[CLS] ... [SEP]`: [CLS] begins it, [SEP] "
        "ends it, and there is no padding to the left."
    ),
}

_LIMITS = {
    "tiny": (
        "It knows what its size and its corpus let it know: mostly English fiction of before "
        "1930 and some encyclopedia. Its accuracy on a task says little about that of a large "
        "encoder. It has no trained pooler and has seen one segment only."
    ),
    "prior": (
        "It judges fluency, not truth, and its idea of English is mostly the fiction of before "
        "1930. Do not generate text for readers with it: it repeats the prejudices of its sources."
    ),
}

_CORPUS = """\
Sentences of English, shuffled, one a sample; of 720,075 lines, 129 repeat another:

- public domain in the United States: texts from Project Gutenberg, mostly fiction (J. M. Barrie,
  L. Frank Baum, Edgar Rice Burroughs, G. K. Chesterton, Agatha Christie, Joseph Conrad, Arthur
  Conan Doyle, John Henry Goldfrap, Elmer Haslett, James Joyce, Caroline Lockhart, Jack London,
  L. M. Montgomery, E. Nesbit, Bernard Shaw, Mark Twain, H. G. Wells, Edith Wharton,
  P. G. Wodehouse, magazine fiction of the 1950s whose texts are in the public domain there, and
  essays by Bertrand Russell); State of the Union and inaugural addresses of presidents of the
  United States;
- CC BY-SA: WikiSplit (Botha et al. 2018, from Wikipedia) and the validation part of WikiText-2
  (Merity et al. 2016, from Wikipedia), by the contributors to Wikipedia;
- CC BY 4.0: the acceptable sentences of BLiMP (Warstadt et al. 2020).

The corpus was cleaned of lines that share six words in a row with CoLA, SST-2, Rotten Tomatoes,
Banking77 or the test part of WikiText-2. A recount still found 1,183 such lines (0.16 %). None
shares eight words in a row with the first four sets, and 21 do with the test part of WikiText-2."""


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_weights(folder: Path, objective: Objective, state: dict[str, Tensor]) -> None:
    """Write `model.safetensors` and `config.json`, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".model.partial"
    metadata = {"model": f"gradleak {objective.name}", "licence": LICENCE}
    save_compact(state, partial, quantised=objective.quantised, metadata=metadata)
    os.replace(partial, folder / "model.safetensors")
    _write_text(folder / "config.json", json.dumps(objective.config(), indent=2) + "\n")


def write_card(folder: Path, objective: Objective, figures: dict[str, Any]) -> None:
    """Write `metrics.json` and `CARD.md` for the weights in the folder."""
    weights = folder / "model.safetensors"
    figures = figures | {"sha256": sha256(weights), "bytes": weights.stat().st_size}
    _write_text(folder / "metrics.json", json.dumps(figures, indent=2) + "\n")
    _write_text(folder / "CARD.md", _card(objective, figures))


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _card(objective: Objective, figures: dict[str, Any]) -> str:
    name, shape, run = objective.name, objective.shape, figures["training"]
    architecture = objective.config()["architectures"][0]
    parts = [
        f"# gradleak {name}",
        _WHAT[name],
        "## Model",
        f"{architecture}: {shape.layers} layers, hidden size {shape.hidden}, {shape.heads} heads, "
        "256 positions, tied embeddings over the uncased WordPiece vocabulary of 30,522 of "
        "Google's BERT (Apache-2.0). Weights are float16, the word embeddings int8 with a float16 "
        "scale for each row.\n\n"
        f"- `model.safetensors`: {figures['bytes']:,} bytes\n- sha256: `{figures['sha256']}`",
        "## Trained on",
        _CORPUS,
        "## Training",
        f"{run['steps']:,} steps, {run['tokens']:,} tokens ({run['passes']:.1f} passes over "
        f"{run['corpus_tokens']:,}), {run['minutes']:.1f} minutes on {run['hardware']}. AdamW, "
        f"peak learning rate {run['peak_lr']:g}, weight decay {run['weight_decay']:g}, about "
        f"{run['batch_tokens']:,} tokens a batch with padding, dropout {shape.dropout:g}, seed {run['seed']}. "
        f"Shipped is the snapshot of step {run['best_step']:,}, the best on lines kept apart for "
        "that choice. `training/train_embedded.py` repeats it, but not bit for bit: its schedule "
        "follows the clock.",
        "## Figures",
        _table(name, figures["shipped"], figures["unquantised"]),
        "The held-out lines neither trained the model nor chose its snapshot, but they come from the "
        "same books and pages as the lines that did.",
        "## Limits",
        _LIMITS[name] + " Few of its samples are longer than 64 tokens.",
        "## Licence",
        f"The weights ship under {LICENCE.replace('-', ' ', 1).replace('-4', ' 4')}, because part "
        "of the corpus is CC BY-SA. The code around them is Apache-2.0.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(name: str, shipped: dict[str, Any], exact: dict[str, Any]) -> str:
    labels = {
        "held_out_loss": "held-out loss",
        "held_out_top1": "top-1 accuracy on held-out " + ("masked words" if name == "tiny" else "next words"),
        "held_out_perplexity": "held-out perplexity, [SEP] included",
        "cola_prefers_to_shuffle": "prefers a CoLA sentence to a shuffle of its words",
        "cola_prefers_to_swap": "prefers a CoLA sentence to one swap of neighbours",
    }
    if name == "tiny":
        del labels["held_out_perplexity"]  # of masked words it is no perplexity of text
    rows = [f"| {label} | {shipped[key]} | {exact[key]} |" for key, label in labels.items() if key in shipped]
    head = "| figure | shipped | before quantisation |\n| --- | --- | --- |\n"
    return head + "\n".join(rows)
