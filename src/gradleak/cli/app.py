"""The command line application: its commands, one-line errors and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from gradleak.cli.codes import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE
from gradleak.cli.commands import attack, audit, capture, demo, images, invert, listing, report, study
from gradleak.cli.interrupts import acknowledge, interrupt_code, interrupt_words, interrupted
from gradleak.cli.startup import announce, prepare_streams, print_notice, something_is_printed
from gradleak.errors import GradleakError
from gradleak.plugins import load_plugins
from gradleak.printable import in_one_line, visible
from gradleak.version import __version__

# Typer contains a copy of Click since 0.26 and used the package before; its exceptions are derived from the right one.
_ClickError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

DEBUG = "--debug"
QUIET = ("-q", "--quiet")
LONGEST_LINE = 2_000
"""Characters of an error line; names in foreign files may have any length."""

app = typer.Typer(
    name="gradleak",
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, private text among them
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
    debug: Annotated[  # taken from the arguments by `run`, wherever it stands
        bool, typer.Option(DEBUG, help="Print the traceback of an error, too; it may quote private text.")
    ] = False,
) -> None:
    """How much of your clients' text can be read back from the updates they send, and which defense stops it?"""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        if context.obj:  # see `run`
            announce("gradleak: loading …")
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
app.add_typer(images.app)
app.add_typer(study.app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: what follows the name of the program; those of the process by default.

    Raises:
        KeyboardInterrupt: if the command was interrupted and has not handled that itself.
    """
    for library in ("TRANSFORMERS", "HF_HUB"):  # errors are printed once, by `_refuse`
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    given = sys.argv[1:] if arguments is None else list(arguments)
    debug = DEBUG in _options(given)
    if debug:
        given.remove(DEBUG)
    try:
        prepare_streams()
        # A pipe gets the line, too: whoever reads it cannot tell a start of seconds from a command that hangs.
        announced = arguments is None and not {*QUIET} & {*given}
        code = app(args=given, prog_name="gradleak", standalone_mode=False, obj=announced)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if debug:
            print_notice(visible(traceback.format_exc().rstrip(), lines=True))
        return _after_interrupt(error) if interrupted() else _explain(error)
    finally:
        something_is_printed()
    if code == INTERRUPTED:
        acknowledge()
        code = interrupt_code()
        _print_error(interrupt_words())
    return code if isinstance(code, int) else 0


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, after which all are texts."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _after_interrupt(error: BaseException) -> int:
    """Return the exit code after an error that came of an interrupt, or while it was handled."""
    if not isinstance(error, GradleakError):  # a library turned the interrupt into an error of its own
        raise KeyboardInterrupt from None
    _refuse(str(error))  # such as partial results that cannot be written
    return interrupt_code()


def _explain(error: BaseException) -> int:
    """Print one line on what went wrong, and return the exit code."""
    if isinstance(error, typer.Abort):
        raise KeyboardInterrupt from None
    if isinstance(error, SystemExit):  # of Rich, when the pipe that it prints to is closed
        raise error
    if isinstance(error, BrokenPipeError):  # whoever read the output has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at the end of the process fails again
        return BROKEN_PIPE
    if isinstance(error, GradleakError):
        return _refuse(str(error))
    if isinstance(error, _ClickError):
        return _refuse(error.format_message())  # type: ignore[attr-defined]
    if isinstance(error, OSError):  # for example if standard output goes to a full disk
        place = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{place}{error.strerror or error}")
    if _is_lack_of_memory(error):
        return _refuse("there is not enough memory for this; take a smaller model or smaller batches")
    # The message of an error that nobody foresaw may quote private text.
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    _print_error(
        f"unexpected {type(error).__name__}{place}: this is a defect of gradleak {__version__}; "
        f"report it with what the same command prints with {DEBUG}"
    )
    return FAILED


def _is_lack_of_memory(error: BaseException) -> bool:
    words = str(error)
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate memory" in words


def _refuse(message: str) -> int:
    if message:  # empty after a command without arguments, which has printed its help
        _print_error(message)
    return USAGE


def _print_error(message: str) -> None:
    something_is_printed()
    line = in_one_line(message)
    print_notice(f"gradleak: {line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + '…'}")
