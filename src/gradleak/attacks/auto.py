"""Auto: look at the update, and use the attacks that fit it, strongest first, as long as there is time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.base import Attack, find_attack, register
from gradleak.attacks.sieve import by_whole_gradient, dropout_is_off, first_inputs, row_space
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Reporter, Snapshot, Update, Victim
from gradleak.leakage.perturbation import PRUNING_SHOWS, looks_rounded, noise_level, share_of_zeros
from gradleak.leakage.tokens import all_rows_changed, rows_above_cliff
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.targets import Target

# No words are nearer than this, as a cosine distance: it is rounding, of float32 or of bfloat16.
NEAREST, NEAREST_ROUNDED = 1e-7, 1e-5
# Whether there was dropout shows if the floor of the first layer is below this share of what stands out.
CLEAR = 1e-2
# The shares of the time left that an attack may take while others wait: sieve, which reads most, and any other.
SIEVE_SHARE, SHARE = 0.8, 0.6
NO_ATTENTION = "no attention gradients: the text can be searched, not read out"


@dataclass(frozen=True)
class _Trial:
    """What one of the attacks came to."""

    name: str
    finding: Finding
    distance: float
    cut_short: bool

    @property
    def note(self) -> str:
        if not self.finding.verified:
            ended = ", out of time" if self.cut_short else ""
            return f"{self.name}: not confirmed{ended}; its gradient is {self.distance:.2g} from the update's (0 to 1)"
        whole = any(note.startswith("proven by the whole gradient") for note in self.finding.notes)
        source = "the whole gradient" if whole else "the first layer's gradient"
        return f"{self.name}: text confirmed against {source}"


@register
@dataclass(frozen=True, kw_only=True)
class Auto(Attack):
    """Gradleak's default: examines the update, orders the attacks that apply to it, and spends a budget of time.

    It stops at a result that is verified, or whose gradient is the update's, and returns otherwise the one whose
    gradient is nearest to it, by the mean cosine distance of its tensors. The notes say what the update showed and what
    was tried.

    Attributes:
        budget: seconds for one update. Then the best found so far is returned.
    """

    name: ClassVar[str] = "auto"
    paper: ClassVar[str] = "gradleak, docs/attacks/auto.md"
    needs: ClassVar[tuple[str, ...]] = ("gradients of layers",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {}, "fast": {"budget": 15.0}}

    budget: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.budget > 0:
            raise GradleakError(f"the budget must be above 0 seconds, not {self.budget:g}")

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Attack one update after the other, each with a budget of its own."""
        return [self._attack(target, victim, reporter) for victim in victims]

    def _attack(self, target: Target, victim: Victim, reporter: Reporter) -> Finding:
        deadline = reporter.deadline.sooner(self.budget)
        evidence = examine(target, victim.gradient)
        trials: list[_Trial] = []
        failures: list[str] = []
        attacks = plan(target, victim, evidence)
        for attack in attacks:
            if trials and deadline.passed:
                break
            share = 1.0 if attack is attacks[-1] else SIEVE_SHARE if attack.name == "sieve" else SHARE
            part = reporter.within(deadline.sooner(share * deadline.left))
            try:
                trials.append(_try(attack, target, _informed(victim, trials), part, evidence))
            except Exception as error:  # one attack's failure must not hide what the others find
                failures.append(f"{attack.name} failed ({' '.join(str(error).split())}); the others went on")
                continue
            nearest = NEAREST_ROUNDED if evidence.rounded else NEAREST
            if trials[-1].finding.verified or trials[-1].distance < nearest:
                break
        if not trials:
            raise GradleakError(f"no attack could be run on this update: {'; '.join(failures) or 'none applies to it'}")
        best = min(trials, key=lambda trial: (not trial.finding.verified, trial.distance))
        notes = (*evidence.lines, *(trial.note for trial in trials), *failures, *best.finding.notes)
        texts = tuple(target.decode(ids) for ids in best.finding.token_ids)
        reporter(1, 1, lambda: (best.distance, texts))
        history = best.finding.history or (Snapshot(1, best.distance, texts),)
        loss = best.finding.loss if best.finding.verified else best.distance
        return replace(best.finding, notes=tuple(dict.fromkeys(notes)), history=history, loss=loss)


