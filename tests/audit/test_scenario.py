from __future__ import annotations

import pytest
import torch

from conftest import small_target
from gradleak.defenses import defend, defend_examples, defense_stream, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update
from gradleak.federation import Client, FedAvg, sum_updates
from gradleak.studies import ClientSettings, Scenario
from gradleak.targets import Target
from gradleak.targets.dropout import set_dropout

TEXTS = ("the cat sat", "a dog", "red mat")
LABELS = (1, 0, 1)


def same(found: Update, expected: Update) -> bool:
    assert found.tensors.keys() == expected.tensors.keys()
    return all(torch.equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


def test_batches_are_what_client_and_defenses_give_in_order(bert: Target) -> None:
    settings = ClientSettings(dropout=True, embeddings="trained", fedavg=FedAvg(steps=2, lr=0.1))
    noise = parse_defense("noise:0.01")
    scenario = Scenario(texts=TEXTS, labels=LABELS, batch_size=2, client=settings, defenses=(noise,), seed=3)
    client = Client(bert, dropout=True, embeddings="trained", fedavg=FedAvg(steps=2, lr=0.1), seed=3)
    stream = defense_stream(3)
    batches = list(scenario.batches(bert))
    assert [batch.texts for batch in batches] == [TEXTS[:2], TEXTS[2:]]
    assert [batch.labels for batch in batches] == [LABELS[:2], LABELS[2:]]
    assert scenario.count == 2
    for batch in batches:
        assert same(batch.update, defend(client.update(batch.texts, batch.labels), [noise], stream))


def test_a_defense_of_examples_gets_the_update_of_each(bert: Target) -> None:
    defenses = [parse_defense("dpsgd:1,0.5")]
    (batch,) = Scenario(texts=TEXTS, labels=LABELS, defenses=tuple(defenses), seed=1).batches(bert)
    client = Client(bert, seed=1)
    alone = [client.update([text], [label]) for text, label in zip(TEXTS, LABELS, strict=True)]
    assert same(batch.update, defend_examples(alone, defenses, defense_stream(1)))


def test_the_attacker_is_told_the_facts_and_nothing_else(bert: Target) -> None:
    noise = (parse_defense("noise:0.5"),)
    facts = ("labels", "lengths", "longest", "batch-size", "dropout", "defense")
    told = Scenario(
        texts=TEXTS, labels=LABELS, client=ClientSettings(dropout=True), defenses=noise, facts=facts
    ).batches(bert)
    assert next(told).knowledge == Knowledge(
        labels=LABELS, lengths=(5, 4, 4), longest=5, batch_size=3, dropout=0.1, defenses=("noise:0.5",)
    )
    assert next(Scenario(texts=TEXTS, labels=LABELS).batches(bert)).knowledge == Knowledge()


def test_labels_that_are_not_given_come_from_the_seed(bert: Target) -> None:
    first, again = (next(Scenario(texts=TEXTS, seed=4).batches(bert)).labels for _ in range(2))
    assert first == again == tuple(Client(bert, seed=4).draw_labels(3))


def test_a_language_model_has_no_labels() -> None:
    (batch,) = Scenario(texts=TEXTS, labels=LABELS).batches(small_target("gpt2", "causal-lm"))
    assert batch.labels is None


@pytest.mark.parametrize(
    ("labels", "message"), [((0, 1), "there are 3 texts and 2 labels"), ((0, 1, 7), "label 7 is not one of 2")]
)
def test_labels_that_do_not_fit_are_refused(bert: Target, labels: tuple[int, ...], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        next(Scenario(texts=TEXTS, labels=labels).batches(bert))


def test_a_dropout_rate_is_that_of_the_model_the_client_trains_and_the_attacker_is_told() -> None:
    target = small_target("bert")
    settings = ClientSettings(dropout=0.3)
    assert str(settings) == "FedSGD, dropout 0.3, embeddings frozen"
    scenario = Scenario(texts=TEXTS, labels=LABELS, client=settings, facts=("dropout",), seed=3)
    with pytest.raises(GradleakError, match=r"dropout 0\.3 needs a model of that rate"):
        next(scenario.batches(target))
    set_dropout(target, 0.3)
    (batch,) = scenario.batches(target)
    assert batch.knowledge.dropout == 0.3
    assert same(batch.update, Client(target, dropout=True, seed=3).update(TEXTS, LABELS))


# --- several clients -----------------------------------------------------------------------------------------------


def test_the_attacker_gets_the_sum_over_clients_and_all_their_texts_are_the_truth(bert: Target) -> None:
    texts, labels = (*TEXTS, *TEXTS, "the mat", "a cat"), (*LABELS, *LABELS, 0, 1)
    noise = parse_defense("noise:0.01")
    settings = ClientSettings(dropout=True, send="bf16", precision="bf16", clients=2)
    facts = ("labels", "lengths", "batch-size")
    scenario = Scenario(
        texts=texts, labels=labels, batch_size=2, client=settings, defenses=(noise,), facts=facts, seed=3
    )
    first, second = scenario.batches(bert)
    client = Client(bert, dropout=True, send="bf16", precision="bf16", seed=3)
    stream = defense_stream(3)
    each = [
        client.send(defend(client.train(texts[part], labels[part]), [noise], stream))
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert same(first.update, sum_updates(each))
    assert (first.update.clients, first.update.send, first.update.precision) == (2, "bf16", "bf16")
    assert (first.texts, first.labels, first.knowledge.batch_size) == (texts[:4], labels[:4], 4)
    assert len(first.knowledge.lengths or ()) == 4
    assert (second.texts, second.update.clients, scenario.count) == (texts[4:], 2, 2)


def test_without_a_batch_size_the_clients_share_the_texts_out(bert: Target) -> None:
    (batch,) = Scenario(texts=TEXTS, labels=LABELS, client=ClientSettings(clients=3)).batches(bert)
    client = Client(bert)
    assert same(batch.update, sum_updates([client.update([t], [n]) for t, n in zip(TEXTS, LABELS, strict=True)]))


@pytest.mark.parametrize(
    ("size", "settings", "message"),
    [
        (None, ClientSettings(clients=2), "3 texts cannot be shared out evenly among 2 clients"),
        (None, ClientSettings(clients=4), "3 texts cannot be shared out evenly among 4 clients"),
        (
            2,
            ClientSettings(clients=2),
            "sums over 2 clients with batches of 2 take 4 texts each, or a multiple; there are 3",
        ),
        (
            2,
            ClientSettings(fedavg=FedAvg(steps=1, lr=0.1, batch=3)),
            "batch=3 of FedAvg is larger than the client's data: 2 texts",
        ),
    ],
    ids=str,
)
def test_data_too_small_for_the_clients_are_refused_before_anything_runs(
    bert: Target, size: int | None, settings: ClientSettings, message: str
) -> None:
    with pytest.raises(GradleakError) as caught:
        next(Scenario(texts=TEXTS, labels=LABELS, batch_size=size, client=settings).batches(bert))
    assert str(caught.value) == message


def test_examples_of_a_client_with_mini_batches_are_trained_alone(bert: Target) -> None:
    fedavg = FedAvg(steps=2, lr=0.1, batch=2)
    defenses = [parse_defense("dpsgd:1,0.5")]
    settings = ClientSettings(fedavg=fedavg)
    (batch,) = Scenario(texts=TEXTS, labels=LABELS, client=settings, defenses=tuple(defenses), seed=1).batches(bert)
    client = Client(bert, fedavg=fedavg, seed=1)
    alone = [client.train([text], [label]) for text, label in zip(TEXTS, LABELS, strict=True)]
    assert same(batch.update, defend_examples(alone, defenses, defense_stream(1)))
    assert batch.update.training == fedavg


def test_a_last_batch_smaller_than_a_mini_batch_repeats_its_texts(bert: Target) -> None:
    settings = ClientSettings(fedavg=FedAvg(steps=2, lr=0.1, batch=2))
    _, last = Scenario(texts=TEXTS, labels=LABELS, batch_size=2, client=settings).batches(bert)
    expected = Client(bert, fedavg=FedAvg(steps=2, lr=0.1)).update([TEXTS[2]] * 2, [LABELS[2]] * 2)
    assert same(last.update, expected)


def test_settings_of_a_client_are_recorded_where_they_are_not_the_usual() -> None:
    assert ClientSettings().as_dict() == {"dropout": False, "embeddings": "frozen", "fedavg": None}
    fedavg = FedAvg(steps=4, lr=5e-5, optimizer="adamw")
    settings = ClientSettings(fedavg=fedavg, precision="fp16", send="int8", clients=2)
    assert settings.as_dict() == {
        "dropout": False,
        "embeddings": "frozen",
        "fedavg": {"steps": 4, "lr": 5e-5, "batch": None, "optimizer": "adamw"},
        "precision": "fp16",
        "send": "int8",
        "clients": 2,
    }
    assert str(settings) == (
        "FedAvg (4 steps, lr 5e-05, optimizer=adamw), no dropout, embeddings frozen, trains in fp16, sends int8, "
        "sum over 2 clients"
    )
