"""The command line application: its commands, one-line errors and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gradleak.cli.codes import INTERRUPTED, USAGE
from gradleak.cli.commands import attack, audit, capture, demo, invert, listing, report, study
from gradleak.errors import GradleakError
from gradleak.plugins import load_plugins
from gradleak.version import __version__

# Typer contains a copy of Click since 0.26 and used the package before; its exceptions are derived from the right one.
_ClickError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="gradleak",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradleak {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog="Example: gradleak demo")
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """How much of your clients' text can be read back from the updates they send, and which defense stops it?"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        load_plugins()


app.command(epilog="Example: gradleak demo --seed 1")(demo.demo)
app.command(
    epilog="Example: gradleak attack 'the patient was given ten milligrams' --preset fast --defense noise:0.001"
)(attack.attack)
app.command(epilog="Example: gradleak capture 'the patient was given ten milligrams' -o update.safetensors")(
    capture.capture
)
app.command(epilog="Example: gradleak audit --model tiny --data cola --take 0:16 --budget 3m -o audit/")(audit.audit)
app.command(epilog="Example: gradleak report audit/ --reveal")(report.report)
app.command("list", epilog="Example: gradleak list attacks; gradleak list attacks lamp")(listing.show)
app.add_typer(invert.app)
app.add_typer(study.app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for library in ("TRANSFORMERS", "HF_HUB"):  # errors are printed once, by `_refuse`
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="gradleak", standalone_mode=False)
    except GradleakError as error:
        return _refuse(str(error))
    except _ClickError as error:
        return _refuse(error.format_message())  # type: ignore[attr-defined]
    except OSError as error:  # for example if standard output goes to a full disk
        place = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{place}{error.strerror or error}")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("gradleak: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    if message:  # empty after a command without arguments, which has printed its help
        print(f"gradleak: {' '.join(message.split())}", file=sys.stderr)
    return USAGE
