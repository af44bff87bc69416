"""`LeakageAudit`: a Flower strategy around another that attacks what clients reply, and changes nothing else."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from gradleak.errors import GradleakError
from gradleak.flower.surroundings import (
    MASKED,
    arrays_of,
    calling_strategies,
    check_alike,
    check_strategy,
    examples_of,
    is_masked,
    privacy_notes,
    wrapped_strategies,
)
from gradleak.monitoring import AuditProcess, AuditSettings, LocalDp, check_counts, seconds_of
from gradleak.monitoring.records import failed_record
from gradleak.reports.record import ROUNDS_FILE
from gradleak.reports.rounds import RoundsLog

LOGGER = logging.getLogger("flwr")  # Flower's own, so that lines appear among those of the rounds
BACKLOG = 2
"""A round is skipped while so many rounds' clients wait for the audit."""


class LeakageAudit(Strategy):
    """Audits what clients send to a strategy, round by round.

    Args:
        strategy: the strategy that trains; what it returns is the same as without the audit.
        target: the model: a name, a directory or a hub id. Weights are those of each round.
        protocol: how clients train, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`.
        directory: where rounds.jsonl goes; `gradleak report DIRECTORY` draws it.
        every: look at every so many rounds, the first one included.
        clients: look at so many clients of such a round, drawn at random.
        wait: the longest time that a round waits for its audit, in seconds or as `10s`; `0` to wait never. The rest is
            done while training goes on, and after the last round.
        sees: `replies`; `sum` for a server that has the sum over clients alone; `auto`: the sum if replies are masked.
        **options: further settings of the audit: `budget` for one update, `task`, `num_labels`, `lora`, `adapter`,
            `attack`, `local_dp`, `seed`, `threads`, `device` (see `AuditSettings`).

    Raises:
        GradleakError: for whatever can be known to be wrong before the first round.
    """

    def __init__(  # noqa: PLR0913 - the public interface, by keyword
        self,
        strategy: Strategy,
        *,
        target: str | Path,
        protocol: str,
        directory: str | Path = "audit",
        every: int = 1,
        clients: int = 1,
        wait: float | str = 10.0,
        sees: str = "auto",
        **options: Any,  # noqa: ANN401 - settings of several types
    ) -> None:
        check_strategy(strategy)
        check_counts(every=every, clients=clients)
        if sees not in ("auto", "replies", "sum"):
            raise GradleakError(f"sees takes auto, replies or sum, not {sees!r}")
        self.strategy = strategy
        self.every, self.clients, self.wait, self.sees = every, clients, seconds_of(wait, "wait"), sees
        self.settings = AuditSettings.read(target, protocol, **options)
        self.directory = Path(directory)
        self._file = self.directory / ROUNDS_FILE
        self._audit: AuditProcess | None = AuditProcess(self.settings, self.directory, "flower", LOGGER)
        self._checked = False
        self._looked = False
        self._sent: dict[int, Message] = {}
        self._notes: list[str] = []
        self._late: set[int] = set()  # rounds that ended before their audit

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the strategy inside has
        if name == "strategy" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __repr__(self) -> str:
        return f"LeakageAudit({self.strategy!r}, target={self.settings.target!r}, protocol={self.settings.protocol!r})"

    # --- what Flower calls -------------------------------------------------------------------------------------

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:  # noqa: ANN401
        """Check the arrays against the model, run the strategy, and wait for audits that are not done.

        Raises:
            GradleakError: if the arrays are not weights of the model.
        """
        self._check(initial_arrays)
        try:
            # A strategy with a loop of its own runs that, with this wrapper's hooks.
            result = type(self.strategy).start(self, grid, initial_arrays, *args, **kwargs)
        except BaseException:
            self._give_up()
            raise
        self._finish(result)
        return result

    def summary(self) -> None:
        """Log the audit's settings and those of the strategy."""
        self.strategy.summary()
        LOGGER.info("\t└──> Leakage audit:")
        LOGGER.info("\t\t├── Model: %s, protocol: %s", self.settings.target, self.settings.protocol)
        LOGGER.info("\t\t├── Every %d rounds, %d clients, %g s each", self.every, self.clients, self.settings.budget)
        LOGGER.info("\t\t└── Records: %s", self._file)
        if self.settings.local_dp is not None and (warning := LocalDp.read(self.settings.local_dp).warning):
            LOGGER.warning("audit: %s", warning)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy configure the round, and keep what it sends."""
        self._check(arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        due = self._audit is not None and self._is_due(server_round)
        self._sent = {message.metadata.dst_node_id: message for message in messages} if due else {}
        self._arrays = arrays if due else None
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand replies of some clients to the audit, let the strategy aggregate all, and add the audit's metrics."""
        received = list(replies)
        masked = self._look(server_round, received)  # before the strategy, which may change the replies
        arrays, metrics = self.strategy.aggregate_train(server_round, received)
        if masked and arrays is not None:
            self._look_at_sum(server_round, arrays, len([reply for reply in received if not reply.has_error()]))
        self._sent, self._arrays = {}, None
        return arrays, self._with_metrics(server_round, metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy configure the evaluation."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the strategy aggregate the evaluation."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    # --- the audit ---------------------------------------------------------------------------------------------

    def _is_due(self, server_round: int) -> bool:
        return (server_round - 1) % self.every == 0

    def _check(self, arrays: ArrayRecord) -> None:
        """Compare the arrays with the model, once."""
        if self._checked or self._audit is None:
            return
        self._checked = True
        self._audit.check({name: tuple(array.shape) for name, array in arrays.items()})
        self._notes = privacy_notes(list(wrapped_strategies(self.strategy)), calling_strategies(self))
        for note in self._notes:
            LOGGER.info("audit: %s", note)

    def _look(self, number: int, received: list[Message]) -> bool:
        """Submit replies of some clients; return whether the sum is to be looked at in their place.

        Raises:
            GradleakError: in the first round, if not one reply can be read: the audit is set up wrongly.
        """
        if self._audit is None or not self._sent:
            return False
        valid = {reply.metadata.src_node_id: reply for reply in received if not reply.has_error()}
        if self.sees == "sum" or (self.sees == "auto" and any(map(is_masked, valid.values()))):
            return True
        if len(self._audit.pending) >= BACKLOG * self.clients:
            LOGGER.warning("audit: round %d is skipped, earlier rounds are still attacked", number)
            self._put_down(number, {"all": "earlier rounds were still attacked"}, status="skipped")
            return False
        readable, problems = self._readable(valid)
        if not self._looked and valid:
            self._looked = True
            if not readable:
                self._give_up()
                raise GradleakError(f"the audit can read no reply: {next(iter(problems.values()))}")
        chosen = random.Random(f"{self.settings.seed} {number}").sample(sorted(readable), k=len(readable))[
            : self.clients
        ]
        self._put_down(number, problems)
        for node in chosen:
            self._submit(number, self._sent[node], {str(node): readable[node]}, valid[node])
        return False

    def _readable(self, valid: Mapping[int, Message]) -> tuple[dict[int, Mapping[str, Any]], dict[str, str]]:
        """Return the replies' arrays by client, and what is wrong with the others."""
        readable: dict[int, Mapping[str, Any]] = {}
        problems: dict[str, str] = {}
        for node, reply in valid.items():
            try:
                arrays = arrays_of(reply, f"the reply of client {node}")
                sent = self._sent.get(node)
                if sent is None:
                    raise GradleakError(f"client {node} replied without being asked")
                check_alike(arrays_of(sent, "the message"), arrays, node)
                readable[node] = arrays
            except Exception as error:  # whatever a client sends must not end the training
                problems[str(node)] = " ".join(str(error).split())
        return readable, problems

    def _look_at_sum(self, number: int, arrays: ArrayRecord, clients: int) -> None:
        assert self._audit is not None
        sent = next(iter(self._sent.values()))
        after = {name: array.numpy() for name, array in arrays.items()}
        try:
            before = arrays_of(sent, "the message")
        except GradleakError:
            before = {} if self._arrays is None else {name: array.numpy() for name, array in self._arrays.items()}
        facts = {"clients": clients, "notes": [MASKED, *self._notes]}
        self._audit.submit(number, before, {f"sum of {clients}": after}, **facts)

    def _submit(self, number: int, sent: Message, after: Mapping[str, Mapping[str, Any]], reply: Message) -> None:
        assert self._audit is not None
        examples = dict.fromkeys(after, examples_of(reply))
        self._audit.submit(number, arrays_of(sent, "the message"), after, notes=self._notes, examples=examples)

    def _put_down(self, number: int, problems: Mapping[str, str], status: str = "failed") -> None:
        for client, problem in problems.items():
            if status == "failed":
                LOGGER.warning("audit of client %s in round %d failed: %s", client, number, problem)
            try:
                RoundsLog(self._file).append(failed_record(number, client, problem) | {"status": status})
            except GradleakError as error:
                LOGGER.warning("audit: %s", error)

    def _with_metrics(self, number: int, metrics: MetricRecord | None) -> MetricRecord | None:
        """Wait as long as the round may, and add what is known of it."""
        if self._audit is None:
            return metrics
        due = self._is_due(number)
        known = len(self._audit.results)
        self._audit.collect(self.wait if due else 0.0, number)
        for result in self._audit.results[known:]:
            _log(result)
        if not due:
            return metrics
        found = self._metrics(number)
        self._late |= {number} if found["leak-pending"] else set()
        return _joined(metrics, found)

    def _metrics(self, number: int) -> dict[str, int | float]:
        assert self._audit is not None
        results = [result for result in self._audit.results if result["round"] == number]
        done = [result for result in results if result["status"] == "done"]
        proven = [result for result in done if result["verified"]]
        return {
            "leak-audited": len(done),
            "leak-verified": len(proven),
            "leak-sentences": sum(result["read"] for result in proven),
            "leak-words": sum(result["words"] for result in proven),
            "leak-failed": len(results) - len(done),
            "leak-pending": sum(job.round == number for job in self._audit.pending),
            "leak-seconds": float(sum(result["seconds"] or 0.0 for result in done)),
        }

    def _finish(self, result: Result) -> None:
        """Wait for audits that are not done, and add what they found to the metrics of their rounds."""
        if self._audit is None:
            return
        if self._audit.pending:
            LOGGER.info("audit: waiting for %d attacks", len(self._audit.pending))
        known = len(self._audit.results)
        self._audit.close((len(self._audit.pending) + 1) * (1.5 * self.settings.budget + 30.0))
        for each in self._audit.results[known:]:
            _log(each)
        for number in self._late:
            history = result.train_metrics_clientapp
            history[number] = _joined(history.get(number), self._metrics(number))
        LOGGER.info("audit: what was found is in %s; draw it with: gradleak report %s", self._file, self.directory)

    def _give_up(self) -> None:
        if self._audit is not None:
            self._audit.kill()
            self._audit = None


def _joined(metrics: MetricRecord | None, more: Mapping[str, int | float]) -> MetricRecord:
    return MetricRecord({**(metrics or {}), **more})


def _log(result: Mapping[str, Any]) -> None:
    """Log what an attack gave, without the words."""
    who = f"client {result['client']} in round {result['round']}"
    if result["status"] != "done":
        LOGGER.warning("audit of %s failed: %s", who, result["error"])
        return
    proof = "proven by the update" if result["verified"] else "not proven"
    LOGGER.info("audit of %s: %d sentences, %d words, %s", who, result["read"], result["words"], proof)
    for line in result.get("warnings") or ():
        LOGGER.warning("audit of %s: %s", who, line)
