"""The kinds of values that TOML has no type for: names, addresses, choices that a user may add to, paths, bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from geomx.channels import channels
from geomx.codecs import codecs
from geomx.config.reading.forms import AddressesForm, AddressForm, ChoiceForm, TextForm, ZeroOr, unfit
from geomx.config.reading.problems import odd_character
from geomx.optim import compensations
from geomx.overlay import overlays
from geomx.sync import policies

# A worker's name is its party's with a rank. One message names all workers of a party, or all parties of a run, and its
# head has HEAD_LIMIT_BYTES: `test_a_run_as_large_as_can_be_fits_into_messages` counts.
MOST_SHARDS = 128
MOST_PARTIES = 128
MOST_SITES = 2 * MOST_PARTIES
MOST_WORKERS_OF_A_PARTY = 512
MOST_WORKERS = 4096  # of all parties together
LONGEST_PARTY_NAME = 32
LONGEST_RUN_NAME = 64  # it is part of a folder's name

MOST_EVENTS = 10_000
MOST_ELEMENTS = 1 << 29  # of a slice: as float64 they are 4 GiB, the longest payload
DAY_S = 86_400
WEEK_S = 7 * DAY_S
YEAR_S = 365 * DAY_S


def _absolute(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str) or not value:
        return value
    if not value.isprintable():
        raise unfit(odd_character(value))
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:  # nobody of that name
        raise unfit(str(error)) from error
    folder: Path = (info.context or {}).get("folder", Path())
    return (folder / path).absolute()


RunName = Annotated[
    str,
    TextForm(
        f"1 to {LONGEST_RUN_NAME} letters, digits, `_`, `.` and `-`, not beginning with `.` or `-`",
        r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        LONGEST_RUN_NAME,
    ),
]
PartyName = Annotated[
    str,
    TextForm(
        f"1 to {LONGEST_PARTY_NAME} letters, digits, `_` and `-`, not beginning with `-`, and not `global`",
        r"(?!(?i:global)$)[A-Za-z0-9_][A-Za-z0-9_-]*",
        LONGEST_PARTY_NAME,
    ),
]
PartyNameOrNone = Annotated[
    str,
    TextForm("the name of a [[region]], or nothing", r"([A-Za-z0-9_][A-Za-z0-9_-]*)?", LONGEST_PARTY_NAME),
]
Addresses = Annotated[str | tuple[str, ...], AddressesForm(AddressForm(dialled=True))]
AddressOrNone = Annotated[str, AddressForm(dialled=True, optional=True)]
ListenAddresses = Annotated[str | tuple[str, ...], AddressesForm(AddressForm(dialled=False))]
ListenAddressOrNone = Annotated[str, AddressForm(dialled=False, optional=True)]
PolicyName = Annotated[str, ChoiceForm(policies.names, "staleness=4")]
CompensationName = Annotated[str, ChoiceForm(compensations.names, "strength=0.04", optional=True)]
ChannelName = Annotated[str, ChoiceForm(channels.names, "key=value")]
OverlayName = Annotated[str, ChoiceForm(overlays.names, "greed=0.9", optional=True)]
RuleName = Annotated[
    str,
    TextForm(
        'your own as "module:Class", or nothing', r"([A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)?", 200
    ),
]
ClassName = Annotated[str, TextForm('"module:Class"', r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*", 200)]
CodecName = Annotated[str, ChoiceForm(codecs.names, "ratio=0.01")]
PassingCodecName = Annotated[str, ChoiceForm(("wan", *codecs.names), "ratio=0.01", bare=("wan",))]
Argument = Annotated[str, TextForm("text", r"[^\0]*")]  # no process can be given a NUL
File = Annotated[Path, BeforeValidator(_absolute)]  # relative to the folder of the run's description

Heartbeat = Annotated[float, Field(ge=0.01, le=3600)]  # seconds
Silence = Annotated[float, Field(ge=0.01, le=DAY_S)]
Limit = Annotated[float, Field(ge=1, le=WEEK_S)]
Moment = Annotated[float, Field(ge=0, le=YEAR_S)]
Duration = Annotated[float, Field(ge=0.001, le=YEAR_S)]
Rate = Annotated[float, ZeroOr(0.001, 1e6)]  # Mbit/s
Delay = Annotated[float, Field(ge=0, le=60_000)]  # milliseconds
Wander = Annotated[float, ZeroOr(0.001, 60_000)]  # milliseconds
Share = Annotated[float, Field(ge=0, le=0.9)]  # of packets
Elements = Annotated[int, Field(ge=0, le=MOST_ELEMENTS)]
