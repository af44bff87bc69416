"""`TextLeakageFilter`: a client of FLARE that attacks its own result before it leaves, and may blank it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.flare.texts import check_texts, read_texts
from gradleak.monitoring import AuditSettings, ClientAudit, Thresholds, check_counts

LOGGER = logging.getLogger("gradleak.flare")


class TextLeakageFilter(DXOFilter):
    """A filter of a client's output: attack the update, score it against the client's own text, pass or blank it.

    A blanked update is that of a client that did not train: the weights that it was sent, or differences of zero. An
    audit that fails is logged, and the update passes.

    Args:
        target: the model: a name, a directory or a hub id.
        protocol: how the client trains, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`.
        texts: the client's texts: a .txt file with one in each line, whose name may have `{site}`; or
            `module:function`, which is called with the site's name and the round.
        refuse_above: scores above which the update is blanked, as `rougeL=20`; None to let every update pass.
        every: look at every so many rounds, the first one included.
        directory: where rounds.jsonl goes, which holds the client's text; None for no file.
        budget: time for one attack, in seconds or as `60s`.
        task: `classification` or `causal-lm`.
        num_labels: classes of a classifier that the model does not come with.
        lora: the settings of a LoRA adapter that the client trains.
        adapter: the directory of one, in place of `lora`.
        attack: the attack.
        local_dp: the local differential privacy that the client applies before this filter.
        seed: of everything random in the audit.
    """

    def __init__(  # noqa: PLR0913 - FLARE makes components from plain arguments
        self,
        target: str,
        protocol: str,
        texts: str,
        refuse_above: str | None = None,
        every: int = 1,
        directory: str | None = None,
        budget: float | str = 60.0,
        task: str = "classification",
        num_labels: int | None = None,
        lora: str | None = None,
        adapter: str | None = None,
        attack: str = "auto",
        local_dp: str | None = None,
        seed: int = 0,
    ) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        check_counts(every=every)
        # FLARE writes the attributes of these names into the job.
        self.target, self.protocol, self.texts = target, protocol, check_texts(texts)
        self.refuse_above, self.every, self.directory, self.budget = refuse_above, every, directory, budget
        self.task, self.num_labels, self.lora, self.adapter = task, num_labels, lora, adapter
        self.attack, self.local_dp, self.seed = attack, local_dp, seed
        options = {"budget": budget, "task": task, "num_labels": num_labels, "lora": lora, "adapter": adapter}
        settings = AuditSettings.read(target, protocol, **options, attack=attack, local_dp=local_dp, seed=seed)
        self._own_audit = ClientAudit(settings, Thresholds.parse(refuse_above), directory, "flare", LOGGER)
        self._received: Mapping[str, Any] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep the weights of a task before the client trains on them."""
        if event_type != EventType.BEFORE_TASK_EXECUTION:
            return
        try:
            received = from_shareable(fl_ctx.get_prop(FLContextKey.TASK_DATA))
        except Exception:  # a task without weights
            return
        if received.data_kind == DataKind.WEIGHTS:
            self._received = {name: _copied(value) for name, value in received.data.items()}

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Attack a result, and return it or a blank one."""
        number = int(shareable.get_header(AppConstants.CURRENT_ROUND, 0) or 0)
        if number % self.every:
            return None
        why = self._refusal(dxo, number, fl_ctx.get_identity_name() or "client")
        if why is None or self._received is None:
            return None
        self.log_warning(fl_ctx, f"the result of round {number} is blanked: {why}")
        return DXO(data_kind=dxo.data_kind, data=self._blank(dxo, self._received), meta=dxo.meta)

    def _refusal(self, dxo: DXO, number: int, site: str) -> str | None:
        try:
            if self._received is None:
                raise GradleakError("the weights before training are not known: the task had none")
            private = read_texts(self.texts, site, number)
            after = after_training(dxo.data, self._received, differences=dxo.data_kind == DataKind.WEIGHT_DIFF)
            before = {name: value for name, value in self._received.items() if name in after}
        except Exception as error:  # a failed audit must not end the training
            LOGGER.warning("audit of client %s in round %d failed: %s", site, number, error)
            return None
        return self._own_audit.refusal(number, site, before, after, private)

    def _blank(self, dxo: DXO, received: Mapping[str, Any]) -> dict[str, Any]:
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            return {name: value * 0 for name, value in dxo.data.items()}
        return {name: received.get(name, value) for name, value in dxo.data.items()}


def after_training(data: Mapping[str, Any], before: Mapping[str, Any], *, differences: bool) -> dict[str, Any]:
    """Return weights after training from weights, or from differences.

    Raises:
        GradleakError: if a difference has no weight before.
    """
    if not differences:
        return dict(data)
    missing = next((name for name in data if name not in before), None)
    if missing is not None:
        raise GradleakError(f"there is a difference of '{missing}', which was not sent")
    return {name: _copied(before[name]) + _copied(value) for name, value in data.items()}


def _copied(value: Any) -> Any:  # noqa: ANN401 - an array or a tensor
    return value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else np.array(value)
