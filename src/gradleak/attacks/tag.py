"""TAG: DLG with an L1 term in the distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.attacks.base import register
from gradleak.attacks.dlg import Dlg
from gradleak.matching import L2L1, Distance
from gradleak.settings import setting


@register
@dataclass(frozen=True, kw_only=True)
class Tag(Dlg):
    """TAG (Deng et al., Findings of EMNLP 2021), as LAMP's paper describes and tunes it: DLG but for the distance."""

    name: ClassVar[str] = "tag"
    paper: ClassVar[str] = "Deng et al. 2021, TAG: Gradient Attack on Transformer-based Language Models"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **Dlg.presets,
        "large": {**Dlg.presets["large"], "lr": 0.01},  # LAMP, appendix D: for BERT-large
    }

    alpha: float = setting(0.01, "weight of the L1 term", least=0, paper="LAMP, appendix D")

    def distance(self) -> Distance:
        """L2 + α · L1."""
        return L2L1(alpha=self.alpha)
