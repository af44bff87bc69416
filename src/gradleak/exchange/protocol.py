"""The public part of local training: what a client's protocol states, and what an `Update` carries of it.

`FedAvg` is declared once with `setting`; the command line, study files and the metadata of updates are read by that
declaration. The client's seed and the number of its texts are no part of it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace
from math import ceil, gcd, isfinite
from typing import Any, Literal, get_args

from gradleak.bounds import MOST_STEPS, SMALLEST_RATE
from gradleak.errors import GradleakError, unknown_name
from gradleak.settings import check_settings, parse_settings_text, setting, settings_of, settings_texts

Precision = Literal["fp32", "bf16", "fp16"]
"""Number format of the forward and backward pass (autocast); weights and gradients stay float32."""

WireFormat = Literal["fp32", "fp16", "bf16", "int8", "int8-tensor"]
"""Number format in which tensors leave the client; the server converts them back to float32.

`int8`: one scale for each block of 4,096 entries; `int8-tensor`: one scale for each tensor.
"""

FORM = "steps=N,lr=RATE and maybe batch=N"
_ALWAYS_WRITTEN = ("steps", "lr", "batch")
_TRANSPORT = ("precision", "send", "clients")
_ONLY_OF = {"momentum": ("sgd",), "beta1": ("adam", "adamw"), "beta2": ("adam", "adamw"), "eps": ("adam", "adamw")}


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Local training whose change of the weights is sent (McMahan et al. 2017).

    With `steps` alone batches are taken in order and cyclically, so a batch may begin at the last text and continue at
    the first. With `epochs` the last batch of each pass is what remains, as in a DataLoader. Defaults of `adam` and
    `adamw` are those of Hugging Face's Trainer; weight decay applies to every trained parameter, as in torch.optim
    (the Trainer leaves out biases and LayerNorms).
    """

    steps: int | None = setting(None, "steps of the optimiser; or give epochs", least=1, most=MOST_STEPS)
    lr: float = setting(MISSING, "learning rate", above=0)
    batch: int | None = setting(None, "texts in a mini-batch; none for all of them", unit="texts", least=1)
    epochs: int | None = setting(None, "passes over the client's texts, in place of steps", least=1, most=MOST_STEPS)
    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "optimiser, of torch.optim")
    momentum: float = setting(0.0, "momentum of sgd", least=0, most=1)
    weight_decay: float = setting(0.0, "weight decay; decoupled in adamw, L2 in the others", least=0)
    beta1: float = setting(0.9, "decay of the first moment of adam and adamw", least=0, most=1)
    beta2: float = setting(0.999, "decay of the second moment of adam and adamw", least=0, most=1)
    eps: float = setting(1e-8, "term added to the denominator of adam and adamw", above=0)
    schedule: Literal["constant", "linear"] = setting("constant", "learning rate after the warm-up; linear falls to 0")
    warmup: int = setting(0, "steps over which the learning rate rises from 0", least=0)
    clip: float = setting(0.0, "largest norm of a step's gradient; 0 for no clipping", least=0)
    accumulate: int = setting(1, "mini-batches whose mean gradient makes one step", least=1)
    shuffle: bool = setting(False, "whether each pass takes the texts in an order drawn from the client's seed")

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise GradleakError(f"steps={self.steps} and epochs={self.epochs} exclude each other: give one of them")
        if self.steps is None and self.epochs is None:
            raise GradleakError("FedAvg needs steps or epochs")
        if _below(self.steps, 1) or not self.lr > 0 or _below(self.batch, 1):
            raise GradleakError("FedAvg needs steps of at least 1, lr above 0 and batch of at least 1")
        check_settings(self)
        self._check_numbers()
        self._check_optimizer()
        if self.steps is not None and self.warmup >= self.steps:
            raise GradleakError(f"warmup={self.warmup} leaves none of {self.steps} steps at the full rate; give fewer")

    def _check_numbers(self) -> None:
        values = {name: getattr(self, name) for name in settings_of(FedAvg)}
        strange = next((n for n, v in values.items() if isinstance(v, float) and not isfinite(v)), None)
        if strange is not None:
            raise GradleakError(f"{strange} takes a number, not {values[strange]}")
        if self.lr < SMALLEST_RATE:
            raise GradleakError(f"lr must be at least {SMALLEST_RATE:g}, not {self.lr:g}")
        for name in ("momentum", "beta1", "beta2"):
            if values[name] == 1:
                raise GradleakError(f"{name} must be below 1")

    def _check_optimizer(self) -> None:
        declared = settings_of(FedAvg)
        for name, optimizers in _ONLY_OF.items():
            if self.optimizer not in optimizers and getattr(self, name) != declared[name].default:
                raise GradleakError(f"{name} is a setting of {' and '.join(optimizers)}, not of {self.optimizer}")

    @classmethod
    def parse(cls, text: str, option: str = "protocol") -> FedAvg:
        """Read `steps=4,lr=5e-5,batch=1`, and further settings.

        Raises:
            GradleakError: if a setting is unknown, takes no such value, or steps or rate are missing.
        """
        values = parse_settings_text(cls, text, option, FORM)
        length = () if "epochs" in values else ("steps",)
        missing = [key for key in (*length, "lr") if key not in values]
        if missing:
            raise GradleakError(f"{option} lacks {' and '.join(missing)}: {FORM}")
        return cls(**values)

    def __str__(self) -> str:
        return ",".join(settings_texts(self.as_dict()))

    @property
    def in_words(self) -> str:
        """The protocol as `FedAvg (4 steps, lr 5e-05, optimizer=adamw)`."""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        length = f"{self.steps} steps" if self.epochs is None else epochs
        rest = {name: value for name, value in self.as_dict().items() if name not in ("steps", "epochs", "lr")}
        return f"FedAvg ({', '.join([length, f'lr {self.lr:g}', *settings_texts(rest)])})"

    def as_dict(self) -> dict[str, Any]:
        """Return steps, lr and batch, and every other setting that differs from its default."""
        values = {name: (getattr(self, name), one.default) for name, one in settings_of(FedAvg).items()}
        return {name: value for name, (value, default) in values.items() if name in _ALWAYS_WRITTEN or value != default}

    def num_steps(self, texts: int) -> int:
        """Return the number of steps of the optimiser on so many texts."""
        if self.steps is not None:
            return self.steps
        batches = ceil(texts / (self.batch or texts))
        return (self.epochs or 1) * ceil(batches / self.accumulate)

    def in_steps(self, texts: int) -> FedAvg:
        """Return the same training on so many texts with steps in place of epochs; itself if a step is not full."""
        if self.epochs is None or texts % ((self.batch or texts) * self.accumulate):
            return self
        steps = self.num_steps(texts)
        return replace(self, epochs=None, steps=steps) if self.warmup < steps <= MOST_STEPS else self

    def distinct_steps(self, texts: int | None) -> int:
        """Return how many steps take other texts than every earlier one: without shuffling, a client repeats itself.

        If the number of texts is not known, each step takes others unless it takes all of them.
        """
        if self.batch is None:
            return 1
        if texts is None:
            return self.steps or self.epochs or 1
        steps = self.num_steps(texts)
        if self.shuffle:
            return steps
        repeated = steps // self.epochs if self.epochs else texts // gcd(texts, self.batch * self.accumulate)
        return min(steps, repeated)

    def rate_factor(self, step: int, total: int) -> float:
        """Return the learning rate of a step, counted from 0, relative to `lr`, as the Trainer's schedules do."""
        if step < self.warmup:
            return step / self.warmup
        if self.schedule == "constant":
            return 1.0
        return max(0.0, (total - step) / max(1, total - self.warmup))


