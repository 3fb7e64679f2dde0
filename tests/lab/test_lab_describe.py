import re
import tomllib
from pathlib import Path

import pytest

import lab
from lab.conditions import KEYS
from lab.describe import describe, load
from lab.errors import DescriptionError

NETWORKS = sorted((Path(lab.__file__).parent / "networks").glob("*.toml"))
PLAIN = {
    "site": [{"name": "A"}, {"name": "B"}, {"name": "C"}],
    "default": {"rate_mbps": 100, "delay_ms": 15},
}


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_every_network_that_is_shipped_can_be_read(path):
    network = load(path)
    names = {site.name for site in network.sites}
    assert {"hub", "A", "B"} <= names
    assert len(network.links) == len(names) * (len(names) - 1)


@pytest.mark.parametrize(
    ("stem", "rate_mbps", "round_trip_ms", "loss"),
    [
        ("100mbit-30ms", 100, 30, 0.0),
        ("20mbit-100ms-0.1loss", 20, 100, 0.001),
        ("1gbit-10ms", 1000, 10, 0.0),
        ("10mbit-150ms-1loss", 10, 150, 0.01),
    ],
)
def test_a_name_says_the_rate_and_the_round_trip(stem, rate_mbps, round_trip_ms, loss):
    (path,) = [path for path in NETWORKS if path.stem == stem]
    for conditions in load(path).links.values():
        assert conditions.rate_mbps == rate_mbps
        assert 2 * conditions.delay_ms == round_trip_ms
        assert conditions.mean_loss == loss


def test_unequal_sites_have_the_slower_ones_rate_between_them():
    links = load(next(path for path in NETWORKS if path.stem.startswith("unequal"))).links
    rates = {"hub": 100, "A": 100, "B": 20, "C": 5, "D": 100}
    for (a, b), conditions in links.items():
        assert conditions.rate_mbps == min(rates[a], rates[b])


def test_the_later_link_wins_key_by_key():
    network = describe(
        {
            **PLAIN,
            "link": [
                {"from": "*", "to": "B", "rate_mbps": 20, "queue_ms": 7},
                {"from": "A", "to": "B", "both": True, "rate_mbps": 5},
            ],
        }
    )
    shown = {pair: (each.rate_mbps, each.queue_ms) for pair, each in network.links.items()}
    assert shown[("A", "B")] == (5, 7)
    assert shown[("B", "A")] == (5, 100)
    assert shown[("C", "B")] == (20, 7)
    assert shown[("A", "C")] == (100, 100)


def test_a_rate_may_come_from_the_links_alone():
    links = [{"from": "*", "to": "*", "rate_mbps": 10, "delay_ms": 1}]
    assert describe({"site": PLAIN["site"], "link": links}).links[("A", "B")].rate_mbps == 10


def test_congestion_control_of_the_file_can_be_overridden(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(
        'site = [{name = "A"}, {name = "B"}]\ncongestion = "cubic"\ndefault = {rate_mbps = 1, delay_ms = 1}\n'
    )
    assert load(path).congestion == "cubic"
    assert load(path, "bbr").congestion == "bbr"
    assert describe(dict(load(path, "bbr").table)).congestion == "bbr"  # what the router is told


def test_the_document_shows_a_network_that_can_be_read_and_lists_every_condition():
    page = (Path(lab.__file__).parents[1] / "docs" / "lab.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    network = describe(tomllib.loads(block))
    assert network.links[("A", "hub")].loss == 0.001
    assert [(event.at_s, event.for_s) for event in network.events] == [(30, 20), (60, 5)]
    listed = re.findall(
        r"^\| `(\w+)` \|", page.partition("| key | unit |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert tuple(listed) == KEYS


def faults(**changes):
    with pytest.raises(DescriptionError) as refused:
        describe({**PLAIN, **changes}, "net.toml")
    assert str(refused.value).startswith(f"net.toml: {len(refused.value.faults)} fault")
    return [str(fault) for fault in refused.value.faults]


def test_every_fault_is_named_at_once_with_its_key_and_what_is_allowed():
    named = faults(
        congestion="vegas",
        links=[],
        default={"rate_mbps": 0, "delay_ms": "15", "jiter_ms": 1},
        link=[{"from": "A", "to": "D", "both": 1, "loss": 1}, {"from": "A", "to": "A", "rate_mbps": 1}],
        event=[{"from": "A", "to": "B"}],
    )
    assert [fault.split(":")[0] for fault in named] == [
        "links",
        "default.rate_mbps",
        "default.delay_ms",
        "default.jiter_ms",
        "link[0].loss",
        "link[0].to",
        "link[0].both",
        "link[1].to",
        "event[0].at_s",
        "event[0]",
        "congestion",
    ]
    assert all("allowed: " in fault for fault in named)
    assert "link[0].to: found 'D'; allowed: A, B, C, \"*\"" in named


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"site": [{"name": "A"}]}, "site: found 1 sites; allowed: 2 to 32"),
        ({"site": 3}, "site: found something else"),
        ({"site": [{"name": "A"}, {"name": "A"}]}, "site[1].name: found 'A'; allowed: a name that no other"),
        ({"site": [{"name": "A b"}, {"name": "B"}]}, "site[0].name: found 'A b'"),
        ({"site": [{"name": "A", "hosts": 0}, {"name": "B", "lan_mbps": -1}]}, "site[0].hosts: found 0"),
        ({"site": ["A", "B"]}, "site[0]: found 'A'"),
        ({"default": {"delay_ms": 1}}, "default.rate_mbps: found nothing for A to B"),
        ({"default": 5}, "default: found 5"),
        ({"default": {"rate_mbps": True, "delay_ms": 1}}, "default.rate_mbps: found True"),
        ({"default": {"rate_mbps": float("nan"), "delay_ms": 1}}, "default.rate_mbps: found nan"),
        (
            {"default": {"rate_mbps": 1, "delay_ms": 1, "jitter_ms": 2}},
            "link A to B: jitter_ms: found 2; allowed: at most delay_ms",
        ),
        ({"link": {"from": "A"}}, "link: found {'from': 'A'}; allowed: tables, each headed [[link]]"),
        ({"link": [{"from": "A", "to": "B"}]}, "link[0]: found nothing that changes"),
        ({"event": [{"at_s": -1, "from": "A", "to": "B", "cut": True}]}, "event[0].at_s: found -1"),
        (
            {"event": [{"at_s": 1, "for_s": 0, "from": "A", "to": "B", "cut": True}]},
            "event[0].for_s: found 0",
        ),
        (
            {"event": [{"at_s": 1, "from": "A", "to": "B", "cut": 1}]},
            "event[0].cut: found 1; allowed: true, false",
        ),
        (
            {"event": [{"at_s": 1, "from": "A", "to": "B", "delay_ms": 0, "jitter_ms": 1}]},
            "event[0] on A to B: jitter_ms",
        ),
        ({"seed": "x"}, "seed: found 'x'"),
    ],
)
def test_a_fault_is_named(changes, named):
    assert any(fault.startswith(named) for fault in faults(**changes)), faults(**changes)


@pytest.mark.parametrize(
    ("text", "named"), [("site = [", "allowed: TOML"), (None, "allowed: a readable file")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, text, named):
    path = tmp_path / "net.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DescriptionError, match=named):
        load(path)
