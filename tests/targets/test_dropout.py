from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from eager_twin import PADDED_TEXTS, eager_twin, own_logits
from torch import Tensor, nn
from torch.testing import assert_close

from conftest import ALL_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.targets import Target, Task
from gradleak.targets.dropout import dropout_masks, dropout_sites, set_dropout

every_kind = pytest.mark.parametrize(("family", "task"), ALL_KINDS)


def logits_in_training(target: Target, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Run with dropout on; return the logits and what each use of a dropout module let pass."""
    tokens = target.encode(PADDED_TEXTS)
    masks: dict[str, Tensor] = {}
    uses: Counter[str] = Counter()

    def watch(path: str) -> Callable[..., None]:
        def note(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            number = uses[path]
            uses[path] += 1
            masks[f"{path}#{number}" if number else path] = (output != 0).to(output.dtype)

        return note

    handles = [
        module.register_forward_hook(watch(path))
        for path, module in target.model.named_modules()
        if isinstance(module, nn.Dropout)
    ]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        target.model.train()
        logits = own_logits(target, tokens)
        target.model.eval()
    for handle in handles:
        handle.remove()
    return logits, masks


def eval_logits(target: Target) -> Tensor:
    with torch.no_grad():
        return own_logits(target, target.encode(PADDED_TEXTS))


@every_kind
def test_masks_of_a_training_run_reproduce_it(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    quiet = eval_logits(target)
    for seed in range(3):
        expected, masks = logits_in_training(target, seed)
        assert (expected - quiet).abs().max() > 1e-3, "dropout was off"
        with dropout_masks(target, masks):
            found = eval_logits(target)
        assert_close(found, expected)


@every_kind
def test_sites_are_the_uses_of_dropout_in_order_with_their_shapes(family: str, task: Task) -> None:
    target = small_target(family, task)
    _, masks = logits_in_training(target, seed=0)
    tokens = target.encode(PADDED_TEXTS).ids.shape[1]
    sites = dropout_sites(target, tokens)
    assert list(sites) == list(masks)
    assert {name: site.shape for name, site in sites.items()} == {n: tuple(m.shape[1:]) for n, m in masks.items()}
    assert all(site.rate == target.dropouts[name.split("#")[0]] for name, site in sites.items())


@every_kind
def test_masks_that_undo_the_scaling_reproduce_a_run_without_dropout(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    expected = eval_logits(target)
    sites = dropout_sites(target, target.encode(PADDED_TEXTS).ids.shape[1])
    even = {
        name: torch.full((len(PADDED_TEXTS), *site.shape), 1 - site.rate, dtype=torch.float64)
        for name, site in sites.items()
    }
    with dropout_masks(target, even):
        assert_close(eval_logits(target), expected)
    with dropout_masks(target, {}):
        assert torch.equal(eval_logits(target), expected)


@every_kind
def test_every_site_matters_and_takes_gradients(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    sites = dropout_sites(target, target.encode(PADDED_TEXTS).ids.shape[1])
    masks = {
        name: torch.full((len(PADDED_TEXTS), *site.shape), 0.9, dtype=torch.float64, requires_grad=True)
        for name, site in sites.items()
    }
    with dropout_masks(target, masks):
        total = own_logits(target, target.encode(PADDED_TEXTS)).square().sum()
    slopes = torch.autograd.grad(total, list(masks.values()))
    assert all(slope.abs().max() > 0 for slope in slopes)


@pytest.mark.parametrize(
    ("family", "path", "uses"),
    [
        ("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.attention_dropout", 3),
        ("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.output_dropout", 3),
        ("roberta", "classifier.dropout", 2),
        ("bert", "dropout", 1),
    ],
)
def test_a_module_that_is_used_several_times_has_several_sites(family: str, path: str, uses: int) -> None:
    sites = dropout_sites(small_target(family), 4)
    assert [name for name in sites if name.split("#")[0] == path] == [path, f"{path}#1", f"{path}#2"][:uses]


@every_kind
def test_attention_drops_as_often_as_hugging_faces_eager_model_does(family: str, task: Task) -> None:
    """Averages over many runs agree with the eager model's in training mode, so that no dropout is lost or doubled."""
    target = small_target(family, task)
    tokens = target.encode(["the cat sat on a mat"] * 3_000)
    twin = eager_twin(target).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        expected = twin(input_ids=tokens.ids, attention_mask=tokens.mask.long()).logits
        target.model.train()
        found = own_logits(target, tokens)
        target.model.eval()
    assert_close(found.std(dim=0), expected.std(dim=0), rtol=0.12, atol=1e-4)


def test_a_rate_of_zero_makes_no_site() -> None:
    target = small_target("bert", hidden_dropout_prob=0.0)
    assert set(dropout_sites(target, 3)) == {f"bert.encoder.layer.{n}.attention.self.dropout" for n in range(2)}
    assert target.dropouts["dropout"] == 0.0


def test_nothing_is_left_on_the_model_after_an_error_inside(bert: Target) -> None:
    expected = eval_logits(bert)
    sites = dropout_sites(bert, bert.encode(PADDED_TEXTS).ids.shape[1])
    none = {name: torch.zeros(len(PADDED_TEXTS), *site.shape) for name, site in sites.items()}

    def fail_inside() -> None:
        with dropout_masks(bert, none):
            assert not torch.equal(eval_logits(bert), expected)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert torch.equal(eval_logits(bert), expected)


def test_another_rate_is_that_of_every_site() -> None:
    target = small_target("bert")
    before = {site.rate for site in dropout_sites(target, 5).values()}
    set_dropout(target, 0.35)
    after = dropout_sites(target, 5)
    assert {site.rate for site in after.values()} == {0.35} != before
    assert set(target.dropouts.values()) - {0.0} == {0.35}


def test_a_model_without_dropout_takes_no_rate() -> None:
    target = small_target("bert")
    for module in target.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with pytest.raises(GradleakError, match="has no dropout whose rate could be"):
        set_dropout(target, 0.2)
