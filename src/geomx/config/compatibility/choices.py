"""What a description has chosen, as far as it decides what a training loop may do, where, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from geomx.config.compatibility.choice_rules import LOSSLESS
from geomx.config.compatibility.lossy_channels import needing_loss
from geomx.config.run import Run
from geomx.rounds.losses import OnLoss
from geomx.sync import policies
from geomx.sync.contract import Policy
from geomx.sync.fsa import FSA

OptimizerPlace = Literal["auto", "server", "workers"]
Overlap = Literal["none", "forward"]
PushAt = Literal["backward", "step"]

SPARSE = 0.25  # codecs that send a smaller fraction of the entries leave most of them to later rounds


@dataclass(frozen=True, slots=True)
class CodecUp:
    """What contributions travel as. `key`: the description's; `ratio`: which fraction of the entries, None for all."""

    key: str
    spec: str
    ratio: float | None = None
    momentum: float = 0.0

    @classmethod
    def of(cls, key: str, spec: str) -> CodecUp:
        """Raises `ConfigError` where the codec cannot be made."""
        if spec in LOSSLESS:
            return cls(key, spec)
        from geomx.codecs.pack.noise import RngKey  # noqa: PLC0415 (it imports torch)
        from geomx.codecs.spec import make_codec  # noqa: PLC0415

        codec = make_codec(spec, RngKey())
        return cls(key, spec, codec.ratio, codec.momentum)

    @property
    def is_sparse(self) -> bool:
        return self.ratio is not None and self.ratio < SPARSE


@dataclass(frozen=True, slots=True)
class Choices:
    """The defaults are a description's.

    `policy_spec`: the policy as the description writes it. `codecs_up`: one of each tier. `lossless_down`: updates lose
    nothing on their way. `place`: of the optimizer; `rule`: the global servers' own, as `module:Class`. `on_loss`: what
    happens when a worker is lost. `strict`: what is known to cost accuracy is refused. `needs_loss`: the channels that
    adapt to the script's loss, as the description writes them.
    """

    policy: Policy = field(default_factory=FSA)
    policy_spec: str = "fsa"
    codecs_up: tuple[CodecUp, ...] = ()
    lossless_down: bool = True
    place: OptimizerPlace = "auto"
    rule: str = ""
    overlap: Overlap = "none"
    push_at: PushAt = "backward"
    on_loss: OnLoss = "stop"
    strict: bool = False
    needs_loss: str = ""

    @classmethod
    def of(cls, run: Run, **more: Any) -> Self:
        """Those of a description; `more`: fields that a subclass has. Raises `ConfigError` for what cannot be made."""
        return cls(
            policy=policies.make(run.sync.policy),
            policy_spec=run.sync.policy,
            codecs_up=(
                CodecUp.of("wan.codec_up", run.wan.codec_up),
                CodecUp.of("lan.codec_up", run.lan.codec_up),
            ),
            lossless_down={run.wan.codec_down, run.lan.codec_down} <= set(LOSSLESS),
            place=run.optimizer.place,
            rule=run.optimizer.rule,
            overlap=run.worker.overlap,
            push_at=run.worker.push_at,
            on_loss=run.run.on_loss,
            strict=run.run.strict,
            needs_loss=needing_loss(run),
            **more,
        )
