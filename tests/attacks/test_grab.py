"""What GRAB adds: dropout masks, beam search, sequences that end where they want to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from conftest import small_target
from gradleak.attacks import Finding, Grab, Victim
from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Reporter, Update
from gradleak.federation import Client
from gradleak.matching import L2L1, Cosine, candidate_gradients
from gradleak.metrics import score_tokens
from gradleak.optimisation import beam_reorder
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.descent import Descender
from gradleak.optimisation.guess import rearrange_mask
from gradleak.optimisation.substitutions import SequenceVariants, Substitutions
from gradleak.targets import Target, load_target
from gradleak.targets.dropout import dropout_sites

TEXTS = ["the big red dog ran", "a cat sat"]
SMALL: dict[str, Any] = {
    "steps": 10, "starts": 5, "permutations": 5, "rounds": 2, "passes": 1, "beams": 2, "polish": 1
}  # fmt: skip


def capture(target: Target, texts: list[str], **client: Any) -> Update:
    return Client(target, **client).update(texts, [number % 2 for number in range(len(texts))])


def first_cohort(attack: Grab, target: Target, known: Knowledge, texts: list[str]) -> Cohort:
    update = capture(target, texts, dropout=True)
    victims = [Victim(update.gradient(), known, torch.Generator().manual_seed(0))]
    return attack.cohort(target, victims, Reporter())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2", "textcnn", "lstm"])
def test_every_family_that_drops_has_its_masks_learnt(family: str) -> None:
    target = small_target(family)
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=0.1)
    attack = Grab(**SMALL, first_masks="mean", optimizer="adam")  # AdamW moves masks without a slope, too
    cohort = first_cohort(attack, target, known, TEXTS)
    guess = cohort.guess
    assert set(guess.dropout) == set(dropout_sites(target, guess.slots.mask.shape[-1]))
    assert all((mask == 1 - guess.sites[name].rate).all() for name, mask in guess.dropout.items())
    descender = Descender(target, cohort.matcher, guess, attack.descent(5))
    descender.run(5)
    learnt = descender.now.dropout
    assert all(((mask >= 0) & (mask <= 1)).all() for mask in learnt.values())
    assert all((learnt[name] != mask).any() for name, mask in guess.dropout.items())


@pytest.mark.parametrize("speed", [1.0, 3.0])
def test_masks_take_steps_of_their_own_size(speed: float) -> None:
    target = small_target("bert")
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=0.1)
    attack = Grab(**SMALL, optimizer="adam", first_masks="mean", mask_speed=speed)
    cohort = first_cohort(attack, target, known, TEXTS)
    guess = cohort.guess
    descender = Descender(target, cohort.matcher, guess, attack.descent(1))
    descender.run(1)  # the first step of Adam is as long as the learning rate, whatever the slope
    steps = [(descender.now.dropout[name] - mask).abs().max() for name, mask in guess.dropout.items()]
    assert float(max(steps)) == pytest.approx(attack.lr * speed, rel=1e-3)
    assert float((descender.now.embeddings - guess.embeddings).abs().max()) == pytest.approx(attack.lr, rel=1e-3)


def test_masks_are_drawn_at_the_clients_rate_and_from_a_victims_own_stream() -> None:
    target = load_target("tiny", 2)
    texts = ["the old man walked slowly home and never came back again"]
    known = Knowledge(labels=[0], lengths=target.encode(texts).lengths, dropout=0.1)
    attack = Grab(**SMALL, first_masks="bernoulli")
    guess, again = (first_cohort(attack, target, known, texts).guess for _ in range(2))
    entries = torch.cat([mask.flatten() for mask in guess.dropout.values()])
    assert set(entries.tolist()) == {0.0, 1.0}
    assert float(entries.mean()) == pytest.approx(0.9, abs=0.02)
    assert all(torch.equal(mask, again.dropout[name]) for name, mask in guess.dropout.items())


@pytest.mark.parametrize(
    ("settings", "told", "expected"),
    [({}, 0.1, True), ({}, None, True), ({}, 0.0, False), ({"learn_dropout": False}, 0.1, False)],
)
def test_masks_are_learnt_where_the_client_may_drop(
    settings: dict[str, Any], told: float | None, expected: bool
) -> None:
    target = small_target("bert")
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=told)
    guess = first_cohort(Grab(**SMALL | settings), target, known, TEXTS).guess
    assert bool(guess.dropout) is expected


def test_a_mask_goes_with_its_token() -> None:
    target = small_target("bert", dtype=torch.float64)
    sites = dropout_sites(target, 4)
    order = torch.tensor([[[[0, 2, 1, 3]]]])
    for site in sites.values():
        mask = torch.rand(1, 1, 1, *site.shape)
        moved = rearrange_mask(mask, order, site)
        for dim in site.token_dims:
            mask = mask.index_select(3 + dim, order.flatten())
        assert torch.equal(moved, mask)


def test_masks_at_their_mean_are_no_dropout() -> None:
    target = small_target("bert", dtype=torch.float64)
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=0.1)
    attack = Grab(**SMALL, first_masks="mean")
    cohort = first_cohort(attack, target, known, TEXTS)
    guess, matcher = cohort.guess, cohort.matcher
    without = matcher(replace(guess, dropout={}).candidates(target))
    assert float(matcher(guess.candidates(target))) == pytest.approx(float(without), rel=1e-9)


def test_the_true_masks_and_words_have_no_distance() -> None:
    """Masks of a client's own dropout explain its gradient: what the search looks for is there to be found."""
    target = small_target("bert", dtype=torch.float64)
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=0.1)
    attack = Grab(**SMALL, first_masks="bernoulli")
    cohort = first_cohort(attack, target, known, TEXTS)
    (victim,) = cohort.victims
    truth = replace(cohort.guess, embeddings=target.embed(target.encode(TEXTS).ids)[None, None])
    names = [name for name in victim.gradient if name not in target.word_parameters]
    gradient = {n: g[0, 0] for n, g in candidate_gradients(target, truth.candidates(target), names).items()}
    matcher = attack.cohort(target, [replace(victim, gradient=gradient)], Reporter()).matcher
    assert float(matcher(truth.candidates(target))) < 1e-12
    assert float(matcher(replace(truth, dropout={}).candidates(target))) > 1e-6


