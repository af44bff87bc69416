"""Hooks capture or change what modules compute, and are gone afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.targets import Target
from gradleak.targets.hooks import StopForward, captured_calls, captured_inputs, forward_hooks


def run(target: Target) -> Tensor:
    ids, mask = target.encode(["the cat sat on a mat", "a big red dog"])
    return target.logits(target.embed(ids), mask)


def hooks_of(target: Target) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in target.model.modules())


def test_inputs_and_outputs_of_modules_are_captured_in_order(any_target: Target) -> None:
    layer = any_target.layers[0]
    paths = [any_target.classifier, layer.feed_forward_in.module, layer.query.module]
    with captured_calls(any_target, paths) as calls:
        logits = run(any_target)
    assert calls[0].path == layer.query.module
    assert calls[-1].path == any_target.classifier
    assert all(call.output is None for call in calls)
    with captured_calls(any_target, paths, outputs=True) as complete:
        assert torch.equal(run(any_target), logits)
    assert [call.path for call in complete] == [call.path for call in calls]
    for call, other in zip(complete, calls, strict=True):
        assert torch.equal(call.inputs, other.inputs)
        assert call.output is not None
        assert torch.equal(call.module(call.inputs), call.output)
    assert not hooks_of(any_target)


def test_a_pass_stops_where_it_is_told_to(bert: Target) -> None:
    first, second = (layer.query.module for layer in bert.layers)
    with captured_calls(bert, [first, second, bert.classifier], stop=lambda calls: calls[-1].path == second) as calls:
        run(bert)
        pytest.fail("the forward pass went on")
    assert [call.path for call in calls] == [first, second]
    assert not hooks_of(bert)


def test_captured_inputs_are_those_of_the_first_calls(any_target: Target) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    paths = [any_target.layers[-1].feed_forward_in.module, any_target.layers[0].query.module]
    with captured_calls(any_target, paths) as calls:
        any_target.logits(any_target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    found = captured_inputs(any_target, ids, paths)
    assert set(found) == set(paths)
    for path in paths:
        assert torch.equal(found[path], next(call.inputs for call in calls if call.path == path))


def test_hooks_may_replace_inputs_and_outputs(bert: Target) -> None:
    module = bert.model.get_submodule(bert.classifier)
    with forward_hooks(after={module: lambda _module, _inputs, output: output * 0}):
        assert not run(bert).any()
    with forward_hooks(before={module: lambda _module, inputs: (inputs[0] * 0,)}):
        assert torch.equal(run(bert)[0], module.bias)
    assert run(bert).any()


@pytest.mark.parametrize("error", [StopForward, RuntimeError])
def test_hooks_are_removed_whatever_happens(bert: Target, error: type[Exception]) -> None:
    def fail(*_: object) -> None:
        raise error

    hooks = {module: fail for module in bert.model.modules() if isinstance(module, nn.Linear)}
    if error is StopForward:
        with forward_hooks(hooks):
            run(bert)
    else:
        with pytest.raises(RuntimeError), forward_hooks(hooks):
            run(bert)
    assert not hooks_of(bert)
