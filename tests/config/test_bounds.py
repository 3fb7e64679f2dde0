"""How large a run may be."""

from __future__ import annotations

import msgspec
import pytest

from geomx.config import Run
from geomx.config.value_types import (
    LONGEST_PARTY_NAME,
    LONGEST_RUN_NAME,
    MOST_PARTIES,
    MOST_WORKERS,
    MOST_WORKERS_OF_A_PARTY,
)
from geomx.errors import ConfigError
from geomx.node.members.roster_keeper import MOST_AT_ONCE
from geomx.node.peers.handshake import MOST_CHARACTERS
from geomx.node.slices.joined import grouped
from geomx.rounds.losses import Losses
from geomx.rounds.roster import decide
from geomx.tree import Tree
from geomx.wire.messages import HEAD_LIMIT_BYTES, Attached, encode_head
from geomx.wire.roster_messages import Held, Hold, Roster, Standing


def test_a_run_as_large_as_can_be_fits_into_messages() -> None:
    """One message says the manifest; others name all workers of a party, with their cohorts. 4 KiB are for the rest."""
    names = [f"{index:0{LONGEST_PARTY_NAME}}" for index in range(MOST_PARTIES)]
    workers = MOST_WORKERS // MOST_PARTIES
    parties = [{"name": name, "workers": workers, "dataset_size": 10**12} for name in names]
    run = Run(run={"name": LONGEST_RUN_NAME * "n"}, sync={"weight": "dataset_size"}, party=parties)
    assert len(msgspec.msgpack.encode(run.manifest())) < HEAD_LIMIT_BYTES - 4096
    party = {"name": names[0], "workers": MOST_WORKERS_OF_A_PARTY}
    origins = Run(run={"name": "r"}, party=[party]).workers
    leave = [dict.fromkeys(origins, 2**31), origins]
    assert len(msgspec.msgpack.encode(leave)) < HEAD_LIMIT_BYTES - 4096
    assert len(msgspec.msgpack.encode(dict.fromkeys(origins, 2**63))) < HEAD_LIMIT_BYTES - 4096


def test_whatever_changes_in_a_run_as_large_as_can_be_is_told_in_messages() -> None:
    """Half of all workers are out, have come back or have left, wherever they are; as many nodes as can be at once."""
    names = [f"{index:0{LONGEST_PARTY_NAME}}" for index in range(MOST_PARTIES)]
    each = MOST_WORKERS // MOST_PARTIES
    tree = Tree.of_parties({name: tuple(f"{name}/{rank}" for rank in range(each)) for name in names})
    half, at = tree.workers[::2], Standing(2**61, 2**61, 2**61, 2**61, 2**61)
    standings = dict.fromkeys(("", *names), at)
    settles = tuple((name, 2**63) for name in half[:MOST_AT_ONCE])
    why = decide(
        tree, set(tree.workers), set(), dict.fromkeys(half, "x" * MOST_CHARACTERS), (), Losses("continue")
    ).why
    roster = Roster(2**63, tree.bitmap_of(half), tree.bitmap_of(half), standings, settles, why, 2**61)
    turns = {name: {"": 2**61} for name in half}
    attached = Attached(standings, (), 0, roster, grouped(turns, tree), grouped(turns, tree))
    for message in (roster, attached, Held(1, standings), Hold(1, half[:MOST_AT_ONCE])):
        encode_head(message)  # raises where it does not fit


def parties(*workers: int) -> str:
    tables = (f'[[party]]\nname = "p{index}"\nworkers = {count}\n' for index, count in enumerate(workers))
    return "".join(tables)


@pytest.mark.parametrize(
    ("text", "key", "piece"),
    [
        (
            parties(*[500] * 9),
            "party[0].workers",
            "4500 workers in all parties together; allowed: 4096 or fewer",
        ),
        (parties(*[1] * 135), "party", "found 135 of them; allowed: 1 to 128 `[[party]]` tables"),
    ],
)
def test_a_run_has_not_more_nodes_than_it_can_have(text: str, key: str, piece: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Run.parse(text, "run.toml")
    (fault,) = caught.value.faults
    assert fault.where.partition(" (")[0] == key
    assert piece in str(fault)
