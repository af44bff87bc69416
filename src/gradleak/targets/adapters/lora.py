"""`Lora`: the settings of a fresh LoRA adapter, declared once for the command line, studies and update files."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

from gradleak.bounds import LARGEST_RANK, MOST_STEPS
from gradleak.errors import GradleakError
from gradleak.settings import check_settings, parse_settings_text, setting, settings_of, settings_texts

ALL_LINEAR = "all-linear"
FORM = "r=8,alpha=16,targets=q_proj+v_proj and the like"
_ALWAYS_WRITTEN = ("r", "alpha", "targets", "rounds")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A fresh LoRA adapter (Hu et al. 2022): W x + scaling · B A x in place of W x, with A `[r, in]` and B `[out, r]`.

    A is drawn from the public model seed as PEFT draws it, uniformly within ±1 / √in. B is zero before the first
    round (`rounds=0`), so that A has no gradient yet; one step on public text, the default, moves it away from there:
    every round but the first is like that.
    """

    r: int = setting(8, "rank", least=1, most=LARGEST_RANK)
    alpha: float = setting(16.0, "the scaling is alpha / r", above=0)
    targets: str | None = setting(
        None, "adapted modules, by the end of their names, with + between them; all-linear; none for query and value"
    )
    dropout: float = setting(0.0, "dropout rate of the adapters' input, while the client trains with dropout", least=0)
    rounds: int = setting(
        1,
        "steps on public text before the client trains; 0 for the first round, where B = 0",
        least=0,
        most=MOST_STEPS,
    )
    rslora: bool = setting(False, "whether the scaling is alpha / √r (rank-stabilised)")

    def __post_init__(self) -> None:
        check_settings(self)
        if not isfinite(self.alpha):
            raise GradleakError(f"alpha takes a number, not {self.alpha}")
        if not self.dropout < 1:
            raise GradleakError(f"dropout must be below 1, not {self.dropout:g}")
        if self.targets is not None and not all(self.target_list):
            raise GradleakError(f"targets takes names with + between them, such as q_proj+v_proj, not '{self.targets}'")

    @classmethod
    def parse(cls, text: str, option: str = "lora") -> Lora:
        """Read settings as the command line and update files have them: `r=8,alpha=16,targets=q_proj+v_proj`."""
        return cls(**parse_settings_text(cls, text, option, FORM))

    def __str__(self) -> str:
        return ",".join(self._texts)

    @property
    def in_words(self) -> str:
        """The adapter as `LoRA (r=8, alpha=16, targets=query+value)`."""
        return f"LoRA ({', '.join(self._texts)})"

    @property
    def _texts(self) -> list[str]:
        return settings_texts(self.as_dict())

    @property
    def target_list(self) -> list[str]:
        """The names in `targets`."""
        return [] if self.targets is None else [name.strip() for name in self.targets.split("+")]

    @property
    def scaling(self) -> float:
        """The factor of B A x."""
        return self.alpha / (sqrt(self.r) if self.rslora else self.r)

    def as_dict(self) -> dict[str, Any]:
        """Return rank, alpha, targets and rounds, and every other setting that differs from its default."""
        values = {name: (getattr(self, name), one.default) for name, one in settings_of(Lora).items()}
        return {name: value for name, (value, default) in values.items() if name in _ALWAYS_WRITTEN or value != default}
