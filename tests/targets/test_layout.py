from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from eager_twin import PADDED_TEXTS, own_logits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AttentionInterface

from conftest import FAMILY_NAMES, SMALL, SMALL_WITHOUT_ATTENTION, small_target
from gradleak.errors import GradleakError
from gradleak.targets import FAMILIES, Family, Layer, Projection, Target, family_of
from gradleak.targets.attention import NAME as ATTENTION

EMBEDDINGS = {
    "bert": {"word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"},
    "roberta": {"word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"},
    "albert": {"word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"},
    "distilbert": {"word_embeddings.weight", "position_embeddings.weight"},
    "mpnet": {"word_embeddings.weight", "position_embeddings.weight"},
}
NORM = {"LayerNorm.weight", "LayerNorm.bias"}


class Recorder:
    """What each attention was called with, and what each module took in and gave out, in the order of the calls."""

    def __init__(self, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attention: list[dict[str, Tensor]] = []
        self.modules: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.order: list[str] = []
        plain = AttentionInterface._global_mapping[ATTENTION]

        def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor, **named: object) -> object:
            output, weights = plain(module, query, key, value, *rest, **named)
            merged = {"query": query, "key": key, "value": value}
            heads = {name: tensor.transpose(1, 2).flatten(2) for name, tensor in merged.items()}
            self.attention.append(heads | {"output": output.flatten(2)})
            return output, weights

        monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION, spy)
        for path, module in target.model.named_modules():
            module.register_forward_hook(self._hook(path))

    def _hook(self, path: str) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs and isinstance(output, Tensor):
                self.modules.setdefault(path, []).append((inputs[0], output))
                self.order.append(path)

        return note


def mapped(target: Target, projection: Projection, inputs: Tensor) -> Tensor:
    """Return what a projection makes of its inputs."""
    outputs = inputs @ projection.weight_in(target.parameters).T
    return outputs + projection.bias_in(target.parameters) if projection.bias in target.parameters else outputs


