from __future__ import annotations

from typing import Any, get_args

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from gradleak.defenses import defend, defense_stream, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import WireFormat
from gradleak.federation import Client, FedAvg, sum_updates
from gradleak.simulation.transmission import BLOCK, QuantisedTensor, as_received
from gradleak.targets import Target

TEXTS, LABELS = ["the cat sat", "a big red dog ran"], [1, 0]


def spread(*shape: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=stream) * 10 ** torch.randn(shape, generator=stream)


@pytest.mark.parametrize(("wire", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_is_a_cast_there_and_back(wire: str, dtype: torch.dtype) -> None:
    tensor = spread(50, 70)
    assert torch.equal(as_received(tensor, wire), tensor.to(dtype).float())
    assert torch.equal(as_received(as_received(tensor, wire), wire), as_received(tensor, wire))


def test_fp16_sends_the_largest_number_in_place_of_infinity() -> None:
    assert as_received(torch.tensor([1e6, -1e6, 1.0]), "fp16").tolist() == [65504.0, -65504.0, 1.0]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(0, 7), max_size=3),
    block=st.sampled_from([None, 1, 3, 8, BLOCK]),
    seed=st.integers(0, 9),
)
def test_int8_is_off_by_half_a_code_at_most(shape: list[int], block: int | None, seed: int) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    quantised = QuantisedTensor.of(tensor, block)
    received = quantised.dequantise()
    assert quantised.codes.dtype == torch.int8
    assert received.shape == tensor.shape
    flat, back = tensor.flatten(), received.flatten()
    size = block or max(1, len(flat))
    for start in range(0, len(flat), size):
        part = flat[start : start + size]
        half = part.abs().max() / 127 / 2
        assert (back[start : start + size] - part).abs().max() <= half * (1 + 1e-5)


def test_int8_has_a_scale_for_each_block_or_for_the_whole_tensor() -> None:
    tensor = torch.cat([torch.full((BLOCK,), 1e-3), torch.full((BLOCK,), 1e3), torch.zeros(5)])
    assert QuantisedTensor.of(tensor).scales.flatten().tolist() == pytest.approx([1e-3 / 127, 1e3 / 127, 0])
    torch.testing.assert_close(as_received(tensor, "int8"), tensor)
    assert not as_received(tensor, "int8-tensor")[:BLOCK].any(), "one scale loses what is small"


def test_int8_refuses_what_has_no_scale() -> None:
    with pytest.raises(GradleakError, match="holds NaN or Inf, which int8 cannot send"):
        as_received(torch.tensor([1.0, float("nan")]), "int8")


@pytest.mark.parametrize("wire", get_args(WireFormat))
@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=2, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_a_client_sends_in_its_format_and_says_so(bert: Target, wire: Any, fedavg: FedAvg | None) -> None:
    exact = Client(bert, fedavg=fedavg).update(TEXTS, LABELS)
    sent = Client(bert, fedavg=fedavg, send=wire).update(TEXTS, LABELS)
    assert (sent.send, sent.kind) == (wire, exact.kind)
    for name, tensor in exact.tensors.items():
        assert torch.equal(sent.tensors[name], as_received(tensor, wire))
        assert sent.tensors[name].dtype == tensor.dtype
    changed = any(not torch.equal(sent.tensors[name], tensor) for name, tensor in exact.tensors.items())
    assert changed == (wire != "fp32")


def test_defenses_come_before_sending(bert: Target) -> None:
    client = Client(bert, send="bf16")
    update = client.send(defend(client.train(TEXTS, LABELS), [parse_defense("noise:0.01")], defense_stream(0)))
    assert all(torch.equal(as_received(tensor, "bf16"), tensor) for tensor in update.tensors.values())


def test_an_unknown_format_says_what_is_near(bert: Target) -> None:
    with pytest.raises(GradleakError, match="unknown number format to send 'int9'; did you mean 'int8'"):
        Client(bert, send="int9")  # type: ignore[arg-type]


@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=1, lr=0.5)], ids=["fedsgd", "fedavg"])
def test_the_gradient_of_a_sum_is_that_of_all_texts_together(bert: Target, fedavg: FedAvg | None) -> None:
    bert.to(dtype=torch.float64)
    client = Client(bert, fedavg=fedavg)
    each = [client.update([text], [label]) for text, label in zip(TEXTS, LABELS, strict=True)]
    total = sum_updates(each)
    assert total.clients == 2
    for name, tensor in total.tensors.items():
        torch.testing.assert_close(tensor, each[0].tensors[name] + each[1].tensors[name])
    together = client.update(TEXTS, LABELS).gradient()
    for name, tensor in total.gradient().items():
        torch.testing.assert_close(tensor, together[name], rtol=1e-7, atol=1e-9)


def test_the_sum_over_one_client_is_its_update(bert: Target) -> None:
    update = Client(bert).update(TEXTS, LABELS)
    assert sum_updates([update]) is update
