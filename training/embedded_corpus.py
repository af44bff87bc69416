"""The training text as token ids: tokenised once, cached, split, and served in batches of one length.

All data of a training step is on the device. What the host must know about a batch (its number of
tokens) is computed from the host's copy of the lengths: a step never waits for the device.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

PAD, CLS, SEP, MASK = 0, 101, 102, 103
MAX_LENGTH = 256
BUCKETS = (16, 24, 32, 48, 64, 96, 128, MAX_LENGTH)

HOLD_OUT = 200  # of each 200 lines, one is held out for the reported figures and one for selection

Ids = npt.NDArray[np.uint16]
Numbers = npt.NDArray[np.int64]


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the WordPiece tokenizer of `folder`, without padding or truncation."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = [tokenizer.token_to_id(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")]
    if special != [PAD, CLS, SEP, MASK]:
        raise SystemExit(f"{folder} is not the uncased BERT vocabulary: special ids {special}")
    return tokenizer


@dataclass(frozen=True)
class Corpus:
    """Lines as token ids, concatenated: line i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Ids
    offsets: Numbers

    @property
    def lengths(self) -> Numbers:
        """Number of tokens of each line, [CLS] and [SEP] included."""
        return np.diff(self.offsets)

    def training_lines(self) -> Numbers:
        """Return the indices of the lines to train on."""
        numbers = np.arange(len(self.offsets) - 1)
        chosen: Numbers = numbers[numbers % (HOLD_OUT // 2) != 0]
        return chosen

    def evaluation_lines(self) -> Numbers:
        """Return the indices of the lines that the reported figures are measured on."""
        return np.arange(0, len(self.offsets) - 1, HOLD_OUT)

    def selection_lines(self) -> Numbers:
        """Return the indices of the lines by which the snapshot to ship is selected."""
        return np.arange(HOLD_OUT // 2, len(self.offsets) - 1, HOLD_OUT)


def encode_lines(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    """Return the ids of each line with [CLS] and [SEP], truncated to the models' number of positions."""
    encodings = tokenizer.encode_batch_fast(lines)
    ids = [encoding.ids for encoding in encodings]
    return [line if len(line) <= MAX_LENGTH else [*line[: MAX_LENGTH - 1], SEP] for line in ids]


def pack(lines: list[list[int]]) -> Corpus:
    """Return a corpus of lines that are given as token ids."""
    offsets = np.zeros(len(lines) + 1, dtype=np.int64)
    np.cumsum([len(line) for line in lines], out=offsets[1:])
    tokens = np.fromiter((token for line in lines for token in line), dtype=np.uint16)
    return Corpus(tokens, offsets)


def load_corpus(path: Path, vocabulary: Path, work: Path) -> Corpus:
    """Return the corpus of a text file with one sample a line, cached in `work`."""
    digest = hashlib.sha256(path.read_bytes())
    digest.update((vocabulary / "tokenizer.json").read_bytes())
    cache = work / f"corpus-{digest.hexdigest()[:16]}.npz"
    if not cache.is_file():
        work.mkdir(parents=True, exist_ok=True)
        corpus = pack(list(_encode_file(path, load_tokenizer(vocabulary))))
        partial = cache.with_suffix(".partial.npz")
        np.savez(partial, tokens=corpus.tokens, offsets=corpus.offsets)
        partial.replace(cache)
    with np.load(cache) as stored:
        return Corpus(stored["tokens"], stored["offsets"])


def _encode_file(path: Path, tokenizer: Tokenizer) -> Iterator[list[int]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        texts = (line.strip() for line in file)
        samples = (text for text in texts if text)
        while block := list(islice(samples, 50_000)):  # bounds the memory of the encodings
            yield from encode_lines(tokenizer, block)


@dataclass(frozen=True)
class Batch:
    """Lines of one bucket, padded on the right."""

    ids: Tensor  # [rows, tokens]
    lengths: Tensor  # [rows]
    total: int  # number of tokens that are not padding, known on the host

    @property
    def real(self) -> Tensor:
        """Mask of the tokens that are not padding, [rows, tokens]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Plan:
    """The order of the lines in one pass, and the bucket and the range of lines of each batch."""

    lines: Numbers
    batches: list[tuple[int, int, int]]  # bucket, start, end


class BatchSource:
    """Serves batches of a corpus that is held in a device's memory."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.lengths = corpus.lengths
        self._tokens = torch.from_numpy(corpus.tokens.astype(np.int32)).to(device)
        self._offsets = torch.from_numpy(corpus.offsets).to(device)

    def serve(self, plan: Plan, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of a plan, beginning with batch `start`."""
        device = self._tokens.device
        lines = torch.from_numpy(plan.lines).to(device)  # once a pass, not in every step
        for bucket, first, last in plan.batches[start:]:
            chosen = lines[first:last]
            begin = self._offsets[chosen]
            lengths = self._offsets[chosen + 1] - begin
            columns = torch.arange(bucket, device=device)
            places = (begin[:, None] + columns).clamp_(max=self._tokens.numel() - 1)
            ids = self._tokens[places].long().masked_fill_(columns >= lengths[:, None], PAD)
            yield Batch(ids, lengths, int(self.lengths[plan.lines[first:last]].sum()))


def plan_pass(lengths: Numbers, lines: Numbers, batch_tokens: int, random: np.random.Generator) -> Plan:
    """Return a shuffled pass over `lines` in which every batch of a bucket has the same shape.

    Lines that do not fill a batch of their bucket move to the next larger one, and the last batch is
    filled with lines drawn again: a compiled model sees one shape for each bucket.
    """
    pieces: list[tuple[int, Numbers]] = []
    waiting = lines[:0]
    low = 0
    for bucket in BUCKETS:
        inside = lines[(lengths[lines] > low) & (lengths[lines] <= bucket)]
        pool = random.permutation(np.concatenate([waiting, inside]))
        rows = max(1, batch_tokens // bucket)
        if bucket == BUCKETS[-1] and len(pool) % rows:
            pool = np.concatenate([pool, random.choice(lines, rows - len(pool) % rows)])
        full = len(pool) // rows * rows
        pieces += [(bucket, pool[at : at + rows]) for at in range(0, full, rows)]
        waiting, low = pool[full:], bucket
    order = random.permutation(len(pieces))
    return _join([pieces[i] for i in order])


def plan_once(lengths: Numbers, lines: Numbers, batch_tokens: int) -> Plan:
    """Return one pass over `lines` in a fixed order, each line exactly once."""
    pieces: list[tuple[int, Numbers]] = []
    low = 0
    for bucket in BUCKETS:
        inside = lines[(lengths[lines] > low) & (lengths[lines] <= bucket)]
        rows = max(1, batch_tokens // bucket)
        pieces += [(bucket, inside[at : at + rows]) for at in range(0, len(inside), rows)]
        low = bucket
    return _join(pieces)


def _join(pieces: list[tuple[int, Numbers]]) -> Plan:
    batches, at = [], 0
    for bucket, lines in pieces:
        batches.append((bucket, at, at + len(lines)))
        at += len(lines)
    joined = np.concatenate([lines for _, lines in pieces]) if pieces else np.zeros(0, np.int64)
    return Plan(joined, batches)