@pytest.mark.parametrize("family", sorted(set(FAMILY_NAMES) - {"mpnet"}))  # its attention is its own
def test_projections_reproduce_what_attention_is_called_with(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target(family, dtype=torch.float64)
    recorder = Recorder(target, monkeypatch)
    own_logits(target, target.encode(PADDED_TEXTS))
    by_query = {layer.query.module: layer for layer in target.layers}
    used = [by_query[path] for path in recorder.order if path in by_query]
    assert len(used) == len(recorder.attention) == target.config.num_hidden_layers
    calls: dict[str, int] = {}
    for layer, call in zip(used, recorder.attention, strict=True):
        number = calls.get(layer.query.module, 0)  # a layer may be used several times (ALBERT)
        calls[layer.query.module] = number + 1
        for name in ("query", "key", "value"):
            projection: Projection = getattr(layer, name)
            inputs, _ = recorder.modules[projection.module][number]
            outputs = mapped(target, projection, inputs)
            if name == "value" or not target.family.rotary:
                assert_close(outputs, call[name])
            else:  # norms and rotations come between, and a rotation keeps the first token
                assert outputs.shape == call[name].shape
                if not hasattr(target.model.get_submodule(projection.module.rpartition(".")[0]), "q_norm"):
                    assert_close(outputs[:, 0], call[name][:, 0])
        context, _ = recorder.modules[layer.attention_output.module][number]
        assert_close(context, call["output"])


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_projections_are_the_linear_maps_of_their_modules(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target(family, dtype=torch.float64)
    recorder = Recorder(target, monkeypatch)
    own_logits(target, target.encode(PADDED_TEXTS))
    config = target.config
    width, inner = 16, len(target.layers[0].feed_forward_in.weight_in(target.parameters))
    heads = config.num_attention_heads * (getattr(config, "head_dim", None) or width // config.num_attention_heads)
    shared = heads * getattr(config, "num_key_value_heads", config.num_attention_heads) // config.num_attention_heads
    shapes = {"query": (heads, width), "key": (shared, width), "value": (shared, width)}
    shapes |= {"attention_output": (width, heads), "feed_forward_gate": (inner, width)}
    shapes |= {"feed_forward_in": (inner, width), "feed_forward_out": (width, inner)}
    assert shapes.keys() == Layer.__dataclass_fields__.keys()
    assert inner != width
    for layer in target.layers:
        for name, shape in shapes.items():
            projection: Projection | None = getattr(layer, name)
            if projection is None:
                assert name == "feed_forward_gate"
                continue
            assert projection in layer.projections
            assert tuple(projection.weight_in(target.parameters).shape) == shape
            inputs, outputs = recorder.modules[projection.module][0]
            assert_close(mapped(target, projection, inputs), outputs[..., projection.rows])


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_layers_are_in_order_and_shared_ones_are_listed_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target(family)
    recorder = Recorder(target, monkeypatch)
    own_logits(target, target.encode(["cat"]))
    queries = [layer.query.module for layer in target.layers]
    assert queries == list(dict.fromkeys(path for path in recorder.order if path in queries))
    assert len(queries) == (1 if family == "albert" else 2)


def test_layers_of_an_albert_with_groups_are_all_found() -> None:
    target = small_target("albert", num_hidden_groups=3, inner_group_num=2)
    paths = [layer.query.weight for layer in target.layers]
    assert len(set(paths)) == 6
    assert set(paths) <= target.parameters.keys()


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_embedding_parameters_are_words_positions_types_and_their_norm(family: str) -> None:
    target = small_target(family)
    expected = {f"{family}.embeddings.{name}" for name in EMBEDDINGS.get(family, set()) | NORM}
    if family == "gpt2":
        expected = {"transformer.wte.weight", "transformer.wpe.weight"}
    if target.family.rotary:
        expected = {f"{target.family.word_embedding}.weight"}
    assert target.embedding_parameters == expected
    assert target.embedding_parameters <= target.parameters.keys()


def test_word_embeddings_are_the_models_input_embeddings(every_target: Target) -> None:
    table = every_target.model.get_input_embeddings().weight
    assert every_target.word_embeddings is table
    (name,) = every_target.word_parameters
    assert every_target.parameters[name] is table
    assert every_target.word_parameters <= every_target.embedding_parameters
    ids = torch.tensor([[3, 1], [0, 7]])
    assert torch.equal(every_target.embed(ids), table[ids])


def test_the_classifier_is_the_layer_that_gives_the_logits(
    every_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(every_target, monkeypatch)
    logits = own_logits(every_target, every_target.encode(PADDED_TEXTS))
    outputs = recorder.modules[every_target.classifier][-1][1]
    if every_target.task == "causal-lm" and every_target.family.logits_capped(every_target.config):
        outputs = 3 * torch.tanh(outputs / 3)
    assert torch.equal(outputs, logits)
    linear = [path for path in recorder.order if hasattr(every_target.model.get_submodule(path), "weight")]
    assert linear[-1] == every_target.classifier


@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if not family_of(name).rotary])
def test_the_first_token_uses_the_row_of_the_position_offset(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target(family)
    recorder = Recorder(target, monkeypatch)
    path = str(target.family.position_embedding)
    own_logits(target, target.encode(["cat sat"]))
    rows = recorder.modules[path][0][0].flatten().tolist()
    offset = target.family.position_offset(target.config)
    assert rows == list(range(offset, offset + len(rows)))
    assert offset == {"roberta": 1, "mpnet": 2}.get(family, 0)  # RoBERTa's padding index is 0 here


def test_roberta_counts_positions_from_its_padding_index() -> None:
    assert family_of("roberta").position_offset(SimpleNamespace(pad_token_id=1)) == 2


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_text_of_the_greatest_length_still_fits(family: str) -> None:
    target = small_target(family)
    specials = sum(map(len, target.special_tokens))
    longest = " ".join(["cat"] * (target.max_length - specials))
    tokens = target.encode([longest])
    assert tokens.lengths == (target.max_length,)
    assert target.max_length == 40 - target.family.position_offset(target.config)
    assert own_logits(target, tokens).isfinite().all()
    with pytest.raises(GradleakError, match=f"has {target.max_length + 1} tokens.*takes at most {target.max_length}"):
        target.encode([longest + " cat"])


@given(
    outputs=st.integers(1, 6),
    inputs=st.integers(1, 6),
    start=st.integers(0, 5),
    stop=st.integers(0, 6),
    transposed=st.booleans(),
)
def test_a_projection_is_outputs_by_inputs_however_it_is_stored(
    outputs: int, inputs: int, start: int, stop: int, transposed: bool
) -> None:
    weight = torch.arange(outputs * inputs).view(outputs, inputs)
    bias = torch.arange(outputs)
    tensors = {"here.weight": weight.T if transposed else weight, "here.bias": bias}
    projection = Projection("here", slice(start, stop), transposed)
    assert torch.equal(projection.weight_in(tensors), weight[start:stop])
    assert torch.equal(projection.bias_in(tensors), bias[start:stop])
    assert torch.equal(Projection("here", transposed=transposed).weight_in(tensors), weight)


def test_every_small_family_is_a_registered_one() -> None:
    assert SMALL.keys() | SMALL_WITHOUT_ATTENTION.keys() == FAMILIES.keys()
    assert all(isinstance(family, Family) and family.name == name for name, family in FAMILIES.items())


@pytest.mark.parametrize("model_type", ["t5", "electra", "", "BERT"])
def test_an_unsupported_architecture_names_the_supported_ones(model_type: str) -> None:
    with pytest.raises(GradleakError, match=f"'{model_type}' is not supported; supported: albert, bert, ") as caught:
        family_of(model_type)
    assert str(caught.value).endswith(", ".join(sorted(FAMILIES)))
