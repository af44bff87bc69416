"""The Forest attack: tokens from the first layer, texts from the forest of prefixes, proof from the whole gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.attacks.base import Attack, register
from gradleak.attacks.forest.encoders.reading import can_read_encoder, read_encoder
from gradleak.attacks.forest.output import fit_to_knowledge
from gradleak.attacks.forest.reader import ForestReader
from gradleak.attacks.forest.reading import ForestReading
from gradleak.attacks.forest.sites import find_sites
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Reporter, Snapshot, Update, Victim
from gradleak.leakage.proof import Proof
from gradleak.settings import setting
from gradleak.targets import Target


@register
@dataclass(frozen=True, kw_only=True)
class Forest(Attack):
    """Forest (gradleak's own): read a decoder's update, of all its weights or of LoRA adapters alone, or an encoder's.

    The first layer's rows are combinations of a few vectors of the vocabulary, and sparse recovery finds them even if
    the adapters' rank is far below the number of tokens. Deeper layers' rows are combinations of prefixes, which are
    grown token by token and judged by all layers together. Labels, lengths and batch size need not be known. Texts
    whose gradient equals the update are marked as verified.
    """

    name: ClassVar[str] = "forest"
    paper: ClassVar[str] = "gradleak, docs/attacks/forest.md"
    needs: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {}, "fast": {"spare": 1.0}}

    spare: float = setting(
        3.0, "superfluous prefixes that may be picked, and are taken back later, for each token found", least=0
    )

    def check(self, target: Target, update: Update, knowledge: Knowledge) -> None:
        """Raise a GradleakError unless the update shows the first layer's input of a decoder or an adapted encoder."""
        encoder = "causal-lm" not in target.family.tasks
        if encoder and (target.adapter is None or target.family.position_embedding is None):
            raise GradleakError(
                f"{self.name} reads decoders, and encoders' adapters; {target.name} is neither: try sieve or auto"
            )
        super().check(target, update, knowledge)
        sites = find_sites(target, update.tensors)
        if encoder and not can_read_encoder(target, sites):
            raise GradleakError(
                f"{self.name} needs the gradient of A of an adapter on the first layer's query, key or value of "
                f"{target.name}, in a round after the first"
            )
        if encoder and len(sites) < 2:
            raise GradleakError(
                f"{self.name} needs the gradient of an adapter on a later layer of {target.name}, too: the first "
                "layer's shows the tokens of all sentences together"
            )
        if not any(site.tokenwise for site in sites):
            raise GradleakError(
                f"{self.name} needs the gradient of a map that reads the first layer's input, or of an adapter on one "
                "(q_proj, k_proj or v_proj of layer 0)"
            )

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        """Read one update after the other."""
        findings: list[Finding] = []
        for number, victim in enumerate(victims, start=1):

            def progress(texts: Sequence[Sequence[int]], left: float) -> None:
                decoded = tuple(target.decode(list(text)) for text in texts)
                reporter(len(findings), len(victims), lambda: (left, decoded))

            if "causal-lm" in target.family.tasks:
                reader = ForestReader(target, victim.gradient, victim.protocol, self.spare, reporter.deadline, progress)
                reading = reader.read()
            else:
                reading = read_encoder(target, victim.gradient, victim.protocol, reporter.deadline, progress)
            findings.append(_finding(target, reading, victim.knowledge))
            reporter(number, len(victims), lambda: (findings[-1].loss, findings[-1].history[-1].texts))
        return findings

    def _side_by_side(self, target: Target) -> bool:
        return False


def _finding(target: Target, reading: ForestReading, known: Knowledge) -> Finding:
    fitted, labels = fit_to_knowledge(target, known, reading)
    texts = tuple(target.decode(list(ids)) for ids in fitted)
    kept = set(fitted) == set(reading.texts)  # texts that had to be cut or filled are not those proven
    proof = reading.proof if kept else Proof()
    same = labels == reading.labels or sorted(labels or []) == sorted(reading.labels or [])
    return Finding(
        token_ids=fitted,
        labels=labels,
        loss=0.0 if proof.verified else reading.left,
        history=(Snapshot(1, reading.left, texts),),
        notes=(*reading.notes, *proof.evidence),
        verified=proof.verified,
        complete=proof.complete,
        labels_verified=proof.labels_verified and same,
        settled=reading.settled and kept,
    )