@dataclass(frozen=True)
class Protocol:
    """All that is public of how an update was made; `Update` documents the fields."""

    training: FedAvg | None = None
    precision: Precision = "fp32"
    send: WireFormat = "fp32"
    clients: int = 1

    def __post_init__(self) -> None:
        for name, allowed in (("precision", get_args(Precision)), ("send", get_args(WireFormat))):
            if getattr(self, name) not in allowed:
                raise unknown_name(name, str(getattr(self, name)), allowed)
        if self.clients < 1:
            raise GradleakError(f"clients must be at least 1, not {self.clients}")

    @classmethod
    def parse(cls, text: str, option: str = "protocol") -> Protocol:
        """Read `optimizer=adamw,lr=5e-5,steps=10,batch=4,precision=bf16,send=fp16,clients=1`.

        Without settings of local training it is one of gradients: `send=fp16`, or an empty text.

        Raises:
            GradleakError: with the nearest name, if there is no such setting; or if a value makes no sense.
        """
        parts = [part.strip() for part in text.split(",") if part.strip()]
        names = [part.partition("=")[0].strip() for part in parts]
        for name in names:
            if name not in (*settings_of(FedAvg), *_TRANSPORT):
                raise unknown_name(f"setting of {option}", name, (*settings_of(FedAvg), *_TRANSPORT))
        pairs = [part.partition("=") for part in parts]
        stated = {name.strip(): value.strip() for name, _, value in pairs if name.strip() in _TRANSPORT}
        training = ",".join(part for part, name in zip(parts, names, strict=True) if name not in _TRANSPORT)
        clients = stated.pop("clients", "1")
        if not clients.isdecimal():
            raise GradleakError(f"{option} clients takes a whole number, not '{clients}'")
        fields: dict[str, Any] = {**stated, "clients": int(clients)}
        return cls(FedAvg.parse(training, option) if training else None, **fields)

    def __str__(self) -> str:
        others = {"precision": "fp32", "send": "fp32", "clients": 1}
        stated = {name: getattr(self, name) for name, usual in others.items() if getattr(self, name) != usual}
        training = [] if self.training is None else [str(self.training)]
        return ",".join([*training, *settings_texts(stated)])


def _below(value: float | None, least: float) -> bool:
    return value is not None and value < least
