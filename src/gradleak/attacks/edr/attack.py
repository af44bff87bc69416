"""EDR: read the words from the embeddings' gradient, anneal their order, and move tokens whose rows do not match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradleak.assignment.grouping import attacked_together, group_by_length
from gradleak.assignment.history import SearchHistory
from gradleak.assignment.position_sums import has_position_gradient, read_places
from gradleak.assignment.reading import ReadVictim
from gradleak.assignment.scoring import CandidateScorer, ScoreQuery, SearchRoutine, run_in_lockstep
from gradleak.attacks.base import Attack, register
from gradleak.attacks.edr.annealing import anneal_texts
from gradleak.attacks.edr.group import VictimGroup, freeze_right_sentences
from gradleak.attacks.edr.state import EdrState
from gradleak.attacks.edr.token_adjustment import Adjustment, ScoredSolution, adjust
from gradleak.exchange import Finding, Knowledge, Reporter, Update, Victim
from gradleak.leakage.tokens import require_words
from gradleak.matching import L2L1, Cosine, Distance
from gradleak.search import Annealed, Schedule
from gradleak.settings import setting
from gradleak.targets import Target

# Section 5.1: temperature, cooling rate and iterations by batch size.
PUBLISHED = {1: (300.0, 0.95, 3_000), 2: (400.0, 0.99, 4_000), 4: (500.0, 0.99, 5_000)}


@register
@dataclass(frozen=True, kw_only=True)
class Edr(Attack):
    """EDR (ACL submission, authors not named): TokenFusion, annealing with a tabu list, gradient analysis.

    Section 4.1: tokens are the rows of the word embeddings' gradient that are not zero; pieces are fused to words.
    Section 4.2, algorithm 1: random sentences of them are annealed, judged by the cosine for one sentence and by
    L2 + α · L1 for a batch. Section 4.3: in the best of them, tokens whose row differs from the observed one are moved,
    and sentences whose rows agree are not changed any more. Section 3.5: what is not right yet may be attacked again
    (`attempts`).

    The paper leaves open how many starts there are, how long the tabu list is, how a token is moved, and α.

    `positions` is not in the paper. Preset `fast`, which uses it, is a part of gradleak's own Mosaic. On a GPU victims
    of similar length are attacked together.
    """

    name: ClassVar[str] = "edr"
    paper: ClassVar[str] = "EDR: Data Reconstruction Attack Exploiting Word Embedding by Metaheuristic (ACL submission)"
    needs: ClassVar[tuple[str, ...]] = ("word-embedding gradients", "gradients of layers")
    classifiers_only: ClassVar[bool] = True  # a language model's output shares the word embeddings: all rows are used
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "fast": {"positions": True, "distance": "cosine", "attempts": 1, "iterations": 1_000},
    }

    temperature: float | None = setting(
        None,
        "first temperature of annealing; if not set, by batch size",
        above=0,
        paper="section 5.1: 300 for one sentence, 400 for two, 500 for four",
    )
    cooling: float | None = setting(
        None,
        "factor of the temperature after each iteration; if not set, by batch size",
        above=0,
        most=1,
        paper="section 5.1: 0.95 for one sentence, 0.99 for more",
    )
    iterations: int | None = setting(
        None,
        "the most iterations of annealing; if not set, by batch size",
        least=1,
        paper="section 5.1: 3,000 for one sentence, 4,000 for two, 5,000 for four",
    )
    failures: float = setting(
        0.1,
        "a start ends after more rejected texts than this share of the iterations",
        least=0,
        paper="a tenth of the iterations",
    )
    starts: int = setting(4, "random texts that are annealed in parallel", least=1, paper="not given")
    tabu: int = setting(
        500,
        "for how many iterations a text that any start has scored is not scored again",
        least=1,
        paper="length not given; the paper's list holds accepted texts alone",
    )
    distance: Literal["published", "cosine", "l2+l1"] = setting(
        "published",
        "distance of gradients: published is the cosine for one sentence and l2+l1 for a batch",
        paper="section 4.2, equations 2 and 3",
    )
    alpha: float = setting(0.01, "weight of L1 in l2+l1", paper="not given; LAMP's value")
    adjusted: int = setting(2, "how many of the best texts are adjusted after annealing", least=1, paper="section 4.3")
    adjustments: int = setting(100, "the most moves by which a text is adjusted", least=0, paper="section 4.3")
    attempts: int = setting(2, "how often what is not right is attacked", least=1, paper="section 3.5")
    positions: bool = setting(
        False, "read the order from the position embeddings' gradient first", paper="not in the paper (see mosaic)"
    )
    lengths_tried: int = setting(
        8, "lengths to try where they are neither known nor shown by the position embeddings", least=1
    )

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError if the attack cannot work on this update."""
        super().check(target, update, knowledge)
        require_words(self.name, target, update.tensors)

    def schedule(self, sequences: int) -> Schedule:
        """Return the annealing schedule of a batch size; for one that was not published that of the next larger."""
        size = next((size for size in PUBLISHED if size >= sequences), max(PUBLISHED))
        temperature, cooling, iterations = PUBLISHED[size]
        return Schedule(
            temperature=temperature if self.temperature is None else self.temperature,
            cooling=cooling if self.cooling is None else self.cooling,
            iterations=iterations if self.iterations is None else self.iterations,
            failures=self.failures,
            tabu=self.tabu,
        )

    def judged_by(self, sequences: int) -> Distance:
        """Return the distance: as published, equation 2 for one sentence and equation 3 for a batch."""
        if self.distance == "cosine" or (self.distance == "published" and sequences == 1):
            return Cosine()
        return L2L1(alpha=self.alpha, squared=False)

    def remarks(self) -> tuple[str, ...]:
        """Return a remark where the settings are not the paper's attack."""
        return ("edr:fast is gradleak's own mosaic, not EDR",) if self.positions else ()

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read every victim, then search for the texts of victims of similar length together."""
        read = [ReadVictim.read(target, victim, self.lengths_tried, deadline=reporter.deadline) for victim in victims]
        steps = [self._steps(one) for one in read]
        histories = [SearchHistory(part, total) for part, total in zip(reporter.split(steps), steps, strict=True)]
        distance = self.judged_by(read[0].problems[0].sequences)
        found: dict[int, Finding] = {}
        for members in group_by_length(target, [one.problems[0].length for one in read], victims[0].gradient):
            group = VictimGroup(target, [read[n] for n in members], [histories[n] for n in members], distance)
            for scorer, states in group.trials():
                self._search(scorer, states)
            found |= zip(members, group.findings(), strict=True)
        return [found[number] for number in range(len(victims))]

    def _search(self, scorer: CandidateScorer, states: Sequence[EdrState]) -> None:
        """Improve the best text of every state: anneal and adjust, then again what is not right yet (section 3.5)."""
        deadline = states[0].history.deadline
        for number, text in run_in_lockstep(scorer, {state.number: self._first(state) for state in states}).items():
            states[number].best = text
        for _ in range(self.attempts):
            searched = [state for state in states if state.unsolved]
            if not searched or deadline.passed:
                break
            selected = scorer.select([state.number for state in searched])
            annealed = self._anneal(selected, searched)  # section 4.2, algorithm 1
            routines = {state.number: self._adjust(state, own) for state, own in zip(searched, annealed, strict=True)}
            for number, text in run_in_lockstep(scorer, routines).items():  # section 4.3
                states[number].improve(text)
            if deadline.passed:
                break
            freeze_right_sentences(selected, searched)

    def _first(self, state: EdrState) -> SearchRoutine[ScoredSolution]:
        """Return a random text of the fused words, or (not the paper's) the one that the positions' gradient shows."""
        gradient = state.victim.gradient
        if self.positions and has_position_gradient(state.problem.target, gradient):
            read = read_places(state.problem, gradient, self.starts, state.victim.generator)
            losses = yield ScoreQuery(read)
            return (yield from self._adjust(state, Annealed(read, losses), crossing=True))
        solution = state.draw_texts(self.starts)[0]
        losses = yield ScoreQuery(solution[None])
        text = ScoredSolution(solution, float(losses))
        state.record(text)
        return text

    def _anneal(self, scorer: CandidateScorer, states: Sequence[EdrState]) -> list[Annealed]:
        """Algorithm 1 for several starts: returned is the best text of each, where the paper's returns the last."""
        # A cosine distance is 2 at most: at the published temperatures most early steps are accepted in any case.
        span = 2.0 if isinstance(self.judged_by(scorer.sequences), Cosine) else math.inf
        return anneal_texts(scorer, states, self.starts, self.schedule(scorer.sequences), span)

    def _adjust(self, state: EdrState, found: Annealed, *, crossing: bool = False) -> SearchRoutine[ScoredSolution]:
        """Section 4.3: move the tokens with wrong rows in the best texts that were found; return the best result."""
        how = Adjustment(
            layout=state.layout,
            sequences=state.problem.sequences,
            rounds=self.adjustments,
            tolerance=state.tolerance,
            crossing=crossing,
            deadline=state.history.deadline,
        )
        texts: list[ScoredSolution] = []
        for number in found.losses.argsort()[: self.adjusted].tolist():
            text = yield from adjust(ScoredSolution(found.states[number], float(found.losses[number])), how)
            texts.append(text)
            state.record(text)
            if text.loss <= state.tolerance:
                break
        return min(texts, key=lambda text: text.loss)

    def _side_by_side(self, target: Target) -> bool:
        return attacked_together(target)

    def _steps(self, read: ReadVictim) -> int:
        """Return the most steps that the search for a victim's text takes."""
        iterations = self.schedule(read.problems[0].sequences).iterations
        return len(read.problems) * (self.attempts * iterations + (self.attempts + 1) * self.adjusted)
