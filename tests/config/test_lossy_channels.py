"""Channels that may lose blocks: what a description may say of them, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trustme
from certificates import issue
from config_runs import TWO_PARTIES, fault_of_file, two_parties

from geomx import cli
from geomx.codecs.contract import Codec
from geomx.codecs.dense import Dense
from geomx.config import Run, notices
from geomx.config.compatibility.choice_rules import check_choices
from geomx.config.compatibility.lossy_channels import check_proof
from geomx.drive.secret import make_secret
from geomx.drive.wiring import wire
from geomx.errors import ConfigError
from geomx.layout import Slice

ADDRESSES = """
[global]
addresses = ["127.0.0.1:7000"]
[[party]]
name = "A"
workers = 1
address = "127.0.0.1:7001"
"""


class InOnePiece(Dense):
    """A codec that says nothing of blocks."""

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[object]:  # type: ignore[override]
        return list(Codec.cut(self, slice_, payload, most_bytes))


@pytest.mark.parametrize(
    ("tier", "spec", "parameter", "piece"),
    [
        ("wan", "datagram deadline=1e300", "deadline", "found 1e+300; allowed: a number of round trips from 0 to 100"),
        ("lan", "datagram deadline=-1", "deadline", "found -1.0; allowed: a number of round trips from 0 to 100"),
        ("lan", "datagram deadline=soon", "deadline", "found 'soon'; allowed: a number"),
        ("wan", "datagram k=0.5", "k", "an unknown parameter; allowed: deadline"),
        ("wan", "dgt k=1.5", "k", "found 1.5; allowed: a number from 0 to 1"),
        ("wan", "dgt k_least=-0.1", "k_least", "allowed: a number from 0 to 1"),
        ("wan", "dgt alpha=1", "alpha", "found 1.0; allowed: a number from 0, below 1"),
        ("lan", "dgt channels=0", "channels", "found 0; allowed: an integer from 1 to 254"),
        ("wan", "dgt rank=size", "rank", "found 'size'; allowed: contribution, random"),
        ("wan", "dgt adaptive=1", "adaptive", "allowed: true or false"),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_told_at_the_channel(
    tmp_path: Path, tier: str, spec: str, parameter: str, piece: str
) -> None:
    fault = fault_of_file(tmp_path, f'[{tier}]\nchannel = "{spec}"\n{TWO_PARTIES}')
    assert fault.where == f"{tier}.channel.{parameter} (line 2)"
    assert piece in str(fault)


@pytest.mark.parametrize("spec", ["datagram deadline=1", "dgt k=0.5 adaptive=false"])
def test_links_paces_and_congestion_control_go_with_them(spec: str) -> None:
    changes = ("wan.link={ rate_mbps = 20, loss = 0.01 }", "lan.link={ loss = 0.01 }", "wan.pace_mbps=10")
    more = ("wan.congestion=bbr", "lan.congestion=bbr", "party.A.pace_mbps=5")
    check_choices(two_parties(f"wan.channel={spec}", f"lan.channel={spec}", *changes, *more))


# -- a secret, or TLS ----------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(ADDRESSES)
    return path


@pytest.mark.parametrize("words", [["wan.channel=datagram"], ["lan.channel=dgt k=0.5", "--elsewhere"]])
def test_nodes_started_by_hand_need_a_secret_or_tls(
    by_hand: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(["check", str(by_hand), *words]) == cli.BAD_USAGE
    key, _, value = words[0].partition("=")
    told = capsys.readouterr().err
    assert f'{key} (override `{words[0]}`): found "{value}" without run.secret_file and without [tls]' in told
    assert "`geomx secret FILE`" in told
    assert "`geomx run` makes its own" in told


def test_servers_and_workers_are_refused_as_well(by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(by_hand), "wan.channel=datagram"]
    for command in (
        ["serve", *given, "--role", "global"],
        ["worker", *given, "--party", "A", "--rank", "0", "--", "no"],
    ):
        assert cli.main(command) == cli.BAD_USAGE
        assert "without run.secret_file and without [tls]" in capsys.readouterr().err
    run = Run.load(by_hand, ["wan.channel=datagram"])
    for node in ("global/0", "A", "A/0"):
        with pytest.raises(ConfigError, match=r"without run\.secret_file"):
            wire(run, node)


def test_a_secret_or_tls_lets_them_and_tcp_needs_neither_on_loopback(by_hand: Path) -> None:
    make_secret(by_hand.parent / "secret")
    certificate, key, authority = issue(by_hand.parent / "tls", trustme.CA(), "127.0.0.1")
    tls = f"tls={{ certificate = '{certificate}', key = '{key}', authority = '{authority}' }}"
    for words in (["wan.channel=datagram", "run.secret_file=secret"], ["wan.channel=datagram", tls], []):
        assert cli.main(["check", str(by_hand), *words]) == cli.OK
        check_proof(Run.load(by_hand, words))


# -- what is no fault ----------------------------------------------------------------------------------------


LOSING = "wan.link={ rate_mbps = 20, delay_ms = 50, loss = 0.01 }"
WHOLE = "too small for two datagrams"


@pytest.mark.parametrize(
    ("overrides", "piece"),
    [
        (("wan.channel=datagram", "wan.link={ rate_mbps = 20 }"), "none of its links loses packets"),
        (("lan.channel=dgt", "lan.link={}"), 'lan.channel = "dgt": none of its links'),
        (("wan.channel=dgt", LOSING, "wan.codec_up=test_lossy_channels:InOnePiece"), WHOLE),
        (("wan.channel=dgt", LOSING, "layout.slice_elements=300"), WHOLE),
        (("wan.channel=dgt", LOSING, "wan.codec_up=topk ratio=0.01", "layout.slice_elements=16384"), WHOLE),
        (
            ("lan.channel=dgt", "sync.policy=hfa k1=2 k2=2"),
            'sent until they have arrived, as with `datagram`; lan.channel = "dgt" applies to exchanges',
        ),
    ],
)
def test_where_a_lossy_channel_gives_nothing_a_note_says_so(overrides: tuple[str, ...], piece: str) -> None:
    (notice,) = notices(two_parties(*overrides))
    assert piece in notice


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("wan.link={}",),
        ("wan.channel=datagram",),  # the real network
        ("wan.channel=datagram", LOSING, "layout.slice_elements=300"),  # nothing is cut into blocks
        ("lan.channel=datagram", "sync.policy=hfa k1=2 k2=2"),  # all must arrive
        ("wan.channel=dgt", LOSING),
        ("wan.channel=dgt", "party.B.link={ loss = 0.01 }", "wan.link={}"),
        ("wan.channel=dgt", "wan.link={}", "event=[{ at_s = 1, party = 'B', loss = 0.1 }]"),
    ],
)
def test_nothing_is_told_where_it_may_help(overrides: tuple[str, ...]) -> None:
    assert notices(two_parties(*overrides)) == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["wan.channel=dgt"], 'wan.channel = "dgt" needs run.loss'),
        (["wan.channel=dgt adaptive=false", "lan.channel=dgt"], 'note: lan.channel = "dgt" needs run.loss'),
        (["wan.channel=dgt adaptive=false"], ""),
        (["wan.channel=datagram"], ""),
        (["wan.channel=datagram", "wan.link={}"], '\nnote: wan.channel = "datagram": none of its links loses packets'),
    ],
)  # fmt: skip
def test_check_prints_the_notes_and_which_channel_needs_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], says: str
) -> None:
    (tmp_path / "run.toml").write_text(TWO_PARTIES)
    assert cli.main(["check", str(tmp_path / "run.toml"), *overrides]) == cli.OK
    told = capsys.readouterr().out
    assert (
        f"over {overrides[0].partition('=')[2].split()[0]}" in told
    )  # without addresses nothing else is needed
    assert says in told
    assert ("(loss) in the script before backward()" in told) == ("needs run.loss" in says)
