"""`AuditSettings`: what an audit of a federation needs to know, checked before the first round."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gradleak.attacks import find_attack
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import FedAvg, Protocol, as_protocol
from gradleak.monitoring.local_dp import LocalDp
from gradleak.settings import parse_duration
from gradleak.targets import MODELS, Lora, Target, Task, load_target
from gradleak.targets.loading import check_request, model_source, resolve_device


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """The model of a federation, how its clients train, and how they are attacked.

    Attributes:
        target: the model's name, directory or hub id; its weights are replaced by those of each round.
        protocol: how clients train, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`; `precision` and `send` may be there.
        task: `classification` or `causal-lm`.
        num_labels: classes of a classifier that the model does not come with.
        lora: the settings of a LoRA adapter that clients train, as `r=8,alpha=16,targets=q_proj+v_proj`.
        adapter: the directory of one, in place of `lora`.
        attack: the attack, as `gradleak list attacks` names it.
        budget: seconds for one update.
        local_dp: the local differential privacy that clients state, as `LocalDp.read` takes it; None for none.
        seed: of everything random in the audit.
        threads: CPU threads of the attack.
        device: where it runs.
    """

    target: str
    protocol: str
    task: Task = "classification"
    num_labels: int | None = None
    lora: str | None = None
    adapter: str | None = None
    attack: str = "auto"
    budget: float = 60.0
    local_dp: str | None = None
    seed: int = 0
    threads: int = 1
    device: str = "cpu"

    @classmethod
    def read(cls, target: object, protocol: Protocol | FedAvg | str, **options: Any) -> AuditSettings:  # noqa: ANN401
        """Return checked settings, of which any may be given as text.

        Raises:
            GradleakError: for an unknown option, model, attack or setting of the protocol, with the nearest name.
        """
        known = {field.name for field in fields(cls)} - {"target", "protocol"}
        for name in options:
            if name not in known:
                raise unknown_name("option of the audit", name, known)
        stated = as_protocol(protocol)
        if stated.training is None:
            raise GradleakError("the protocol lacks steps=…,lr=…: clients send weights after local training")
        options["budget"] = seconds_of(options.get("budget", cls.budget), "budget")
        for name in ("lora", "adapter"):
            if options.get(name) is not None:
                options[name] = str(options[name])
        if options.get("local_dp") is not None:
            options["local_dp"] = str(LocalDp.read(options["local_dp"]))
        settings = cls(target=str(target), protocol=str(stated), **options)
        settings._check()
        return settings

    def _check(self) -> None:
        """Raise a GradleakError for what would otherwise be an error of the attack's process."""
        check_counts(threads=self.threads)
        if not self.budget > 0:
            raise GradleakError("budget takes a time above 0")
        find_attack(str(self.attack))
        check_request(self.target, self.num_labels, self.seed, self.task)
        resolve_device(self.device)
        if self.target not in MODELS:
            model_source(self.target)
        self._check_adapter()

    def _check_adapter(self) -> None:
        if self.lora is not None and self.adapter is not None:
            raise GradleakError("lora and adapter exclude each other: give one of them")
        if self.lora is not None:
            Lora.parse(self.lora, "lora")
        if self.adapter is not None and not Path(self.adapter).expanduser().is_dir():
            raise GradleakError(f"there is no adapter in {self.adapter}: it is no directory")

    @property
    def stated(self) -> Protocol:
        """The protocol."""
        return Protocol.parse(self.protocol)

    def load(self) -> Target:
        """Load the model; its weights are those that it comes with."""
        return load_target(
            self.target,
            self.num_labels,
            self.seed,
            task=self.task,
            device=self.device,
            lora=None if self.lora is None else Lora.parse(self.lora, "lora"),
            adapter=self.adapter,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON."""
        return asdict(self)


def check_counts(**counts: object) -> None:
    """Raise a GradleakError unless these are whole numbers from 1 up."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise GradleakError(f"{name} takes a whole number from 1 up, not {value!r}")


def seconds_of(time: float | str, option: str) -> float:
    """Return seconds that were given as a number or as `90s`, `5m` or `1h`; `0` is no time at all."""
    if isinstance(time, str):
        return 0.0 if time in ("0", "0s") else parse_duration(time, option)
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < float("inf"):
        raise GradleakError(f"{option} takes seconds, or a time as 90s, 5m or 1h, not {time!r}")
    return float(time)
