"""Forward hooks: capture what modules take and return, or change it, and always remove the hooks again.

Used by `dropout.py`, by the matching engine (`matching/trace.py`, `matching/classifier_matcher.py`), and by attacks
that read a layer's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.targets.target import Target

Hook = Callable[..., Any]
"""A hook as `register_forward_hook` or `register_forward_pre_hook` takes it; it may return a replacement."""


class StopForward(Exception):  # noqa: N818 - a signal, not an error
    """Raise it in a hook to end the forward pass and leave the `forward_hooks` context."""


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module in a forward pass.

    Attributes:
        path: the module's path in the model.
        module: the module.
        inputs: its first argument.
        output: what it returned; None if outputs are not captured.
    """

    path: str
    module: nn.Module
    inputs: Tensor
    output: Tensor | None = None


@contextmanager
def forward_hooks(
    after: Mapping[nn.Module, Hook] | None = None, before: Mapping[nn.Module, Hook] | None = None
) -> Iterator[None]:
    """Install hooks for the length of the context; a `StopForward` that one of them raises ends the context quietly.

    Args:
        after: hooks called after a module's forward pass, as `register_forward_hook` calls them.
        before: hooks called before it, as `register_forward_pre_hook` calls them.
    """
    handles = [module.register_forward_hook(hook) for module, hook in (after or {}).items()]
    handles += [module.register_forward_pre_hook(hook) for module, hook in (before or {}).items()]
    try:
        yield
    except StopForward:
        pass
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def captured_calls(
    target: Target,
    paths: Iterable[str],
    *,
    outputs: bool = False,
    stop: Callable[[Sequence[ModuleCall]], bool] | None = None,
) -> Iterator[list[ModuleCall]]:
    """Yield a list that fills with the calls of the named modules, in order, while forward passes run in the context.

        with captured_calls(target, [target.classifier]) as calls:
            logits = target.logits(target.embed(ids), mask)
        features = calls[-1].inputs

    Args:
        target: the model.
        paths: paths of the modules.
        outputs: also capture outputs; the order is then that in which modules finish.
        stop: given the calls so far, decides whether to end the forward pass (and the context) at once. Without
            `outputs`, the module that ends it is not computed.
    """
    calls: list[ModuleCall] = []

    def capture(path: str) -> Hook:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> None:
            calls.append(ModuleCall(path, module, inputs[0], output))
            if stop is not None and stop(calls):
                raise StopForward

        return hook

    hooks = {target.model.get_submodule(path): capture(path) for path in paths}
    with forward_hooks(after=hooks) if outputs else forward_hooks(before=hooks):
        yield calls


@torch.no_grad()
def captured_inputs(target: Target, ids: Tensor, paths: Sequence[str]) -> dict[str, Tensor]:
    """Return the first input `[sequences, tokens, width]` of each named module, without padding.

    The forward pass ends at the last module to be reached; modules that it never reaches are missing from the result.

    Args:
        target: the model.
        ids: token ids `[sequences, tokens]`.
        paths: paths of the modules.
    """
    found: dict[str, Tensor] = {}

    def all_reached(calls: Sequence[ModuleCall]) -> bool:
        found.setdefault(calls[-1].path, calls[-1].inputs)
        return len(found) == len(paths)

    with captured_calls(target, paths, stop=all_reached):
        target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    return found
