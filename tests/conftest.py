"""Small models of every family, built from nothing: tests need no network and no shipped weights."""

from __future__ import annotations

import signal
import string
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, PreTrainedTokenizerFast

from gradleak.exchange import Deadline
from gradleak.targets import Target, Task, family_of
from gradleak.targets.initialise import initialise
from gradleak.targets.loading import _build

# On models this small, threads only wait for each other.
torch.set_num_threads(1)

# A shell's background jobs ignore Ctrl-C, and so would the commands that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes longer than Hypothesis allows an example; Flower's and FLARE's environments have none.
if find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("gradleak", deadline=None)
    settings.load_profile("gradleak")

# Flower and FLARE have environments of their own: make test-flower, make test-flare.
collect_ignore_glob = [
    f"{room}/*" for room, package in (("flower", "flwr"), ("flare", "nvflare")) if not find_spec(package)
]

LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "attention_dropout": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
}
GEMMA: dict[str, Any] = LLAMA | {
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
    "roberta": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "albert": {
        "embedding_size": 8,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": None, "eos_token_id": None},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 4},
    "qwen2": LLAMA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": LLAMA | {"head_dim": 6},
    "gemma2": GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": GEMMA,
    "gpt_neox": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "mpnet": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
}
SMALL_WITHOUT_ATTENTION: dict[str, dict[str, Any]] = {
    "textcnn": {"embedding_size": 12, "filters": 16, "windows": (2, 3)},
    "lstm": {"embedding_size": 12, "hidden_size": 16},
}
FAMILY_NAMES = tuple(SMALL)
DECODERS = tuple(name for name in SMALL if "causal-lm" in family_of(name).tasks)
ALL_KINDS: list[tuple[str, Task]] = [
    *((name, "classification") for name in SMALL),
    *((name, "causal-lm") for name in DECODERS),
]
"""Every family with every task."""

TARGET_KINDS: list[tuple[str, Task]] = [
    *((name, "classification") for name in ("bert", "roberta", "distilbert", "albert", "gpt2", "gemma3_text")),
    ("gpt2", "causal-lm"),
    ("llama", "causal-lm"),
]
"""One of each kind of architecture, for tests that take longer."""
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "big", *string.ascii_lowercase[1:], ".", ","]


def small_tokenizer(special: bool = True) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer of some forty words, with or without [CLS] and [SEP] around a text."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def small_target(
    family: str = "bert",
    task: Task = "classification",
    *,
    num_labels: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Target:
    """Return a target of a few thousand parameters whose weights come from the seed."""
    tokenizer = small_tokenizer(special=family not in DECODERS)
    settings = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        "num_labels": num_labels,
    }
    config = AutoConfig.for_model(family, **settings | (SMALL | SMALL_WITHOUT_ATTENTION)[family] | changes)
    with torch.random.fork_rng():
        model = _build(config, task)
    initialise(model, [name for name, _ in model.named_parameters()], seed=seed, scale=0.2)
    with torch.no_grad():  # biases and LayerNorms away from their special values, or mistakes in them stay unseen
        for number, (_, parameter) in enumerate(sorted(model.named_parameters())):
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return Target(model, tokenizer, family_of(family), name=f"small-{family}", task=task, seed=seed).to(dtype=dtype)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the time for which each fuzz target runs."""
    parser.addoption("--fuzz-seconds", type=float, default=60.0, help="seconds for each fuzz target (tests/fuzz)")


@pytest.fixture
def fuzz_seconds(request: pytest.FixtureRequest) -> float:
    """The seconds for which a fuzz target runs."""
    return float(request.config.getoption("--fuzz-seconds"))


class PassesAfter(Deadline):
    """A deadline that passes when it was asked so often: no clock, the same on every machine."""

    def __init__(self, asks: int) -> None:
        super().__init__(1e6)
        self.asked, self._asks = 0, asks

    @property
    def passed(self) -> bool:
        self.asked += 1
        self.hit = self.hit or self.asked > self._asks
        return self.hit

    def sooner(self, seconds: float) -> Deadline:
        return self


@pytest.fixture(params=TARGET_KINDS, ids=["-".join(kind) for kind in TARGET_KINDS])
def any_target(request: pytest.FixtureRequest) -> Target:
    """Each kind of architecture in turn."""
    family, task = request.param
    return small_target(family, task)


@pytest.fixture(params=ALL_KINDS, ids=["-".join(kind) for kind in ALL_KINDS])
def every_target(request: pytest.FixtureRequest) -> Target:
    """Each family in turn, decoders also as language models."""
    family, task = request.param
    return small_target(family, task)


@pytest.fixture
def bert() -> Target:
    """A small BERT."""
    return small_target("bert")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece small enough to score by hand: "cats" is a token, and "cat", "##s" give the same text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "saw", "sat", "a", "##s", "cats", ".", "!"]
    core = Tokenizer(models.WordPiece(vocab={word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
