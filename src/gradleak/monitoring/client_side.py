"""`ClientAudit`: a client that attacks its own update before it sends it, and knows the truth to score against."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gradleak.audit.threads import one_thread
from gradleak.monitoring.examination import examine_update, mean_scores
from gradleak.monitoring.records import failed_record, header_of
from gradleak.monitoring.settings import AuditSettings
from gradleak.monitoring.thresholds import Thresholds
from gradleak.reports.rounds import RoundsLog
from gradleak.targets import Target


class ClientAudit:
    """Attacks updates in the client's own process, and decides whether they may be sent.

    Args:
        settings: the audit's settings.
        thresholds: the scores that the client does not accept.
        directory: where rounds.jsonl goes; None for no file.
        framework: `flower` or `flare`.
        logger: where findings and failures are logged.
    """

    def __init__(
        self,
        settings: AuditSettings,
        thresholds: Thresholds,
        directory: str | Path | None,
        framework: str,
        logger: logging.Logger,
    ) -> None:
        self.settings, self.thresholds, self.framework, self.logger = settings, thresholds, framework, logger
        self.directory = None if directory is None else Path(directory)

    @cached_property
    def target(self) -> Target:
        """The model, loaded when it is first needed."""
        return self.settings.load()

    def refusal(
        self,
        number: int,
        client: str,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        texts: Sequence[str],
    ) -> str | None:
        """Return why an update should not be sent; None if it may be, or if the audit failed, which is logged.

        Args:
            number: the round.
            client: its name in the records.
            before: what the server sent.
            after: what the client is going to send.
            texts: what it trained on.
        """
        try:
            # The training that goes on around the audit must not see that random numbers were drawn.
            with torch.random.fork_rng(devices=[]), one_thread():
                record = examine_update(self.target, before, after, self.settings, texts=list(texts))
        except Exception as error:  # a failed audit must not end the training
            reason = " ".join(str(error).split())
            self.logger.warning("audit of client %s in round %d failed: %s", client, number, reason)
            self._write(failed_record(number, client, reason))
            return None
        scores = mean_scores(record)
        refused = self.thresholds.exceeded(scores)
        found = ", ".join(f"{name} {value:.1f}" for name, value in scores.items())
        self.logger.info("audit of client %s in round %d: %s", client, number, found)
        for line in record["warnings"]:
            self.logger.warning("audit of client %s in round %d: %s", client, number, line)
        self._write({"round": number, "client": client, **record, "refused": refused is not None})
        return refused

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.directory is None:
            return
        try:
            RoundsLog.open(self.directory, self._header).append(record)
        except Exception as error:
            self.logger.warning("the audit's record cannot be written: %s", error)

    @cached_property
    def _header(self) -> dict[str, Any]:
        return header_of(self.settings, self.target, self.framework, "client")
