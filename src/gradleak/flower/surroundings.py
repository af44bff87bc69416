"""What a Flower run has around an audit: wrappers of differential privacy, secure aggregation, mods of a client."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import Message
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import Strategy

from gradleak.errors import GradleakError

SECAGG = "secaggplus"
"""How the records of SecAgg and SecAgg+ begin."""

MASKED = "secure aggregation: single replies are masked, only their sum is there; the sum is attacked"


def wrapped_strategies(strategy: Any) -> Iterator[Any]:  # noqa: ANN401 - strategies of any kind
    """Yield a strategy and what it wraps, outermost first."""
    seen: set[int] = set()
    while isinstance(strategy, Strategy) and id(strategy) not in seen:
        seen.add(id(strategy))
        yield strategy
        strategy = vars(strategy).get("strategy")


def calling_strategies(own: Any) -> list[Any]:  # noqa: ANN401
    """Return the strategies around this one: those on the call stack that wrap it."""
    found: list[Any] = []
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        around = isinstance(caller, Strategy) and caller is not own and own in wrapped_strategies(caller)
        if around and all(caller is not each for each in found):
            found.append(caller)
        frame = frame.f_back
    return found


def privacy_notes(inside: Iterator[Any] | list[Any], outside: list[Any]) -> list[str]:
    """Return one line for each wrapper of differential privacy, on what it means for a client.

    Args:
        inside: strategies that the audit wraps.
        outside: strategies that wrap the audit.
    """
    return [
        *(_note(each, outside=False) for each in inside if _is_private(each)),
        *(_note(each, outside=True) for each in outside if _is_private(each)),
    ]


def _is_private(strategy: Any) -> bool:  # noqa: ANN401
    return hasattr(strategy, "noise_multiplier") and hasattr(strategy, "clipping_norm")


def _note(strategy: Any, *, outside: bool) -> str:  # noqa: ANN401
    name = type(strategy).__name__
    settings = f"noise multiplier {strategy.noise_multiplier:g}, clipping norm {strategy.clipping_norm:g}"
    noise = (
        f"{name} ({settings}) adds noise to the aggregate: it protects the released model, not a client from the server"
    )
    if outside and "ServerSide" in name:
        return (
            f"{noise}; it clipped the replies before the audit saw them: wrap the audit around it to see what arrived"
        )
    return noise


def is_masked(message: Message) -> bool:
    """Return whether a message belongs to a protocol of secure aggregation."""
    return any(key.startswith(SECAGG) for key in message.content.config_records)


def arrays_of(message: Message, what: str) -> Mapping[str, Any]:
    """Return the arrays of a message by name.

    Raises:
        GradleakError: if it has none, or several records of them.
    """
    records = list(message.content.array_records.values())
    if not records or not any(len(record) for record in records):
        raise GradleakError(f"{what} has no arrays")
    if len(records) > 1:
        raise GradleakError(f"{what} has {len(records)} records of arrays; the audit reads one: that of the weights")
    return {name: array.numpy() for name, array in records[0].items()}


def examples_of(message: Message, key: str = "num-examples") -> int | None:
    """Return the number of examples that a reply states; None if it states none."""
    for record in message.content.metric_records.values():
        if isinstance(record.get(key), int | float):
            return int(record[key])
    return None


def local_dp_in(call_next: Any) -> LocalDpMod | None:  # noqa: ANN401 - a function of Flower's chain of mods
    """Return the `LocalDpMod` among the mods that come after this one; None if there is none.

    Flower chains mods as closures, each of which holds its mod and the next function.
    """
    waiting, seen = [call_next], set()
    while waiting:
        function = waiting.pop()
        if isinstance(function, LocalDpMod):
            return function
        if id(function) in seen:
            continue
        seen.add(id(function))
        cells = getattr(function, "__closure__", None) or ()
        waiting.extend(cell.cell_contents for cell in cells if callable(cell.cell_contents))
    return None


def check_strategy(strategy: object) -> None:
    """Raise a GradleakError unless this is a strategy of the Message API."""
    if isinstance(strategy, Strategy):
        return
    if isinstance(strategy, type):
        raise GradleakError(f"LeakageAudit wraps a strategy: give {strategy.__name__}(…), not the class")
    kind = type(strategy)
    old = " of the older API" if kind.__module__.startswith("flwr.server") else ""
    raise GradleakError(f"LeakageAudit wraps a strategy of flwr.serverapp.strategy; {kind.__name__}{old} is none")


def check_alike(sent: Mapping[str, Any], reply: Mapping[str, Any], node: int) -> None:
    """Raise a GradleakError unless a reply has the arrays that were sent."""
    missing = next((name for name in sent if name not in reply), None)
    if missing is not None:
        raise GradleakError(f"the reply of client {node} lacks '{missing}', which it was sent")
    for name, array in sent.items():
        if array.shape != reply[name].shape:
            raise GradleakError(
                f"'{name}' in the reply of client {node} has shape {reply[name].shape}, not {array.shape}"
            )
