import re
import tomllib
from pathlib import Path

import pytest

import lab
from geomx.errors import ConfigError
from lab.describe import KEYS, describe, load

NETWORKS = sorted((Path(lab.__file__).parent / "networks").glob("*.toml"))
PLAIN = {"site": [{"name": "A"}, {"name": "B"}, {"name": "C"}], "default": {"rate_mbps": 100, "delay_ms": 15}}


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_every_network_that_is_shipped_can_be_read(path):
    network = load(path)
    names = {site.name for site in network.sites}
    assert {"hub", "A", "B"} <= names
    assert len(network.links) == len(names) * (len(names) - 1)


NAME = re.compile(r"(\d+)(mbit|gbit)-(\d+)ms(?:-([\d.]+)(burst)?loss|-(\d+)jitter)?")


NAMED = [path for path in NETWORKS if NAME.match(path.stem)]


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.stem)
def test_a_name_says_the_rate_the_round_trip_the_losses_and_both_ways_together_the_jitter(path):
    rate, unit, round_trip_ms, loss, burst, jitter_ms = NAME.fullmatch(path.stem).groups()
    for conditions in load(path).links.values():
        assert conditions.rate_mbps == int(rate) * {"mbit": 1, "gbit": 1000}[unit]
        assert (2 * conditions.delay_ms, 2 * conditions.jitter_ms) == (
            int(round_trip_ms),
            int(jitter_ms or 0),
        )
        assert conditions.mean_loss == pytest.approx(float(loss or 0) / 100, rel=1e-4)
        if burst:  # of eight segments
            assert (1 / conditions.burst_leave, conditions.burst_loss, conditions.loss) == (8, 1, 0)


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
    with pytest.raises(ConfigError, match=r"congestion \(instead of the file's\): found \"vegas\""):
        load(path, "vegas")