# --- beam search over a sequence -----------------------------------------------------------------------------------


def variants(target: Target, length: int, room: int, *, may_end: bool) -> tuple[SequenceVariants, Tensor]:
    known = Knowledge(labels=[0], lengths=[length])
    guess = first_cohort(Grab(**SMALL, learn_dropout=False), target, known, TEXTS[:1]).guess
    padded = room - length
    slots = type(guess.slots)(*(torch.nn.functional.pad(t, (0, padded)) for t in vars(guess.slots).values()))
    order = torch.where(slots.mask[:, 0], torch.arange(room), -1)
    substitutions = Substitutions(target, replace(guess, slots=slots), slots.ids[..., None])
    return SequenceVariants(substitutions, torch.tensor([room]), may_end=may_end), order


def test_every_token_is_tried_at_a_place() -> None:
    found, order = variants(small_target("bert"), 5, 5, may_end=False)
    tried = found.at(order, 2)[0].tolist()
    assert tried == [[0, 1, 1, 3, 4], [0, 1, 2, 3, 4], [0, 1, 3, 3, 4]]


def test_a_sequence_may_end_at_a_place_or_grow_by_one() -> None:
    found, order = variants(small_target("bert"), 4, 6, may_end=True)
    assert order.tolist() == [[[0, 1, 2, 3, -1, -1]]] or order.tolist() == [[0, 1, 2, 3, -1, -1]]
    order = order.view(1, 1, 6)
    ended = found.at(order, 2)[0].tolist()
    assert [0, 1, 3, -1, -1, -1] in ended  # the closing token at place 2
    grown = found.at(order, 3)[0].tolist()
    assert [0, 1, 2, 1, 3, -1] in grown  # a token at place 3, the closing one after it
    assert found.at(order, 4)[0].unique(dim=0).tolist() == [[0, 1, 2, 3, -1, -1]]  # no gaps
    longest = torch.tensor([[[0, 1, 2, 1, 2, 3]]])
    assert not any(o[5] not in (-1, 3) for o in found.at(longest, 4)[0].tolist())  # the closing one is the last


