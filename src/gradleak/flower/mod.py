"""`leakage_mod`: a client that attacks its own reply before it leaves, scores it, and may refuse to send it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from gradleak.errors import GradleakError
from gradleak.flower.surroundings import arrays_of, local_dp_in
from gradleak.monitoring import AuditSettings, ClientAudit, LocalDp, Thresholds, check_counts

LOGGER = logging.getLogger("flwr")
REFUSED = 6
"""Code of the error in place of a reply: a mod whose precondition failed, as Flower's own mods answer."""

Texts = Sequence[str] | Callable[[Message, Context], Sequence[str]]


def leakage_mod(
    texts: Texts,
    *,
    target: str | Path,
    protocol: str,
    refuse_above: str | None = None,
    every: int = 1,
    directory: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - settings of several types
) -> LeakageMod:
    """Return a mod for `ClientApp(mods=[…])`; put it first, so that it sees what leaves after all others.

    Args:
        texts: what the client trains on: a list, or a function of message and context.
        target: the model: a name, a directory or a hub id.
        protocol: how the client trains, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`.
        refuse_above: scores above which an error is sent in place of the reply, as `rougeL=20` or `rouge1=50,exact=0`.
        every: look at every so many rounds, the first one included.
        directory: where rounds.jsonl goes, which holds the client's text; None for no file.
        **options: further settings of the audit (see `AuditSettings`).

    Raises:
        GradleakError: for a setting that makes no sense.
    """
    if isinstance(texts, str) or not (callable(texts) or (isinstance(texts, Sequence) and texts)):
        raise GradleakError("texts takes the client's texts, as a list or a function of message and context")
    check_counts(every=every)
    settings = AuditSettings.read(target, protocol, **options)
    audit = ClientAudit(settings, Thresholds.parse(refuse_above), directory, "flower", LOGGER)
    return LeakageMod(audit, texts, every)


class LeakageMod:
    """A Flower mod; made by `leakage_mod`.

    Args:
        audit: attacks and scores.
        texts: what the client trains on, see `leakage_mod`.
        every: look at every so many rounds.
    """

    def __init__(self, audit: ClientAudit, texts: Texts, every: int) -> None:
        self.audit, self.texts, self.every = audit, texts, every

    def __call__(self, msg: Message, ctxt: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Let the client train, attack its reply, and return that or an error in its place."""
        number = _round(msg)
        if not msg.metadata.message_type.startswith("train") or (number - 1) % self.every:
            return call_next(msg, ctxt)
        sent: Any = None
        try:
            sent = arrays_of(msg, "the message")
        except GradleakError as error:
            LOGGER.warning("audit of round %d failed: %s", number, error)
        reply = call_next(msg, ctxt)
        if sent is None or reply.has_error():
            return reply
        why = self._refusal(number, msg, ctxt, (sent, reply, call_next))
        if why is None:
            return reply
        LOGGER.warning("audit: the reply of round %d is not sent: %s", number, why)
        return Message(Error(REFUSED, f"refused by the client, its update gives text away: {why}"), reply_to=msg)

    def _refusal(self, number: int, msg: Message, ctxt: Context, round_trip: tuple[Any, Message, Any]) -> str | None:
        sent, reply, call_next = round_trip
        try:
            private = self.texts(msg, ctxt) if callable(self.texts) else self.texts
            self._notice(local_dp_in(call_next))
            arrays = arrays_of(reply, "the reply")
        except Exception as error:  # a failed audit must not end the training
            LOGGER.warning("audit of round %d failed: %s", number, error)
            return None
        return self.audit.refusal(number, str(ctxt.node_id), sent, arrays, private)

    def _notice(self, mod: object) -> None:
        """Take the settings of a `LocalDpMod` that comes after this mod."""
        if mod is not None and self.audit.settings.local_dp is None:
            self.audit.settings = replace(self.audit.settings, local_dp=str(LocalDp.read(mod)))


def _round(message: Message) -> int:
    """Return the number of the round as the server's configuration has it; 1 if it is not there."""
    for record in message.content.config_records.values():
        if isinstance(record.get("server-round"), int):
            return int(record["server-round"])
    return 1
