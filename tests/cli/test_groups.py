"""Groups of options: declared once as a dataclass, spliced into the commands that take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from gradleak.cli.options.groups import Without, with_groups


@dataclass(frozen=True)
class Box:
    """Every kind of option that a group may have."""

    label: Annotated[str, typer.Option()]
    width: Annotated[int, typer.Option(min=1)] = 3
    colours: Annotated[list[str] | None, typer.Option("--colour")] = None
    open: Annotated[bool, typer.Option("--open")] = False


seen: list[object] = []


@with_groups
def pack(*, things: Annotated[list[str], typer.Argument()], box: Box, quiet: bool = False) -> None:
    """Pack things."""
    seen.append((things, box, quiet))


@with_groups
def post(*, box: Annotated[Box, Without("width", "open")], stamp: Annotated[str, typer.Option()] = "blue") -> None:
    seen.append((box, stamp))


def run(command: object, *arguments: str) -> tuple[int, str]:
    seen.clear()
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)  # type: ignore[type-var]
    answer = CliRunner().invoke(app, arguments)
    return answer.exit_code, answer.output


def test_a_command_gets_its_groups_as_objects() -> None:
    assert run(pack, "a", "b", "--label", "x", "--width", "5", "--colour", "red", "--colour", "blue", "--quiet")[0] == 0
    assert seen == [(["a", "b"], Box("x", 5, ["red", "blue"]), True)]
    assert run(pack, "a", "--label", "x")[0] == 0
    assert seen == [(["a"], Box("x"), False)]


def test_options_are_shown_in_the_order_in_which_they_are_declared() -> None:
    code, text = run(pack, "--help")
    places = [text.index(word) for word in ("Pack things.", "--label", "--width", "--colour", "--open", "--quiet")]
    assert code == 0
    assert places == sorted(places)
    assert "--box" not in text


@pytest.mark.parametrize("arguments", [("a",), ("a", "--label", "x", "--width", "0")], ids=["missing", "out of range"])
def test_an_options_own_rules_hold(arguments: tuple[str, ...]) -> None:
    assert run(pack, *arguments)[0] == 2
    assert seen == []


def test_an_option_left_out_keeps_its_default() -> None:
    assert run(post, "--label", "x", "--stamp", "red")[0] == 0
    assert seen == [(Box("x"), "red")]
    assert run(post, "--label", "x", "--width", "5")[0] == 2


def test_leaving_out_what_is_not_there_is_a_mistake() -> None:
    def command(box: Annotated[Box, Without("height")]) -> None: ...

    with pytest.raises(AssertionError, match=r"Box has no .*height"):
        with_groups(command)