def test_known_lengths_stay() -> None:
    target = small_target("bert")
    known = Knowledge(labels=[0, 1], lengths=target.encode(TEXTS).lengths, dropout=0.1)
    result = Grab(**SMALL)(target, capture(target, TEXTS, dropout=True), known)
    assert [len(ids) for ids in result.token_ids] == list(known.lengths or ())


def test_where_only_the_longest_is_known_no_sequence_is_longer() -> None:
    target = small_target("bert")
    longest = max(target.encode(TEXTS).lengths)
    attack = Grab(**SMALL | {"steps": 8, "polish": 0})
    result = attack(target, capture(target, TEXTS), Knowledge(batch_size=2, longest=longest, dropout=0.0))
    assert all(target.min_length <= len(ids) <= longest for ids in result.token_ids)
    assert result.labels is not None
    assert f"lengths searched, at most {longest}" in result.notes


def test_lengths_that_are_not_told_are_found_with_the_words() -> None:
    """From the right words in frames that are too long, beam search finds where each sequence ends."""
    target = load_target("tiny", 2)
    texts = ["my father lost all his money", "he ran"]
    update = capture(target, texts)
    longest = max(target.encode(texts).lengths)
    known = Knowledge(labels=[0, 1], batch_size=2, longest=longest, dropout=0.0)
    attack = Grab(**SMALL | {"permutations": 2, "passes": 3, "beams": 4})
    victims = [Victim(update.gradient(), known, torch.Generator().manual_seed(0))]
    cohort = attack.cohort(target, victims, Reporter())
    words = target.encode(["my father lost all his money", "he ran ran he ran he"]).ids[None, None]
    start = cohort.nearest_words(replace(cohort.guess, embeddings=target.embed(words)))
    found = attack.discrete(cohort, start, start.slots.mask[:, 0].sum(dim=2))
    ids, _ = found.words(target)
    mask = found.slots.mask[0, 0]
    assert [target.decode(row[keep].tolist()) for row, keep in zip(ids[0, 0], mask, strict=True)] == texts
    assert float(found.losses) < 1e-4


@pytest.mark.parametrize("alternatives", [0, 1])
def test_a_word_that_is_only_second_nearest_is_found_among_alternatives(alternatives: int) -> None:
    target = load_target("tiny", 2)
    texts = ["my father lost his money"]
    known = Knowledge(labels=[0], lengths=target.encode(texts).lengths, dropout=0.0)
    attack = Grab(**SMALL | {"permutations": 2, "passes": 2}, alternatives=alternatives)
    victims = [Victim(Client(target).update(texts, [0]).gradient(), known, torch.Generator().manual_seed(0))]
    cohort = attack.cohort(target, victims, Reporter())
    both = target.embed(target.encode([*texts, "my father green his money"]).ids)
    right, wrong = torch.nn.functional.normalize(both, dim=-1)
    between = replace(cohort.guess, embeddings=(0.9 * right + wrong)[None, None, None])
    found = attack.discrete(cohort, between, between.slots.mask[:, 0].sum(dim=2))
    ids = found.words(target)[0][0, 0, 0].tolist()
    assert (target.decode(ids) == texts[0]) is bool(alternatives)


def several(target: Target, attack: Grab, texts: list[str], *, dropout: bool, told: bool) -> Cohort:
    """Return a victim for each text, with embeddings near its words in another order."""
    victims = []
    for number, text in enumerate(texts):
        lengths = target.encode([text]).lengths
        known = Knowledge(
            labels=[0],
            lengths=lengths if told else None,
            longest=None if told else lengths[0],
            dropout=0.1 if dropout else 0.0,
        )
        update = Client(target, dropout=dropout, seed=number).update([text], [0])
        victims.append(Victim(update.gradient(), known, torch.Generator().manual_seed(number)))
    cohort = attack.cohort(target, victims, Reporter())
    encoded = target.encode(texts).ids[:, None, None]
    near = target.embed(encoded.roll(1, dims=-1)) + 0.02 * cohort.guess.embeddings
    cohort.guess = replace(cohort.guess, embeddings=near)
    return cohort


