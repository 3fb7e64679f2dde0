"""The rows of `geomx plan`: an algorithm with a pair of codecs, and what is predicted for it; as `--json` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from geomx.config import Run
from geomx.config.compatibility.presets import PRESETS
from geomx.launch.planning.plan_channels import Transports, Way, as_list
from geomx.launch.planning.plan_facts import Known
from geomx.predict.steps import Prediction

Pair = tuple[str, str]  # codecs up and down
# What geomx itself advises for slow links, beside the others.
PRESET_NAME = "slow-link"
PRESET = tuple(PRESETS[PRESET_NAME][key] for key in ("sync.policy", "wan.codec_up", "wan.codec_down"))


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm with one pair of codecs. `described`: they are the description's own. `costs`: known ones.

    `over`: predicts the same over another channel.
    """

    algorithm: str
    codecs: Pair
    prediction: Prediction
    trades: tuple[str, str]  # the algorithm's, the codecs'
    described: bool
    costs: str = ""
    over: Callable[[Transports], Prediction] = field(kw_only=True, repr=False, compare=False)

    @property
    def is_preset(self) -> bool:
        """Whether it is what geomx itself advises for slow links."""
        return (self.algorithm, *self.codecs) == PRESET

    @property
    def named(self) -> str:
        """In a sentence."""
        return PRESET_NAME if self.is_preset else f"{self.algorithm} with {named_pair(self.codecs)}"


def named_pair(codecs: Pair) -> str:
    """`int8; int4`, or the one that both are."""
    up, down = codecs
    return up if up == down else f"{up}; {down}"


def as_dict(
    run: Run, facts: Known, rows: Sequence[Row], channels: Sequence[Way], refused: dict[str, str]
) -> dict[str, Any]:
    """What `--json` writes; `docs/plan.md` lists it."""
    best = rows[0].prediction.step_s if rows else None
    return {
        "run": run.run.name,
        "parameters": facts.parameters,
        "parties": [
            {
                "name": site.name,
                "workers": site.workers,
                "compute_s": site.compute_s,
                "backward_s": site.backward_s,
                "local_step_s": site.local_step_s,
                "link": site.wan.model_dump(),
            }
            for site in facts.sites
        ],
        "predictions": [
            {
                "algorithm": row.algorithm,
                "codec_up": row.codecs[0],
                "codec_down": row.codecs[1],
                "described": row.described,
                "step_s": row.prediction.step_s,
                "of_best": row.prediction.step_s / best if best else None,
                "round_s": row.prediction.round_s,
                "party_step_s": dict(row.prediction.step_s_of),
                "party_steps": dict(row.prediction.steps_of),
                "wan_bytes_up": row.prediction.bytes_up,
                "wan_bytes_down": row.prediction.bytes_down,
                "computing": row.prediction.computing,
                "staleness": row.prediction.staleness,
                "algorithm_trades": row.trades[0],
                "codecs_trade": row.trades[1],
                "known_cost": row.costs,
            }
            for row in rows
        ],
        "channels": as_list(channels),
        "refused": refused,
    }
