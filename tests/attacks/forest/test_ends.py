"""Forest finds ends of texts that are no leaves of the forest, or that leave no coefficients of their own."""

from __future__ import annotations

import pytest

from conftest import small_target
from gradleak.attacks import find_attack
from gradleak.attacks.forest.likely_ends import with_likely_ends
from gradleak.exchange import Deadline, Knowledge, Reconstruction
from gradleak.federation import Client
from gradleak.targets import Target
from gradleak.targets.adapters import Lora
from gradleak.targets.adapters.fresh import with_lora

INSIDE = ["the big dog ran .", "the big dog ran on a mat", "the big dog , b", "c d e"]


def decoder(family: str = "llama", lora: str | None = None) -> Target:
    shape = {"n_embd": 64} if family == "gpt2" else {"hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96}
    target = small_target(family, "causal-lm", **shape)
    return target if lora is None else with_lora(target, Lora.parse(lora))


def read(target: Target, texts: list[str]) -> Reconstruction:
    return find_attack("forest")()(target, Client(target).update(texts), Knowledge())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_text_that_ends_where_another_goes_on_is_read(family: str) -> None:
    found = read(decoder(family), INSIDE)
    assert sorted(found.texts) == sorted(INSIDE)
    assert found.verified


def test_so_it_is_from_adapters() -> None:
    pytest.importorskip("peft")
    found = read(decoder(lora="r=8,targets=q_proj+v_proj,rounds=2"), INSIDE)
    assert sorted(found.texts) == sorted(INSIDE)
    assert found.verified


def test_several_texts_may_end_at_one_prefix() -> None:
    texts = ["the dog ran .", "the dog ran ,", "the dog ran b", "the dog ran on a mat"]
    found = read(decoder(), texts)
    assert sorted(found.texts) == sorted(texts)


def test_the_first_round_shows_last_tokens_by_its_whole_gradient() -> None:
    pytest.importorskip("peft")
    texts = ["the dog sat on a mat", "b c d"]
    found = read(decoder(lora="r=16,targets=q_proj+v_proj,rounds=0"), texts)
    assert sorted(found.texts) == sorted(texts)
    assert found.verified


def test_a_token_without_a_trace_is_added_where_the_update_asks_for_it() -> None:
    target = decoder()
    right = [(5, 6, 7, 8), (9, 10, 11)]

    def distance(texts: list[tuple[int, ...]]) -> float:
        return float(sum(one != other for one, other in zip(texts, right, strict=True)))

    cut = [(5, 6, 7), (9, 10, 11)]
    assert with_likely_ends(target, cut, distance, Deadline(), ends_read=False) == right
    assert with_likely_ends(target, cut, distance, Deadline(), ends_read=True) == cut  # it expects no token there