@pytest.mark.parametrize(("dropout", "told"), [(False, True), (True, True), (False, False)])
def test_victims_of_several_lengths_are_searched_as_each_is_alone(dropout: bool, told: bool) -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["a dog", "the dog sat on a mat", "the big red cat ran on a red mat ."]
    attack = Grab(**SMALL | {"passes": 2})
    together: dict[int, Tensor] = {}
    for members in ([0, 1, 2], [0], [1], [2]):
        some = several(target, attack, texts, dropout=dropout, told=told).select(members)
        longest = int(some.guess.slots.mask.sum(dim=-1).max())
        start = some.nearest_words(some.guess.shortened(longest))
        found = attack.discrete(some, start, start.slots.mask[:, 0].sum(dim=2))
        ids = found.words(target)[0].masked_fill(~found.slots.mask, -1)
        for place, member in enumerate(members):
            alone = ids[place, 0, 0, : int(found.slots.mask[place].sum())]
            assert torch.equal(together.setdefault(member, alone), alone)


def test_whom_a_pass_has_not_changed_the_others_passes_do_not_change() -> None:
    target = small_target("bert", dtype=torch.float64)
    texts = ["a dog", "the dog sat on a mat", "big cat"]
    updates = [Client(target, dropout=True, seed=number).update([text], [0]) for number, text in enumerate(texts)]
    known = [Knowledge(labels=[0], lengths=target.encode([text]).lengths, dropout=0.1) for text in texts]
    attack = Grab(**SMALL | {"passes": 3, "stop": "settled", "polish": 0, "steps": 5})
    for found, update, facts in zip(attack.many(target, updates, known), updates, known, strict=True):
        alone = attack(target, update, facts)
        assert found.token_ids == alone.token_ids
        assert found.loss == pytest.approx(alone.loss, rel=1e-6)


def test_a_noisy_update_beside_a_clean_one_does_not_change_its_distance() -> None:
    target = small_target("bert", dtype=torch.float64)
    clean = capture(target, TEXTS[:1])
    noisy = defend(clean, [parse_defense("noise:0.1")], torch.Generator().manual_seed(0))
    known = Knowledge(labels=[0], lengths=target.encode(TEXTS[:1]).lengths, dropout=0.0)
    attack = Grab(**SMALL | {"rounds": 1, "polish": 0})
    together = attack.many(target, [clean, noisy], [known] * 2)
    assert together[0].loss == pytest.approx(attack(target, clean, known).loss, rel=1e-6)


def test_batches_with_another_longest_sentence_are_attacked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert", dtype=torch.float64)
    batches = [["a dog ran", "the cat"], ["the dog sat on a mat", "a big red dog"]]
    updates = [Client(target, dropout=True, seed=1).update(texts, [0, 1]) for texts in batches]
    known = [Knowledge(batch_size=2, longest=max(target.encode(texts).lengths), dropout=0.1) for texts in batches]
    seen: list[int] = []
    run = Grab.run

    def noted(self: Grab, target: Target, some: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        seen.append(len(some))
        return run(self, target, some, reporter)

    monkeypatch.setattr(Grab, "run", noted)
    attack = Grab(**SMALL | {"rounds": 1, "polish": 0})
    together = attack.many(target, updates, known)
    assert seen == [2]
    for found, update, facts in zip(together, updates, known, strict=True):
        alone = attack(target, update, facts)
        assert (found.token_ids, found.labels, found.notes) == (alone.token_ids, alone.labels, alone.notes)


def test_no_place_is_tried_that_a_victim_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    texts = ["a dog", "the big red cat ran on a red mat ."]
    attack = Grab(**SMALL | {"permutations": 3, "beams": 2})
    cohort = several(target, attack, texts, dropout=False, told=True)
    room = cohort.guess.slots.mask[:, 0].sum(dim=2)
    scored: list[int] = []
    score = beam_reorder.substitution_losses

    def counted(matcher: Any, alone: Substitutions, tried: Tensor) -> Tensor:
        scored.append(tried[..., 0].numel())
        return score(matcher, alone, tried)

    monkeypatch.setattr(beam_reorder, "substitution_losses", counted)
    attack.discrete(cohort, cohort.nearest_words(cohort.guess), room)
    # For each victim its own order and those drawn, then at each of its words every one of them in both beams.
    assert sum(scored) == sum(1 + 3 + 2 * words**2 for words in (room.flatten() - 2).tolist())


@pytest.mark.parametrize("stop", ["settled", "no-gain"])
def test_rounds_go_on_for_those_that_have_not_arrived(stop: Literal["settled", "no-gain"]) -> None:
    target = small_target("bert")
    attack = Grab(**SMALL, stop=stop)
    cohort = several(target, attack, ["a cat sat", "a dog ran"], dropout=False, told=True)
    before, words = cohort.guess, cohort.nearest_words(cohort.guess)
    order = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 1, 3, 4]])[:, None, None]
    searched = replace(words.rearranged(order), losses=words.losses + torch.tensor([[-1.0], [0.0]]))
    assert attack.converged(before, words, searched) == ([False, False] if stop == "settled" else [False, True])
    assert attack.converged(words, words, searched) == ([True, False] if stop == "settled" else [False, True])