def test_the_document_shows_a_network_that_can_be_read_and_lists_every_condition():
    page = (Path(lab.__file__).parents[1] / "docs" / "lab.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    network = describe(tomllib.loads(block))
    assert network.links[("A", "hub")].loss == 0.001
    assert [(event.at_s, event.for_s, dict(event.changes)) for event in network.events] == [
        (30, 20, {"rate_mbps": 5})
    ]
    assert network.links[("A", "hub")].mtu == 1400
    assert [(rebind.at_s, rebind.site, network.site("A").nat) for rebind in network.rebinds] == [
        (80, "A", True)
    ]
    listed = re.findall(
        r"^\| `(\w+)` \|", page.partition("| key | unit |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert tuple(listed) == KEYS


def faults(**changes):
    with pytest.raises(ConfigError) as refused:
        describe({**PLAIN, **changes}, "net.toml")
    assert str(refused.value).startswith(f"net.toml: {len(refused.value.faults)} fault")
    return [str(fault) for fault in refused.value.faults]


EVERYTHING_WRONG = """
congestion = "vegas"  # <- congestion
links = []  # <- links
site = [{ name = "A" }, { name = "B" }, { name = "B", host = 3 }]  # <- site[2].name  # <- site[2].host
[default]
rate_mbps = 0  # <- default.rate_mbps
delay_ms = "15"  # <- default.delay_ms
jiter_ms = 1  # <- default.jiter_ms
[[link]]
from = "A"
to = "D"  # <- link[0].to
both = 1  # <- link[0].both
loss = 1  # <- link[0].loss
[[link]]
from = "A"
to = "A"  # <- link[1].to
rate_mbps = 1
[[event]]  # <- event[0].at_s  # <- event[0]
from = "A"
to = "B"
"""


def test_every_fault_is_named_at_once_with_its_key_and_line(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(EVERYTHING_WRONG)
    with pytest.raises(ConfigError) as refused:
        load(path)
    expected = [
        f"{key} (line {number})"
        for number, line in enumerate(EVERYTHING_WRONG.split("\n"), 1)
        for key in re.findall(r"# <- (\S+)", line)
    ]
    assert sorted(fault.where for fault in refused.value.faults) == sorted(expected)


def default(**more):
    return {"default": {"rate_mbps": 1, "delay_ms": 1, **more}}


def sites(*names, **more):
    return {"site": [{"name": name} if isinstance(name, str) else name for name in names], **more}


def link(**more):
    return {"link": [{"from": "A", "to": "B", **more}]}


def event(**more):
    return {"event": [{"at_s": 1, "from": "A", "to": "B", **more}]}


def hop(source, target, over):
    return {"from": source, "to": target, "over": over}


def route(*ends):
    return {"route": [hop(*ends)]}


SLOWER = [{"from": "A", "to": "C", "jitter_ms": 15}, {"from": "*", "to": "C", "delay_ms": 9}]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (sites("A"), 'site: found [{"name": "A"}]; allowed: 2 to 32 `[[site]]` tables'),
        (sites("A", "A"), 'site[1].name: found "A"; allowed: a name that no other site has'),
        (sites("A b", "B"), 'site[0].name: found "A b"; allowed: a letter, then'),
        (
            sites({"name": "A", "hosts": 0}, {"name": "B", "lan_mbps": -1}),
            "site[0].hosts: found 0; allowed: integer ≥ 1, ≤ 200",
        ),
        ({"site": ["A", "B"]}, 'site[0]: found "A"'),
        ({"default": {"delay_ms": 1}}, "default.rate_mbps: found nothing for A to B; allowed: number ≥ 0.01"),
        ({"default": 5}, "default: found 5; allowed: table of `rate_mbps`, "),
        (default(rate_mbps=float("nan")), "default.rate_mbps: found NaN"),
        ({"default": {"rat_mbps": 1}}, "default.rat_mbps: found an unknown key"),
        (
            default(jitter_ms=2),
            "default.jitter_ms: found 2 from A to B; allowed: number ≤ 1, the `delay_ms` there",
        ),
        ({"link": SLOWER}, "link[1].jitter_ms: found 15 from A to C; allowed: number ≤ 9"),
        ({"link": {"from": "A"}}, 'link: found {"from": "A"}; allowed: one `[[link]]` table or more'),
        (link(), "link[0]: found nothing that changes; allowed: `rate_mbps`, "),
        (link(**{"from": "a", "cut": True}), 'link[0].from: found "a"; allowed: `A`, `B`, `C`'),
        (event(for_s=0, cut=True), "event[0].for_s: found 0; allowed: number > 0"),
        (event(delay_ms=0, jitter_ms=1), "event[0].jitter_ms: found 1 from A to B; allowed: number ≤ 0"),
        ({"seed": "x"}, 'seed: found "x"; allowed: integer'),
        (link(mtu=575), "link[0].mtu: found 575; allowed: integer ≥ 576, ≤ 65535, or 0 for no limit"),
        (default(reorder=1.1), "default.reorder: found 1.1"),
        (default(duplicate=-1), "default.duplicate: found -1"),
        (event(udp_blocked="yes"), 'event[0].udp_blocked: found "yes"; allowed: true or false'),
        (
            {"rebind": [{"at_s": 1, "site": "A"}]},
            'rebind[0].site: found "A"; allowed: a site with `nat = true`; none has it',
        ),
        (
            sites("A", {"name": "hub", "nat": True}, rebind=[{"at_s": 1, "site": "hup"}]),
            'rebind[0].site: found "hup"; allowed: `hub`',
        ),
        (route("A", "Z", "B"), 'route[0].to: found "Z"; allowed: `B`, `C`'),
        (route("A", "C", "A"), 'route[0].over: found "A"; allowed: `B`'),
        (
            {"route": [hop("A", "C", "B"), hop("B", "C", "A")]},
            "route[0].over: found A to B to A; allowed: a site from which packets reach C",
        ),
        ({"route": [{"from": "A", "to": "C"}]}, "route[0].over: found nothing; allowed: "),
        (
            sites({"name": "A", "nat": True}, "B", rebind=[{"site": "A"}]),
            "rebind[0].at_s: found nothing; allowed: number ≥ 0",
        ),
    ],
)
def test_a_fault_is_named_and_makes_no_others(changes, named):
    (fault, *others) = faults(**changes)
    assert fault.startswith(named)
    assert all(other.startswith("site[1]") for other in others)  # where two sites have one


@pytest.mark.parametrize(
    ("text", "named"), [("site = [", "allowed: TOML"), (None, "allowed: a file that can be read")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, text, named):
    path = tmp_path / "net.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(path)