def plan(target: Target, victim: Victim, evidence: Evidence) -> list[Attack]:
    """Return the attacks that apply to an update, strongest first."""
    hybrid = ("lamp", "grab") if evidence.dropout is False else ("grab", "lamp")
    wanted: list[Attack] = [find_attack("sieve")()]
    if not evidence.pruned and not evidence.only_signs:  # words must be told apart, which the attack checks
        wanted.append(find_attack("mosaic").with_settings())
    wanted += [find_attack(name).with_settings("fast") for name in hybrid]
    return [attack for attack in wanted if _applies(attack, target, victim)]


def _applies(attack: Attack, target: Target, victim: Victim) -> bool:
    try:
        attack.check(target, Update(dict(victim.gradient)), victim.knowledge)
    except GradleakError:
        return False
    return True


@dataclass(frozen=True)
class Evidence:
    """What an update shows of how it was made.

    Attributes:
        kept: the share of entries that are not zero.
        rounded: whether entries have few distinct values, as differences of weights and half precision have.
        only_signs: whether all entries are −1, 0 or 1.
        noise: standard deviation of added noise; None if it cannot be seen.
        attention: whether attention gradients of the first layer were sent.
        tokens: how many of their singular values stand out, which is the number of tokens; None if none does.
        dropout: whether the client uses dropout; None if it cannot be seen.
        embeddings: which embedding gradients were sent.
    """

    kept: float
    rounded: bool
    only_signs: bool
    noise: float | None
    attention: bool
    tokens: int | None
    dropout: bool | None
    embeddings: str

    @property
    def pruned(self) -> bool:
        """Whether entries were taken out: zeros that no rounding explains."""
        return self.kept < 1 - PRUNING_SHOWS and not self.rounded

    @property
    def defended(self) -> bool:
        """Whether the update is not as it was computed."""
        return self.pruned or self.only_signs or bool(self.noise)

    @property
    def lines(self) -> list[str]:
        """What there is to say, a line each."""
        said = [f"embedding gradients: {self.embeddings}"]
        if self.only_signs:
            said.append("only signs were sent")
        elif self.pruned:
            said.append(f"pruned to {100 * self.kept:.2g} %")
        elif self.rounded:
            said.append("rounded to few distinct values: half precision, or a difference of weights")
        if self.noise and not self.only_signs:
            said.append(f"noise about {self.noise:.1g}")
        if self.tokens is not None:
            said.append(f"about {self.tokens} tokens stand out of the first layer")
        elif not self.attention:
            said.append(NO_ATTENTION)
        if self.dropout is not None:
            said.append("dropout likely" if self.dropout else "no dropout")
        return said


def examine(target: Target, gradient: Mapping[str, Tensor]) -> Evidence:
    """Look at an update before it is attacked."""
    kept = 1 - share_of_zeros(target, gradient)
    only_signs = all(bool(((t == 0) | (t.abs() == 1)).all()) for t in gradient.values())
    rounded = not only_signs and looks_rounded(target, gradient)
    tokens, dropout = None, None
    inputs = first_inputs(target) if target.layers and target.layers[0].query.weight in gradient else None
    if inputs is not None and not only_signs:
        space = row_space([projection.weight_in(gradient) for projection in inputs.maps])
        if 0 < space.rank < space.width:
            tokens = space.rank
            dropout = not dropout_is_off(target, inputs, space) if space.error < CLEAR else None
    noise = noise_level(target, gradient)
    sent = _embeddings_sent(target, gradient)
    return Evidence(kept, rounded, only_signs, noise, inputs is not None, tokens, dropout, sent)


