"""Channels that may lose blocks: what a description may say of them, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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


@pytest.mark.parametrize("tier", ["wan", "lan"])
@pytest.mark.parametrize(
    ("spec", "parameter", "piece"),
    [
        ("datagram deadline=-1", "deadline", "found -1.0; allowed: a number of round trips from 0 to 100"),
        (
            "datagram deadline=1e300",
            "deadline",
            "found 1e+300; allowed: a number of round trips from 0 to 100",
        ),
        ("datagram deadline=soon", "deadline", "found 'soon'; allowed: a number"),
        ("datagram k=0.5", "k", "an unknown parameter; allowed: deadline"),
        ("dgt k=1.5", "k", "found 1.5; allowed: a number from 0 to 1"),
        ("dgt k_least=-0.1", "k_least", "allowed: a number from 0 to 1"),
        ("dgt channels=0", "channels", "found 0; allowed: an integer from 1 to 254"),
        ("dgt channels=2.5", "channels", "allowed: an integer"),
        ("dgt alpha=1", "alpha", "found 1.0; allowed: a number from 0, below 1"),
        ("dgt rank=size", "rank", "found 'size'; allowed: contribution, random"),
        ("dgt adaptive=1", "adaptive", "allowed: true or false"),
        ("dgt kk=0.5", "kk", "an unknown parameter"),
    ],
)
def test_a_parameter_out_of_range_is_told_at_the_channel(
    tmp_path: Path, tier: str, spec: str, parameter: str, piece: str
) -> None:
    fault = fault_of_file(tmp_path, f'[{tier}]\nchannel = "{spec}"\n{TWO_PARTIES}')
    assert fault.where == f"{tier}.channel.{parameter} (line 2)"
    assert piece in str(fault)


def test_so_it_is_where_nodes_are_started_by_hand(by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(by_hand), "lan.channel=dgt k=2"]) == cli.BAD_USAGE
    told = capsys.readouterr().err
    assert ": 1 fault\n  - lan.channel.k" in told
    assert "found 2.0; allowed: a number from 0 to 1" in told


@pytest.mark.parametrize("spec", ["datagram", "datagram deadline=1", "dgt", "dgt k=0.5 adaptive=false"])
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


@pytest.mark.parametrize("options", [[], ["--elsewhere"]])
@pytest.mark.parametrize("spec", ["wan.channel=datagram", "lan.channel=dgt k=0.5"])
def test_nodes_started_by_hand_need_a_secret_or_tls(
    by_hand: Path, capsys: pytest.CaptureFixture[str], spec: str, options: list[str]
) -> None:
    assert cli.main(["check", str(by_hand), spec, *options]) == cli.BAD_USAGE
    key, _, value = spec.partition("=")
    told = capsys.readouterr().err
    assert f'{key} (override `{spec}`): found "{value}" without run.secret_file and without [tls]' in told
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


def test_a_secret_or_tls_lets_them(by_hand: Path, authority_files: tuple[Path, Path, Path]) -> None:
    make_secret(by_hand.parent / "secret")
    certificate, key, authority = authority_files
    tls = f"tls={{ certificate = '{certificate}', key = '{key}', authority = '{authority}' }}"
    for proof in ("run.secret_file=secret", tls):
        assert cli.main(["check", str(by_hand), "wan.channel=datagram", proof]) == cli.OK
        check_proof(Run.load(by_hand, ["wan.channel=datagram", proof]))


@pytest.fixture
def authority_files(tmp_path: Path) -> tuple[Path, Path, Path]:
    import trustme  # noqa: PLC0415 (slow)

    return issue(tmp_path / "tls", trustme.CA(), "127.0.0.1")


def test_geomx_run_makes_a_secret_so_nothing_is_said_without_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(TWO_PARTIES)
    assert cli.main(["check", str(tmp_path / "run.toml"), "wan.channel=dgt"]) == cli.OK
    assert "over dgt" in capsys.readouterr().out


def test_tcp_needs_neither_on_loopback(by_hand: Path) -> None:
    assert cli.main(["check", str(by_hand)]) == cli.OK
    check_proof(Run.load(by_hand))


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
        ("wan.channel=dgt", LOSING, "wan.codec_up=bisparse ratio=0.01"),
        ("wan.channel=dgt", "party.B.link={ loss = 0.01 }", "wan.link={}"),
        ("wan.channel=dgt", "wan.link={}", "event=[{ at_s = 1, party = 'B', loss = 0.1 }]"),
        ("lan.channel=datagram", "sync.policy=hfa k1=2 k2=1"),
        ("wan.channel=datagram", "sync.policy=hfa k1=2 k2=2"),
    ],
)
def test_nothing_is_told_where_it_may_help(overrides: tuple[str, ...]) -> None:
    assert notices(two_parties(*overrides)) == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["wan.channel=dgt"], 'wan.channel = "dgt" needs run.loss'),
        (["wan.channel=dgt k=0"], 'wan.channel = "dgt k=0" needs run.loss'),
        (["wan.channel=dgt adaptive=false", "lan.channel=dgt"], 'note: lan.channel = "dgt" needs run.loss'),
        (["wan.channel=dgt adaptive=false"], ""),
        (["wan.channel=datagram"], ""),
    ],
)
def test_check_says_which_channel_needs_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], says: str
) -> None:
    (tmp_path / "run.toml").write_text(TWO_PARTIES)
    assert cli.main(["check", str(tmp_path / "run.toml"), *overrides]) == cli.OK
    told = capsys.readouterr().out
    assert says in told
    assert ("(loss) in the script before backward()" in told) == bool(says)


def test_check_prints_the_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(TWO_PARTIES)
    assert cli.main(["check", str(tmp_path / "run.toml"), "wan.channel=datagram", "wan.link={}"]) == cli.OK
    assert '\nnote: wan.channel = "datagram": none of its links loses packets' in capsys.readouterr().out
