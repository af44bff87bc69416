"""The notation of a fresh adapter: one on the command line, in files and in Python."""

from __future__ import annotations

import pytest

from gradleak.errors import GradleakError
from gradleak.targets import Lora

EXAMPLES = {
    "r=8,alpha=16,rounds=1": Lora(),
    "r=2,alpha=16,targets=q_proj+v_proj,rounds=0": Lora(r=2, targets="q_proj+v_proj", rounds=0),
    "r=4,alpha=0.5,targets=all-linear,dropout=0.05,rounds=3,rslora=true": Lora(
        r=4, alpha=0.5, targets="all-linear", dropout=0.05, rounds=3, rslora=True
    ),
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_settings_are_read_as_they_are_written(text: str) -> None:
    assert Lora.parse(text) == EXAMPLES[text]
    assert str(EXAMPLES[text]) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r=0", "r must be at least 1, not 0"),
        ("r=-3", "r must be at least 1, not -3"),
        ("r=two", "lora r takes a whole number, not 'two'"),
        ("rank=8", "unknown setting of lora 'rank'"),
        ("8", "lora takes r=8,alpha=16,targets=q_proj+v_proj and the like, not '8'"),
        ("alpha=0", "alpha must be above 0, not 0"),
        ("dropout=1", "dropout must be below 1, not 1"),
        ("targets=query+", "targets takes names with + between them, such as q_proj+v_proj, not 'query+'"),
        ("rounds=-1", "rounds must be at least 0, not -1"),
        ("rslora=perhaps", "lora rslora takes true or false, not 'perhaps'"),
    ],
)
def test_a_mistake_gets_one_line(text: str, message: str) -> None:
    with pytest.raises(GradleakError, match="^" + message.replace("+", r"\+")):
        Lora.parse(text)


def test_rslora_is_another_scaling() -> None:
    assert Lora(r=16, alpha=32).scaling == 2
    assert Lora(r=16, alpha=32, rslora=True).scaling == 8