# --- defenses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defense", "settings", "kept_only", "normalised"),
    [
        (None, {}, False, False),
        (None, {"cosine": True}, False, False),
        ("prune:0.9", {}, True, False),
        ("prune:0.9", {"cosine": True}, True, False),
        ("prune:0.9", {"pruning_mask": False}, False, False),
        ("noise:0.01", {}, False, True),
        ("noise:0.01", {"normalise": False}, False, False),
        ("clip:0.1", {}, False, True),
        ("clip:0.1", {"normalise": False}, False, False),
    ],
)
def test_the_distance_follows_what_was_done_to_the_update(
    defense: str | None, settings: dict[str, Any], kept_only: bool, normalised: bool
) -> None:
    target = load_target("tiny", 2)
    update = capture(target, TEXTS)
    if defense:
        update = defend(update, [parse_defense(defense)], torch.Generator().manual_seed(0))
    victim = Victim(update.gradient(), Knowledge(defenses=[defense] if defense else None), torch.Generator())
    distance = Grab(**SMALL | settings).distance_to(target, victim)
    assert (distance.kept_only, distance.normalised) == (kept_only, normalised)
    assert isinstance(distance, Cosine if settings.get("cosine") else L2L1)


def test_masks_that_would_not_move_are_refused() -> None:
    with pytest.raises(GradleakError, match="mask_speed must be above 0, not 0"):
        Grab.with_settings("paper", {"mask_speed": "0"})


# --- what it is for ------------------------------------------------------------------------------------------------


def test_a_batch_of_many_runs() -> None:
    target = small_target("bert")
    texts = ["the cat ran", "a dog sat on a mat"] * 8
    known = Knowledge(batch_size=16, longest=max(target.encode(texts).lengths))
    few = {"steps": 2, "rounds": 1, "beams": 1, "polish": 0, "starts": 1, "permutations": 1}
    result = Grab(**SMALL | few)(target, capture(target, texts, dropout=True), known)
    assert len(result.token_ids) == 16
    assert all(target.min_length <= len(ids) <= (known.longest or 0) for ids in result.token_ids)
    assert math.isfinite(result.loss)
    assert result.labels is not None
    assert len(result.labels) == 16


@pytest.mark.slow
def test_learnt_masks_recover_words_that_dropout_hides() -> None:
    target = load_target("tiny", 2)
    texts = ["my father lost all his money", "the old man walked slowly home", "she never spoke about the war"]
    scores = {True: 0.0, False: 0.0}
    for text in texts:
        update = capture(target, [text], dropout=True, seed=1)
        known = Knowledge(labels=[0], lengths=target.encode([text]).lengths, dropout=0.1)
        for learn in scores:
            result = Grab.with_settings("fast", {"learn_dropout": str(learn), "rounds": "1"})(target, update, known)
            scores[learn] += score_tokens(result.token_ids, target.encode([text]).ids.tolist(), target.tokenizer).rougeL
    assert scores[True] > scores[False]
