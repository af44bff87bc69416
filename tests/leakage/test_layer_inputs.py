from __future__ import annotations

import pytest
import torch

from conftest import FAMILY_NAMES, small_target
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target, family_of

every_family = pytest.mark.parametrize("family", FAMILY_NAMES)


def fed_to(target: Target, module: str, ids: torch.Tensor) -> torch.Tensor:
    fed: list[torch.Tensor] = []
    handle = target.model.get_submodule(module).register_forward_pre_hook(lambda _, x: fed.append(x[0]))
    target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    handle.remove()
    return fed[0]


@every_family
def test_the_tables_give_what_the_first_map_is_fed(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    inputs = first_layer_inputs(target)
    ids = torch.tensor([[2, 7, 9, 7, 3]])
    expected = fed_to(target, inputs.maps[0].module, ids)
    torch.testing.assert_close(inputs(ids[0], torch.arange(5))[None], expected)


@every_family
def test_the_first_maps_and_their_dropout_are_found(family: str) -> None:
    target = small_target(family)
    inputs = first_layer_inputs(target)
    assert inputs.dropout_before_norm == (family in ("gpt2", "gpt_neox"))
    no_dropout_there = family_of(family).rotary and family != "gpt_neox"
    assert inputs.rate == pytest.approx(0.0 if no_dropout_there else 0.1)
    layer = target.layers[0]
    if family == "albert":
        assert [part.module for part in inputs.maps] == ["albert.encoder.embedding_hidden_mapping_in"]
    else:
        assert inputs.maps == (layer.query, layer.key, layer.value)


@every_family
def test_the_scan_is_the_product_with_every_vector(family: str) -> None:
    inputs = first_layer_inputs(small_target(family, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(inputs.width, 5, generator=generator, dtype=torch.float64))[0]
    tokens, positions = torch.tensor([1, 5, 9, 30]), torch.tensor([0, 3, 8])
    vectors = inputs(tokens[:, None].expand(-1, 3), positions.expand(4, -1))
    expected = (vectors @ basis).square().sum(dim=-1) / vectors.square().sum(dim=-1)
    torch.testing.assert_close(inputs.captured_energy(basis, tokens, positions), expected)


@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if family_of(name).rotary])
def test_with_rotary_positions_a_token_gives_the_same_vector_at_every_position(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    inputs = first_layer_inputs(target)
    assert not inputs.by_position
    assert len(inputs.positions) == 1
    tokens = torch.tensor([4, 7, 9])
    vectors = inputs(tokens[:, None].expand(-1, 3), torch.tensor([0, 5, 5000]).expand(3, -1))
    assert torch.equal(vectors, vectors[:, :1].expand_as(vectors))
    energy = inputs.captured_energy(torch.eye(16, dtype=torch.float64)[:, :4], tokens, torch.tensor([0, 5000]))
    assert torch.equal(energy[:, 0], energy[:, 1])