def _embeddings_sent(target: Target, gradient: Mapping[str, Tensor]) -> str:
    if target.word_parameters <= gradient.keys():
        (table,) = target.word_parameters
        if all_rows_changed(target, gradient) and rows_above_cliff(gradient[table]) is None:
            return "sent, but every word's row changed, as noise or AdamW do"
        return "sent, so that the words are known"
    return "of positions, not of words" if target.embedding_parameters & gradient.keys() else "not sent"


def _informed(victim: Victim, trials: Sequence[_Trial]) -> Victim:
    """Tell an attack how many sentences an earlier one read, where nobody said; and let each start from the seed."""
    known = victim.knowledge
    counted = next((sum(trial.finding.copies) for trial in trials if trial.name == "sieve"), 0)
    if known.sequences is None and counted:
        known = replace(known, batch_size=counted)
    return Victim(victim.gradient, known, torch.Generator().manual_seed(victim.generator.initial_seed()))


def _try(attack: Attack, target: Target, victim: Victim, reporter: Reporter, evidence: Evidence) -> _Trial:
    finding = attack.run(target, [victim], reporter)[0]
    if not finding.verified and evidence.attention:
        finding = _proven(target, victim, finding)
    distance = _distance(target, victim, finding, evidence)
    return _Trial(attack.name, finding, distance, reporter.deadline.hit)


def _proven(target: Target, victim: Victim, finding: Finding) -> Finding:
    """Mark texts whose gradient is the very update, which proves them, whichever attack found them.

    Only attention makes every word and its place count: a maximum over places may leave words out, and an LSTM forgets.
    """
    texts = list(map(tuple, finding.token_ids))
    labels = None if finding.labels is None else list(finding.labels)
    if labels is not None and len(labels) == len(texts):
        pairs = list(dict.fromkeys(zip(texts, labels, strict=True)))
        texts, labels = [text for text, _ in pairs], [label for _, label in pairs]
    if len(set(texts)) < len(texts) or not all(texts):  # one text with several labels is left unproven
        return finding
    proof = by_whole_gradient(target, victim.gradient, texts, labels)
    if not proof.verified:
        return finding
    return replace(
        finding,
        token_ids=texts,
        labels=labels,
        loss=0.0,
        notes=(*finding.notes, *proof.evidence),
        verified=True,
        complete=proof.complete,
        labels_verified=proof.labels_verified,
        copies=(),
    )


def _distance(target: Target, victim: Victim, finding: Finding, evidence: Evidence) -> float:
    """Return how far the words' gradient is from the update's: one measure for all attacks."""
    if not any(finding.token_ids):
        return 1.0
    names = [name for name in victim.gradient if name not in target.embedding_parameters]
    matcher = Matcher(target, [victim.gradient], Cosine(kept_only=evidence.pruned), names)
    longest = max(map(len, finding.token_ids))
    ids = torch.zeros(len(finding.token_ids), longest, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, words in enumerate(finding.token_ids):
        ids[row, : len(words)] = torch.tensor(list(words))
        mask[row, : len(words)] = True
    ids, mask = ids.to(target.device), mask.to(target.device)
    labels = ids if target.task == "causal-lm" else _labels(target, victim.knowledge, finding, len(ids))
    distance = float(matcher(Candidates(ids[None, None], mask[None, None], labels[None, None])))
    return max(distance, 0.0)  # a cosine may round to a little more than 1


def _labels(target: Target, known: Knowledge, finding: Finding, count: int) -> Tensor:
    """Return classes as known or found; all alike where neither is."""
    classes = next((row for row in (known.labels, finding.labels) if row is not None and len(row) == count), None)
    if classes is None:
        even = torch.full((count, target.num_labels), 1 / target.num_labels)
        return even.to(target.device, target.dtype)
    return torch.tensor(list(classes), device=target.device)
