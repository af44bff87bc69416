from __future__ import annotations

import numpy as np
import torch
from sieve_tools import ids_of, wider_target

from gradleak.attacks.sieve.inputs import first_inputs
from gradleak.attacks.sieve.robust import _edge_by_median, read_noisy, spikes
from gradleak.federation import Client


def test_the_edge_is_where_the_singular_values_of_noise_end() -> None:
    for rows, columns in ((300, 300), (900, 300)):
        values = np.linalg.svd(np.random.default_rng(0).standard_normal((rows, columns)), compute_uv=False)
        edge = np.median(values) * _edge_by_median(columns / rows)
        assert 0.95 < values[0] / edge < 1.02


def test_spikes_are_what_stands_out_of_noise_and_nothing_stands_out_of_noise_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 80, generator=generator)
    noise = torch.randn(120, 80, generator=generator)
    found = spikes([torch.randn(120, 3, generator=generator) @ rows + 0.3 * noise])
    assert found is not None
    assert len(found.factor) == 3
    assert found.explained(rows.double()) > 0.9
    assert found.explained(torch.randn(3, 80, generator=generator).double()) < 0.2
    assert spikes([noise]) is None


def test_a_sentence_is_read_through_noise_with_nothing_known() -> None:
    target = wider_target()
    text = "the big dog ran on"
    update = Client(target).update([text], [1])
    generator = torch.Generator().manual_seed(0)
    size = max(float(update.tensors[part.weight].std()) for part in (target.layers[0].query, target.layers[0].key))
    noisy = {n: t + 0.1 * size * torch.randn(t.shape, generator=generator) for n, t in update.tensors.items()}
    words = torch.arange(5, len(target.word_embeddings))
    found = read_noisy(target, first_inputs(target), noisy, words, target.max_length, None)
    assert found is not None
    assert len(set(found[0]) & set(ids_of(target, [text])[0])) >= 5
