"""Forest reads encoders' adapters exactly, of several sentences with more tokens than rows, and refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import find_attack
from gradleak.attacks.forest.encoders.pairs import solve_pairs
from gradleak.attacks.forest.encoders.sentences import SentenceJudge, volume_inside
from gradleak.attacks.forest.positioned_tokens import pursue_positioned_tokens
from gradleak.attacks.forest.residual import Residual, SiteNoise
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.attacks.forest.sites import find_sites
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Knowledge, Protocol, Reconstruction, Update
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from gradleak.targets.adapters import Lora
from gradleak.targets.adapters.fresh import with_lora

SHAPE = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96}
BATCH = ["the big dog ran on a red mat", "a cat sat .", "b c d e f g h"]

pytest.importorskip("peft")


def encoder(lora: str | None = "r=4", family: str = "bert", **changes: Any) -> Target:
    target = small_target(family, **{**SHAPE, **changes})
    return target if lora is None else with_lora(target, Lora.parse(lora))


def read(target: Target, texts: list[str], **client: Any) -> Reconstruction:
    return find_attack("forest")()(target, Client(target, **client).update(texts, [0, 1, 0][: len(texts)]), Knowledge())


@pytest.mark.parametrize("rank", [2, 8])
def test_a_sentence_is_read_from_the_adapters_of_a_classifier(rank: int) -> None:
    found = read(encoder(f"r={rank}"), BATCH[:1])
    assert found.texts == (BATCH[0],)
    assert (found.verified, found.complete, found.labels_verified) == (True, True, True)


def test_a_batch_of_more_tokens_than_rows_is_read() -> None:
    found = read(encoder("r=4"), BATCH[:2])
    assert dict(zip(found.texts, found.labels or [], strict=True)) == dict(zip(BATCH[:2], [0, 1], strict=True))
    assert found.verified


def test_tokens_of_a_batch_are_told_whatever_their_positions() -> None:
    target = encoder("r=4")
    gradient = Client(target).update(BATCH, [0, 1, 0]).gradient()
    first = RowNoise(target, gradient, Protocol()).residual(find_sites(target, gradient)[0])
    picked, whole = pursue_positioned_tokens(first_layer_inputs(target), first, Deadline())
    tokens = target.encode(BATCH)
    assert whole
    assert set(picked) == set(tokens.ids[tokens.mask].tolist())


def test_contributions_of_pairs_add_up_to_the_rows() -> None:
    target = encoder("r=8")
    rows = find_sites(target, Client(target).update(BATCH, [0, 1, 0]).gradient())[0].rows
    tokens = target.encode(BATCH)
    inputs = first_layer_inputs(target)
    pairs = solve_pairs(inputs, rows, tokens.ids[tokens.mask].unique(), target.special_tokens)
    places = torch.arange(pairs.length).expand(len(pairs.tokens), -1)
    vectors = inputs(pairs.tokens[:, None].expand_as(places), places)  # [tokens, positions, width]
    # a contribution is the coefficient of γ ⊙ (E + P): that of x times 1 / σ
    sums = inputs.words[pairs.tokens].double()[:, None] + inputs.positions[: pairs.length].double()[None]
    sigma = (sums.square().mean(dim=-1) + inputs.epsilon).sqrt()
    rebuilt = torch.einsum("tpr,tpw->rw", pairs.contributions * sigma[..., None], vectors)
    torch.testing.assert_close(rebuilt, rows, rtol=1e-4, atol=1e-5)


def test_the_true_sentence_scores_above_one_with_another_word() -> None:
    target = encoder("r=8")
    gradient = Client(target).update(BATCH, [0, 1, 0]).gradient()
    sites, noise = find_sites(target, gradient), RowNoise(target, gradient, Protocol())
    judge = SentenceJudge(target, sites[1:3], lambda number: noise.residual(sites[1 + number]), sites[0])
    tokens = target.encode(BATCH)
    true = [tuple(ids[there].tolist()) for ids, there in zip(tokens.ids, tokens.mask, strict=True)]
    judge.fix(true[1:])
    other = (*true[0][:3], true[0][4], *true[0][4:])
    right, wrong = judge([true[0], other]).tolist()
    assert right > 2 * wrong
    judge.fix(true)
    assert max(judge.left) < 1e-4


def test_volume_is_that_of_determinants() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, vectors = (
        torch.randn(3, 12, generator=generator).double(),
        torch.randn(2, 4, 12, generator=generator).double(),
    )
    residual = Residual(rows, SiteNoise(vectors=0.1))
    expected = []
    for some in vectors:
        outside = some - some @ torch.linalg.pinv(rows) @ rows
        error = 0.01 * torch.diag(some.square().sum(dim=1))
        expected.append(torch.logdet(some @ some.T + error) - torch.logdet(outside @ outside.T + error))
    torch.testing.assert_close(volume_inside(residual, vectors), torch.stack(expected), rtol=1e-6, atol=1e-9)


def test_a_first_round_is_refused_with_what_is_missing() -> None:
    target = encoder("r=4,rounds=0")
    with pytest.raises(GradleakError, match=r"needs the gradient of A of an adapter .* in a round after the first"):
        read(target, BATCH[:1])


def test_the_first_layer_alone_is_refused_with_what_is_missing() -> None:
    target = encoder()
    update = Client(target).update(BATCH[:1], [0])
    first = {name: tensor for name, tensor in update.tensors.items() if "layer.0." in name}
    assert 0 < len(first) < len(update.tensors)
    zeroed = {name: first.get(name, torch.zeros_like(tensor)) for name, tensor in update.tensors.items()}
    with pytest.raises(GradleakError, match=r"needs the gradient of an adapter on a later layer of .*, too"):
        find_attack("forest")()(target, update.with_tensors(zeroed), Knowledge())


def test_an_encoder_without_adapters_is_refused() -> None:
    with pytest.raises(
        GradleakError, match=r"reads decoders, and encoders' adapters; .* is neither: try sieve or auto"
    ):
        read(encoder(None), BATCH[:1])


def test_a_rounded_update_is_answered_by_a_note() -> None:
    found = read(encoder(), BATCH[:1], send="bf16")
    assert not found.verified
    assert any("read from one float32 gradient alone" in note for note in found.notes)


def test_an_altered_update_is_not_verified() -> None:
    target = encoder("r=8")
    update = Client(target).update(BATCH[:1], [0])
    name = target.adapters[-1].b
    changed = Update({**update.tensors, name: 1.01 * update.tensors[name]})
    assert not find_attack("forest")()(target, changed, Knowledge()).verified
