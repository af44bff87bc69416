"""`AuditAggregator`: an aggregator of FLARE around another that attacks what clients send to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from gradleak.errors import GradleakError
from gradleak.flare.leakage_filter import after_training
from gradleak.monitoring import AuditProcess, AuditSettings, check_counts, seconds_of

LOGGER = logging.getLogger("gradleak.flare")
STEPS = "NUM_STEPS_CURRENT_ROUND"
"""The key of a result's meta by which FLARE's own FedAvg weights it."""


class WeightedMean(ModelAggregator):
    """The weighted mean of clients' weights, as FLARE's FedAvg computes it without an aggregator."""

    def __init__(self) -> None:
        super().__init__()
        self._kind: Any = None
        self._sum = WeightedAggregationHelper()

    def accept_model(self, model: FLModel) -> None:
        """Add a result, weighted by its number of steps."""
        meta = model.meta or {}
        name, number = client_name(model), model.current_round or 0
        self._kind = self._kind or model.params_type
        self._sum.add(data=model.params, weight=meta.get(STEPS, 1.0), contributor_name=name, contribution_round=number)

    def aggregate_model(self) -> FLModel:
        """Return the mean, and start anew."""
        mean = FLModel(params=self._sum.get_result(), params_type=self._kind or ParamsType.FULL)
        self.reset_stats()
        return mean

    def reset_stats(self) -> None:
        """Start anew."""
        self._sum, self._kind = WeightedAggregationHelper(), None


class AuditAggregator(ModelAggregator):
    """Audits what clients send, and aggregates as it would be without.

    Args:
        target: the model: a name, a directory or a hub id.
        protocol: how clients train, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`.
        aggregator: what aggregates; None for the weighted mean.
        directory: where rounds.jsonl goes; `gradleak report DIRECTORY` draws it.
        every: look at every so many rounds, the first one included.
        clients: look at so many clients of such a round, those that answer first.
        wait: the longest time that a round waits for its audit, in seconds or as `10s`.
        budget: time for one attack, in seconds or as `60s`.
        task: `classification` or `causal-lm`.
        num_labels: classes of a classifier that the model does not come with.
        lora: the settings of a LoRA adapter that clients train.
        adapter: the directory of one, in place of `lora`.
        attack: the attack.
        local_dp: the local differential privacy that clients state.
        seed: of everything random in the audit.
    """

    def __init__(  # noqa: PLR0913 - FLARE makes components from plain arguments
        self,
        target: str,
        protocol: str,
        aggregator: ModelAggregator | None = None,
        directory: str = "audit",
        every: int = 1,
        clients: int = 1,
        wait: float | str = 10.0,
        budget: float | str = 60.0,
        task: str = "classification",
        num_labels: int | None = None,
        lora: str | None = None,
        adapter: str | None = None,
        attack: str = "auto",
        local_dp: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if aggregator is not None and not isinstance(aggregator, ModelAggregator):
            raise GradleakError(f"AuditAggregator wraps a ModelAggregator; {type(aggregator).__name__} is none")
        check_counts(every=every, clients=clients)
        # FLARE writes the attributes of these names into the job.
        self.target, self.protocol, self.aggregator, self.directory = target, protocol, aggregator, directory
        self.every, self.clients, self.wait, self.budget = every, clients, wait, budget
        self.task, self.num_labels, self.lora, self.adapter = task, num_labels, lora, adapter
        self.attack, self.local_dp, self.seed = attack, local_dp, seed
        options = {"budget": budget, "task": task, "num_labels": num_labels, "lora": lora, "adapter": adapter}
        self._settings = AuditSettings.read(target, protocol, **options, attack=attack, local_dp=local_dp, seed=seed)
        self._wait = seconds_of(wait, "wait")
        self._inner = aggregator or WeightedMean()
        self._audit: AuditProcess | None = None
        self._checked = False
        self._sent: Mapping[str, Any] | None = None
        self._round, self._seen = 0, 0

    # --- what FLARE calls --------------------------------------------------------------------------------------

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the audit with the run, take the weights of each round, and finish with the run."""
        super().handle_event(event_type, fl_ctx)
        self._inner.handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN and self._audit is None:
            self._audit = AuditProcess(self._settings, Path(self.directory), "flare", LOGGER)
        elif event_type == AppEventType.ROUND_STARTED:
            self._start_round(fl_ctx)
        elif event_type == EventType.END_RUN and self._audit is not None:
            self._audit.close((len(self._audit.pending) + 1) * (1.5 * self._settings.budget + 30.0))
            self._audit = None

    def accept_model(self, model: FLModel) -> None:
        """Hand a client's result to the audit and to the aggregator."""
        self._look(model)
        self._inner.fl_ctx = self.fl_ctx
        self._inner.accept_model(model)

    def aggregate_model(self) -> FLModel:
        """Return the aggregate, with the audit's metrics."""
        model = self._inner.aggregate_model()
        if self._audit is not None and self._seen:
            self._audit.collect(self._wait, self._round)
            model.metrics = {**(model.metrics or {}), **self._metrics(self._audit)}
        return model

    def reset_stats(self) -> None:
        """Start a round."""
        self._seen = 0
        self._inner.reset_stats()

    # --- the audit ---------------------------------------------------------------------------------------------

    def _start_round(self, fl_ctx: FLContext) -> None:
        """Take the weights that are sent, and compare them with the model once.

        Raises:
            GradleakError: if they are not the model's; FLARE logs it and goes on without the audit.
        """
        self._round = int(fl_ctx.get_prop(AppConstants.CURRENT_ROUND, 0) or 0)
        sent = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        self._sent = None if sent is None else dict(sent[ModelLearnableKey.WEIGHTS])
        if self._checked or self._audit is None or self._sent is None:
            return
        self._checked = True
        try:
            self._audit.check({name: tuple(value.shape) for name, value in self._sent.items()})
        except GradleakError as error:
            self._audit.kill()
            self._audit = None
            self.system_panic(f"the audit cannot be run: {error}", fl_ctx)
            raise

    def _look(self, model: FLModel) -> None:
        due = self._audit is not None and self._round % self.every == 0 and self._seen < self.clients
        if not due or self._audit is None:
            return
        name = client_name(model)
        try:
            if self._sent is None:
                raise GradleakError("the weights of this round are not known")
            if not model.params:
                raise GradleakError("it has no weights")
            after = after_training(model.params, self._sent, differences=model.params_type == ParamsType.DIFF)
            before = {key: value for key, value in self._sent.items() if key in after}
            self._audit.submit(self._round, before, {name: after})
            self._seen += 1
        except Exception as error:  # a failed audit must not end the training
            LOGGER.warning("audit of client %s in round %d failed: %s", name, self._round, error)

    def _metrics(self, audit: AuditProcess) -> dict[str, float]:
        results = [result for result in audit.results if result["round"] == self._round]
        proven = [result for result in results if result["verified"]]
        return {
            "leak-audited": float(sum(result["status"] == "done" for result in results)),
            "leak-verified": float(len(proven)),
            "leak-sentences": float(sum(result["read"] for result in proven)),
            "leak-pending": float(sum(job.round == self._round for job in audit.pending)),
        }


def client_name(model: FLModel) -> str:
    """Return the name of the client that a result came from."""
    meta = model.meta or {}
    return str(meta.get("client_name") or (meta.get("props") or {}).get("client_name") or "client")
