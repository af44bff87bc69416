"""Utility is measured by a training that learns, repeats itself, and leaves the target alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from conftest import FAMILY_NAMES, small_target
from gradleak.data import load_dataset
from gradleak.defenses import DPSGD, Clip, Defense, Noise, Sign, TopK, epsilon, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Progress
from gradleak.federation import Client
from gradleak.studies import FineTuning, Utility, measure_utility
from gradleak.studies.execution import utility

LEARNING = FineTuning(lr=5e-3, batch_size=8, epochs=3)


@dataclass(frozen=True)
class Texts:
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None


def cats_and_dogs(count: int, seed: int = 0) -> Texts:
    """Every text holds one animal, and its class is which."""
    stream = torch.Generator().manual_seed(seed)
    texts, labels = [], []
    for _ in range(count):
        label, place, length = torch.randint(2, (1,), generator=stream), *torch.randint(1, 4, (2,), generator=stream)
        others = [
            ["the", "a", "sat", "ran", "on", "mat"][i] for i in torch.randint(6, (int(length),), generator=stream)
        ]
        others.insert(int(place), ["cat", "dog"][int(label)])
        texts.append(" ".join(others))
        labels.append(int(label))
    return Texts(tuple(texts), tuple(labels))


TRAIN, TEST = cats_and_dogs(120, seed=1), cats_and_dogs(60, seed=2)


def same(first: Utility, second: Utility) -> bool:
    return replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_it_learns_without_defense_and_strong_noise_ruins_it() -> None:
    target = small_target()
    learnt = measure_utility(target, TRAIN, TEST, training=LEARNING)
    ruined = measure_utility(target, TRAIN, TEST, training=LEARNING, defenses=[Noise(10.0)])
    assert learnt.accuracy > 0.9
    assert learnt.mcc > 0.8
    assert ruined.accuracy < 0.75
    assert ruined.loss > learnt.loss + 0.3
    assert (learnt.steps, learnt.examples, learnt.epsilon) == (45, 120, None)
    assert learnt.seconds > 0


@pytest.mark.parametrize("text", ["clip:1", "prune:0.5", "topk:0.1", "sign", "mask:0.5", "laplace:0.0001", "dpsgd:1,0"])
def test_mild_defenses_leave_a_model_that_works(text: str) -> None:
    found = measure_utility(small_target(), TRAIN, TEST, training=LEARNING, defenses=[parse_defense(text)])
    assert found.accuracy > 0.8, found


@pytest.mark.parametrize("defenses", [[], [Noise(0.01)], [DPSGD(1.0, 0.01), TopK(0.5)]], ids=str)
def test_same_seed_gives_the_same_figures_and_another_one_others(defenses: list[Defense]) -> None:
    target = small_target()
    found = []
    for seed, global_seed in ((0, 1), (0, 2), (1, 3)):
        torch.manual_seed(global_seed)
        found.append(
            measure_utility(target, TRAIN, TEST, defenses=defenses, training=FineTuning(lr=1e-3, epochs=1, seed=seed))
        )
    assert same(found[0], found[1])
    assert found[0].loss != found[2].loss


def test_target_and_global_random_stream_are_untouched() -> None:
    target = small_target()
    before = {name: parameter.clone() for name, parameter in target.parameters.items()}
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    measure_utility(target, TRAIN, TEST, training=LEARNING, defenses=[Noise(0.1)])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(target.parameters[name], tensor) for name, tensor in before.items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in target.parameters.values())
    assert not target.model.training


@pytest.mark.parametrize("defenses", [[Noise(1.0)], [DPSGD(1.0, 1.0)]], ids=str)
@pytest.mark.parametrize("embeddings", ["frozen", "words-frozen", "trained"])
def test_frozen_embeddings_stay_as_they_are(
    embeddings: utility.Embeddings, defenses: list[Defense], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = small_target()
    models = []
    original = utility._copied
    monkeypatch.setattr(utility, "_copied", lambda target: models.append(original(target)) or models[-1])
    training = FineTuning(lr=5e-3, batch_size=60, epochs=1, embeddings=embeddings)
    measure_utility(target, TRAIN, TEST, training=training, defenses=defenses)
    changed = {
        name for name, tensor in models[0].parameters.items() if not torch.equal(tensor, target.parameters[name])
    }
    assert changed == set(Client(target, embeddings=embeddings).sent_parameters)


@pytest.mark.parametrize("batch_size", [16, 500])
def test_privacy_loss_is_that_of_opacus_for_these_steps(batch_size: int) -> None:
    pytest.importorskip("opacus", reason="opacus is an extra")
    defense = DPSGD(norm=0.5, deviation=0.05)
    train = Texts(TRAIN.texts[:100], TRAIN.labels[:100])
    training = FineTuning(batch_size=batch_size)
    found = measure_utility(small_target(), train, TEST, defenses=[defense, Sign()], training=training)
    size = min(batch_size, 100)
    assert found.steps == 2 * (100 // size)
    assert found.epsilon == epsilon(0.05 * size / 0.5, size / 100, found.steps)


@pytest.mark.parametrize(
    ("family", "together"), [("bert", 1), ("bert", 100), *((family, 3) for family in FAMILY_NAMES)]
)
def test_updates_of_examples_are_those_of_a_client(family: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target(family)
    sent = Client(target, embeddings="trained").sent_parameters
    values = sum(target.parameters[name].numel() for name in sent)
    monkeypatch.setattr(utility, "EXAMPLE_VALUES", together * values)
    batch = utility._LabelledTokens.of(target, Texts(TEST.texts[:5], TEST.labels[:5]), "test")
    trainer = utility._Trainer(utility._copied(target), FineTuning(lr=1e-3), [DPSGD(1.0, 0.0)], 1)
    updates = list(trainer._example_updates(batch))
    client = Client(target, embeddings="trained")
    assert len(updates) == 5
    for text, label, update in zip(TEST.texts, TEST.labels, updates, strict=False):
        expected = client.update([text], [label]).tensors
        assert list(update.tensors) == list(expected)
        assert all(torch.allclose(update.tensors[name], tensor, atol=1e-5) for name, tensor in expected.items())


def test_a_step_without_defense_is_a_step_of_adamw_on_the_clients_update() -> None:
    target = small_target()
    batch = utility._LabelledTokens.of(target, Texts(TEST.texts[:5], TEST.labels[:5]), "test")
    model = utility._copied(target)
    utility._Trainer(model, FineTuning(lr=1e-3, embeddings="frozen"), [], 1).step(batch)
    update = Client(target).update(TEST.texts[:5], TEST.labels[:5])
    expected = {name: target.parameters[name].clone().requires_grad_() for name in update.tensors}
    for name, tensor in update.tensors.items():
        expected[name].grad = tensor
    torch.optim.AdamW(expected.values(), lr=1e-3).step()
    # Where a gradient is zero but for rounding (the key bias), AdamW makes a step of lr out of it.
    checked = [name for name in expected if "key.bias" not in name]
    assert all(torch.allclose(model.parameters[name], expected[name], atol=1e-5) for name in checked)


def test_error_feedback_remembers_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    memories = []
    original = utility.defend

    def watched(*arguments: object) -> object:
        memories.append(arguments[3])
        return original(*arguments)

    monkeypatch.setattr(utility, "defend", watched)
    measure_utility(small_target(), TRAIN, TEST, training=FineTuning(epochs=1), defenses=[TopK(0.1)])
    assert len(memories) == 3
    assert all(memory is memories[0] for memory in memories)
    assert "0 topk:0.1" in memories[0]


def test_learning_rate_rises_and_falls_to_almost_zero() -> None:
    factors = [utility._warm_up_and_decay(step, 40) for step in range(41)]
    assert factors[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[39] > factors[40] == 0.0
    assert utility._warm_up_and_decay(0, 1) == 1.0


def test_language_model_learns_and_its_loss_is_the_mean_over_predicted_tokens() -> None:
    target = small_target("gpt2", "causal-lm")
    texts = Texts(("the cat sat on a mat", "the dog ran", "a big red cat sat"), None)
    untrained = measure_utility(target, texts, texts, training=FineTuning(epochs=1, lr=1e-12))
    losses = []
    for text in texts.texts:  # one by one, without padding
        ids = target.encode([text]).ids
        logits = target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        losses += torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none").tolist()
    assert untrained.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert untrained.mcc is None
    assert untrained.accuracy is None
    trained = measure_utility(target, texts, texts, training=FineTuning(epochs=30, lr=1e-2))
    assert trained.loss < untrained.loss / 2
    noisy = measure_utility(target, texts, texts, defenses=[DPSGD(1.0, 10.0)], training=FineTuning(epochs=5, lr=1e-2))
    assert noisy.loss > trained.loss


def test_gradients_are_rounded_to_the_format_that_is_sent() -> None:
    exact, rounded = (
        measure_utility(small_target(), TRAIN, TEST, training=FineTuning(epochs=1, send=send))
        for send in ("fp32", "int8")
    )
    assert exact.loss != rounded.loss
    assert rounded.loss == pytest.approx(exact.loss, rel=0.1)


def test_every_example_is_dealt_once_in_an_epoch_in_full_batches_padded_to_their_longest() -> None:
    examples = utility._LabelledTokens.of(small_target(), TRAIN, "train")
    batches = list(utility._batches(examples, 2, 25, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [25] * 8
    assert all(bool(batch.tokens.mask.any(dim=0).all()) for batch in batches)
    numbered = utility._LabelledTokens(examples.tokens, torch.arange(120))
    dealt = [batch.labels for batch in utility._batches(numbered, 2, 40, torch.Generator().manual_seed(0))]
    assert sorted(torch.cat(dealt[:3]).tolist()) == sorted(torch.cat(dealt[3:]).tolist()) == list(range(120))
    assert not torch.equal(torch.cat(dealt[:3]), torch.cat(dealt[3:]))


def test_progress_is_told_with_the_training_loss() -> None:
    heard: list[Progress] = []
    for defenses in ([], [DPSGD(1.0, 0.0)]):
        training = FineTuning(lr=1e-6, epochs=1)
        measure_utility(small_target(), TRAIN, TEST, defenses=defenses, training=training, listener=heard.append)
        assert (heard[-1].step, heard[-1].total) == (3, 3)
        assert 0.2 < heard[-1].loss < 3


def test_shipped_model_and_sample_work_and_take_seconds() -> None:
    from gradleak import load_target

    sample = load_dataset("sst2")
    training = FineTuning(epochs=1, embeddings="frozen")
    found = measure_utility(load_target("tiny"), sample.take(slice(32)), sample, training=training)
    assert (found.steps, found.examples) == (1, 32)
    assert found.seconds < 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": Texts(("the cat",), None)}, "utility needs labels: the train texts have none"),
        ({"test": Texts(("the cat",), (0, 1))}, "there are 1 test texts and 2 labels"),
        ({"test": Texts(("the cat",), (2,))}, "test label 2 is not one of 2 (0 to num_labels − 1)"),
        ({"training": FineTuning(epochs=0)}, "training needs epochs"),
        ({"training": FineTuning(batch_size=0)}, "training needs epochs"),
        ({"training": FineTuning(lr=0.0)}, "training needs epochs"),
        ({"train": Texts((), ())}, "there is no text"),
        ({"training": FineTuning(embeddings="frosen")}, "unknown embeddings setting 'frosen'; did you mean 'frozen'?"),
        ({"defenses": [Clip(1.0), DPSGD(1.0, 0.1)]}, "defense dpsgd needs the update of each example"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, object], message: str) -> None:
    arguments = {"target": small_target(), "train": TRAIN, "test": TEST, "training": FineTuning(epochs=1)} | changes
    with pytest.raises(GradleakError) as caught:
        measure_utility(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
