"""Groups of options: a dataclass declares several options, and a command takes them as one argument.

    @dataclass(frozen=True)
    class ModelChoice:
        model: Model = None
        device: Device = "auto"

    @with_groups
    def capture(model: ModelChoice, quiet: Quiet = False) -> None: ...

gives Typer a command with the options --model, --device and --quiet. `Annotated[ClientChoice, Without("fedavg")]` omits
an option of the group, which then has its default value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints


class Without:
    """Marks options of a group that a command omits."""

    def __init__(self, *names: str) -> None:
        self.names = names


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every group among a command's parameters by its options, so that Typer sees plain options."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind, *notes = _parts(hints[parameter.name])
        if isinstance(kind, type) and is_dataclass(kind):
            left_out = {name for note in notes if isinstance(note, Without) for name in note.names}
            options = _options(kind, left_out)
            groups[parameter.name] = kind, [option.name for option in options]
            parameters += options
        else:
            parameters.append(_option(parameter.name, hints[parameter.name], parameter.default))

    @functools.wraps(command)
    def spliced(**values: Any) -> None:  # noqa: ANN401
        taken = {
            name: kind(**{option: values.pop(option) for option in options}) for name, (kind, options) in groups.items()
        }
        command(**taken, **values)

    spliced.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spliced.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spliced


def _parts(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def _options(group: type, left_out: set[str]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    declared: dict[str, Field[Any]] = {field.name: field for field in fields(group)}
    assert left_out <= declared.keys(), f"{group.__name__} has no {left_out - declared.keys()}"
    return [
        _option(name, hints[name], inspect.Parameter.empty if field.default is MISSING else field.default)
        for name, field in declared.items()
        if name not in left_out
    ]


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    # Keyword-only: a required option may then follow one with a default.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
