"""What `geomx plan` says of channels: how long a round takes over TCP and in datagrams, where links lose packets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from geomx.channels.contract import BlockClasses
from geomx.config import Run
from geomx.config.compatibility.lossy_channels import LAN, PLAIN, WAN, classes_of, named
from geomx.predict.facts import Site
from geomx.predict.steps import Prediction
from geomx.predict.transports import BbrTcp, CubicTcp, Datagrams, EmulatedTcp, Transport

Congestion = Literal["cubic", "bbr"]
ANY: Literal["any"] = "any"  # all payloads are in datagrams
CONGESTIONS: tuple[Congestion, ...] = ("cubic", "bbr")
OFFERED = "datagram"  # beside TCP, where links lose packets
USUAL: Congestion = "cubic"  # of Linux: "system" is taken for it

Transports = tuple[Transport, Transport]  # up and down


@dataclass(frozen=True, slots=True)
class Way:
    """A channel with a congestion control of TCP. `congestion`: `any` where TCP carries no payloads."""

    channel: str
    congestion: Congestion | Literal["any"]
    described: bool
    prediction: Prediction


def transports(run: Run, channel: str, congestion: Congestion | None = None) -> Transports:
    """What carries bytes up and down the WAN with this channel. `congestion`: of TCP on a real link; None: emulated."""
    tcp: Transport = EmulatedTcp() if congestion is None else BbrTcp()
    if congestion == "cubic":
        tcp = CubicTcp(run.run.shards)
    classes = _classes(run, channel)
    return (tcp, tcp) if classes is None else (Datagrams.of(classes), Datagrams())  # updates must arrive


def _classes(run: Run, channel: str) -> BlockClasses | None:
    """New ones of this channel; None: it has no datagrams."""
    return classes_of(run.wan.model_copy(update={"channel": channel}))


def loses(sites: Sequence[Site]) -> bool:
    """Whether any party's link loses packets."""
    return any(site.wan.loss for site in sites)


def ways(run: Run, sites: Sequence[Site], predicted: Callable[[Transports], Prediction]) -> list[Way]:
    """Every channel that is worth a look, the fastest first; none where links lose nothing."""
    if not loses(sites):
        return []
    own = USUAL if run.wan.congestion == "system" else run.wan.congestion
    found = []
    for channel in dict.fromkeys((PLAIN, OFFERED, run.wan.channel)):
        for congestion in CONGESTIONS if _classes(run, channel) is None else (ANY,):
            is_own = channel == run.wan.channel and congestion in (own, ANY)
            carriers = transports(run, channel, USUAL if congestion == ANY else congestion)
            found.append(Way(channel, congestion, is_own, predicted(carriers)))
    return sorted(found, key=lambda way: way.prediction.step_s)


def channel_table(found: Sequence[Way], mark: str) -> Table:
    """A line for each; `mark`: of the description's own."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("channel", min_width=10)
    table.add_column("TCP with")
    for column in ("s/step", "s/round", "up/step"):
        table.add_column(column, justify="right", no_wrap=True)
    for way in found:
        its = way.prediction
        table.add_row(
            f"{way.channel} {mark}" if way.described else way.channel,
            way.congestion,
            f"{its.step_s:.3g}",
            f"{its.round_s:.3g}",
            f"{its.bytes_up / 1e6:.3g} MB",
            style="bold" if way.described else None,
        )
    return table


def remarks(run: Run, sites: Sequence[Site]) -> Iterator[str]:
    """What these predictions leave open."""
    if loses(sites):
        yield (
            "Channels are predicted for a real link. The ranking above has emulated TCP, as `wan.link` imitates "
            "it: it never slows down, and waits less for what is sent again. That TCP waits in order, and "
            "what datagrams take of the processor, is not predicted: compare on your own link "
            "(docs/lossy-links.md)."
        )
        if run.wan.congestion == "reno":
            yield "reno is not predicted; it is no faster than cubic."
    classes = classes_of(run.wan)
    if classes is not None and not loses(sites):
        yield (
            f"{named(run, WAN)}: no link loses packets here, so `{PLAIN}` is as fast; give wan.link.loss "
            "(0.01 is 1 %) to compare channels."
        )
    if classes is not None and (until := _holds_until(classes)):
        yield f"{named(run, WAN)}: predicted as in the first round{until}."
    if classes is not None and classes.parity_share:
        yield f"{named(run, WAN)}: what parity rebuilds, and costs, is not predicted; it is predicted as without."
    if classes is None and run.wan.channel != PLAIN:
        yield f"{named(run, WAN)}: how it carries bytes is not known; it is predicted as `{PLAIN}`."
    if classes_of(run.lan) is not None:
        yield f"{named(run, LAN)} is predicted as `{PLAIN}`."


def _holds_until(classes: BlockClasses) -> str:
    """Where the script's loss changes what is reliable: from when on. `classes`: new ones."""
    first, lower, higher = (Datagrams.of(classes, loss) for loss in (1.0, 1e-9, 1e9))
    if lower != first:
        return "; later ones depend on the training loss, which nobody knows yet"
    return ", and in later ones where the training loss is no higher than there" if higher != first else ""


def as_list(found: Sequence[Way]) -> list[dict[str, Any]]:
    """What `--json` has of them."""
    return [
        {
            "channel": way.channel,
            "congestion": way.congestion,
            "described": way.described,
            "step_s": way.prediction.step_s,
            "round_s": way.prediction.round_s,
            "wan_bytes_up": way.prediction.bytes_up,
            "wan_bytes_down": way.prediction.bytes_down,
        }
        for way in found
    ]
