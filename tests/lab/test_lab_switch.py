import json
from dataclasses import asdict, fields
from math import inf

import pytest
from segments import SYN, ends, icmp, on_the_wire, tcp, udp

from geomx.errors import ConfigError
from lab.control import MAX_MESSAGE_BYTES
from lab.describe import MAX_SITES, describe
from lab.errors import LabError
from lab.link import Conditions, Counters
from lab.packets import TCP, VNET_BYTES
from lab.switch import Switch

SITES = [{"name": "A"}, {"name": "B"}, {"name": "C"}]


def switch(**table):
    return Switch(describe({"site": SITES, "default": {"rate_mbps": 12, "delay_ms": 10}, **table}))


def test_what_is_told_of_the_most_sites_is_one_message_and_short_where_little_happened():
    longest = {field.name: True if field.type in (bool, "bool") else 0.012345 for field in fields(Conditions)}
    sites = [{"name": f"long-name-{number:05}"} for number in range(MAX_SITES)]
    net = switch(site=sites, default=longest | {"mtu": 65535})
    for link in net._links.values():
        link.counters = Counters(**{field.name: 10**12 for field in fields(Counters)})
    state = net.state(0.0)
    assert len(state["links"]) == MAX_SITES * (MAX_SITES - 1)
    assert len(json.dumps(state)) < MAX_MESSAGE_BYTES
    assert len(json.dumps(switch(site=sites).state(0.0))) < MAX_MESSAGE_BYTES / 4


def to_site(number, sequence=0):
    return tcp(bytes(1448), 1448, sequence, target=bytes([10, 77, number, 1]))


def handed(switch, until=inf):
    """(when, site, sequence number) of all that is handed over, looking only when the switch says so."""
    seen = []
    while (now := switch.next_at()) <= until and now < inf:
        for site, _, packets in switch.due(now):
            seen += [(round(now, 6), site, on_the_wire(data)[0][1]) for data in packets]
    return seen


def conditions(switch, a, b):
    (found,) = [link for link in switch.state(0.0)["links"] if (link["from"], link["to"]) == (a, b)]
    return asdict(Conditions(**found["conditions"]))


def test_packets_take_the_link_of_their_pair_and_links_do_not_wait_for_each_other():
    net = switch(link=[{"from": "A", "to": "C", "delay_ms": 2}])
    net.arrive(0, to_site(2, 1), 0.0)
    net.arrive(0, to_site(3, 2), 0.0)
    net.arrive(1, to_site(1, 3), 0.0005)
    assert handed(net) == [(0.003, 2, 2), (0.011, 1, 1), (0.0115, 0, 3)]


@pytest.mark.parametrize("raw", [to_site(1), to_site(0), to_site(4), to_site(255), b"noise"])
def test_packets_to_nowhere_are_counted_and_dropped(raw):
    net = switch()
    net.arrive(0, raw, 0.0)
    assert net.next_at() == inf
    assert net.state(0.0)["strays"] == 1


def test_a_script_stands_still_until_it_begins():
    net = switch(event=[{"at_s": 0, "from": "A", "to": "B", "rate_mbps": 5}])
    assert net.next_at() == inf
    assert conditions(net, "A", "B")["rate_mbps"] == 12
    net.begin(100.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    assert conditions(net, "B", "A")["rate_mbps"] == 12


def test_events_lie_upon_each_other_and_show_what_they_covered():
    net = switch(
        event=[
            {"at_s": 5, "from": "A", "to": "B", "rate_mbps": 50},
            {"at_s": 10, "for_s": 20, "from": "*", "to": "B", "rate_mbps": 5},
            {"at_s": 20, "for_s": 2, "from": "A", "to": "B", "both": True, "cut": True},
        ]
    )
    net.begin(1000.0)
    seen = []
    while (now := net.next_at()) < inf:
        handed(net, now)
        both = [conditions(net, *pair) for pair in (("A", "B"), ("B", "A"), ("C", "B"))]
        seen.append((now - 1000.0, *((each["rate_mbps"], each["cut"]) for each in both)))
    assert seen == [
        (5, (50, False), (12, False), (12, False)),
        (10, (5, False), (12, False), (5, False)),
        (20, (5, True), (12, True), (5, False)),
        (22, (5, False), (12, False), (5, False)),
        (30, (50, False), (12, False), (12, False)),
    ]


def test_what_is_set_by_hand_lies_below_events_and_a_script_can_begin_again():
    net = switch(event=[{"at_s": 1, "for_s": 1, "from": "A", "to": "B", "rate_mbps": 5}])
    net.begin(0.0)
    handed(net, 1.0)
    net.change({"from": "A", "to": "B", "rate_mbps": 99}, 1.5)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    handed(net, 2.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 99
    net.begin(10.0)
    handed(net, 11.0)
    assert conditions(net, "A", "B")["rate_mbps"] == 5
    net.begin(11.5)
    assert conditions(net, "A", "B")["rate_mbps"] == 99


def test_what_travels_at_a_cut_is_lost_and_the_agenda_goes_on():
    net = switch()
    net.arrive(0, to_site(2, 1), 0.0)
    net.change({"from": "A", "to": "B", "both": True, "cut": True}, 0.005)
    net.change({"from": "A", "to": "B", "both": True, "cut": False}, 0.006)
    net.arrive(0, to_site(2, 2), 0.006)
    assert handed(net) == [(0.017, 1, 2)]


@pytest.mark.parametrize(
    ("a", "b", "changes", "named"),
    [
        ("A", "Z", {"loss": 0.1}, 'to: found "Z"; allowed: `A`, `B`, `C`, `*`'),
        ("A", "A", {"loss": 0.1}, "another site"),
        ("A", "B", {"lost": 0.1}, "lost: found an unknown key"),
        ("A", "B", {"loss": 1}, "loss: found 1; allowed: number ≥ 0, ≤ 0.9"),
        (
            "*",
            "*",
            {"jitter_ms": 11},
            "jitter_ms: found 11 from A to B; allowed: number ≤ 10, the `delay_ms` there",
        ),
    ],
)
def test_a_change_that_is_not_allowed_changes_nothing(a, b, changes, named):
    net = switch()
    before = net.state(0.0)
    with pytest.raises(ConfigError) as refused:
        net.change({"from": a, "to": b, **changes}, 0.0)
    assert named in str(refused.value)
    assert net.state(0.0) == before


def address(site, host=1):
    return bytes([10, 77, site, host])


def announced(data):
    """The MSS of a SYN whose first option it is."""
    assert data[VNET_BYTES + 9] == TCP
    return int.from_bytes(data[VNET_BYTES + 42 : VNET_BYTES + 44], "big")


def syn(target, mss=1460):
    return tcp(b"", 1448, flags=SYN, options=b"\2\4" + mss.to_bytes(2, "big"), target=address(target))


def come(switch, until=inf):
    """All that is handed over, as (site, packet)."""
    seen = []
    while (now := switch.next_at()) <= until and now < inf:
        seen += [(site, data) for site, _, packets in switch.due(now) for data in packets]
    return seen


def test_a_syn_is_held_to_the_mtu_of_the_way_that_its_answer_takes():
    net = switch(link=[{"from": "B", "to": "A", "mtu": 1300}])
    net.arrive(0, syn(2), 0.0)
    net.arrive(1, syn(1), 0.0)
    net.arrive(0, syn(3), 0.0)
    assert {(site, announced(data)) for site, data in come(net)} == {(1, 1260), (0, 1460), (2, 1460)}
    net.change({"from": "B", "to": "A", "mtu": 0}, 1.0)
    net.arrive(0, syn(2), 1.0)
    assert [announced(data) for _, data in come(net)] == [1460]


def test_a_syn_is_held_to_an_mtu_that_an_event_will_bring():
    event = {"from": "A", "to": "B", "both": True}
    net = switch(event=[{**event, "at_s": 9, "mtu": 1000}, {**event, "at_s": 5, "mtu": 1300}])
    net.arrive(0, syn(2), 0.0)
    net.begin(1.0)
    net.arrive(1, syn(1), 1.0)
    assert [announced(data) for _, data in come(net, until=2.0)] == [960, 960]


def test_who_sends_what_is_too_large_is_told_so_over_the_way_back():
    net = switch(default={"rate_mbps": 12, "delay_ms": 10, "mtu": 1300, "mtu_icmp": True})
    net.arrive(0, udp(bytes(1400), 1400), 0.0)
    ((site, data),) = come(net)
    packet = data[VNET_BYTES:]
    assert site == 0
    assert (packet[12:16], packet[16:20]) == (address(0), address(1))
    assert packet[20:22] == bytes([3, 4])
    assert int.from_bytes(packet[26:28], "big") == 1300
    error = icmp(3, 4, bytes(4) + udp(bytes(1400), 1400)[VNET_BYTES:])
    net.arrive(0, error, 1.0)  # no error about an error
    assert come(net) == []
    assert net._links["A", "B"].counters.oversized_segments == 2


NATTED = [{"name": "A", "nat": True}, {"name": "B"}, {"name": "C"}]
OUTSIDE = address(1, 253)


def test_a_site_behind_a_nat_has_another_address_outside_and_answers_come_back():
    net = switch(site=NATTED)
    net.arrive(0, udp(b"ask", 1000), 0.0)
    ((site, data),) = come(net)
    seen, target = ends(data)
    assert (site, seen[0], target) == (1, OUTSIDE, (address(2), 6000))
    net.arrive(1, udp(b"answer", 1000, source=address(2), target=seen[0], ports=(6000, seen[1])), 1.0)
    ((site, data),) = come(net)
    assert (site, ends(data)) == (0, ((address(2), 6000), (address(1), 5000)))
    assert net.state(1.0)["nats"] == {"A": {"mappings": 1, "refused": 0}}


@pytest.mark.parametrize("target", [address(1), OUTSIDE])
def test_nobody_outside_opens_a_flow_to_a_site_behind_a_nat(target):
    net = switch(site=NATTED)
    net.arrive(1, udp(b"knock", 1000, source=address(2), target=target), 0.0)
    assert come(net) == []
    assert net.state(1.0)["nats"] == {"A": {"mappings": 0, "refused": 1}}


def test_what_travels_when_a_nat_rebinds_is_refused_and_what_follows_has_a_new_port():
    net = switch(site=NATTED, rebind=[{"at_s": 2, "site": "A"}])
    net.begin(0.0)
    net.arrive(0, udp(b"1", 1000), 0.0)
    ((_, data),) = come(net, until=1.0)
    first = ends(data)[0]
    net.arrive(1, udp(b"answer", 1000, source=address(2), target=first[0], ports=(6000, first[1])), 1.995)
    assert come(net) == []
    net.arrive(0, udp(b"2", 1000), 3.0)
    ((_, data),) = come(net)
    assert ends(data)[0][0] == OUTSIDE
    assert ends(data)[0] != first
    net.begin(10.0)
    come(net)
    assert net.state(20.0)["nats"]["A"] == {"mappings": 0, "refused": 1}


def test_an_answer_to_what_is_too_large_finds_the_sender_behind_a_nat():
    net = switch(site=NATTED, default={"rate_mbps": 12, "delay_ms": 10, "mtu": 1300, "mtu_icmp": True})
    net.arrive(0, udp(bytes(1400), 1400), 0.0)
    ((site, data),) = come(net)
    packet = data[VNET_BYTES:]
    assert (site, packet[16:20], packet[20:22]) == (0, address(1), bytes([3, 4]))
    assert (packet[40:44], int.from_bytes(packet[48:50], "big")) == (address(1), 5000)


@pytest.mark.parametrize(("sites", "named"), [(NATTED, "those are A"), (SITES, "none is: set `nat = true`")])
def test_only_a_site_behind_a_nat_can_rebind(sites, named):
    net = switch(site=sites)
    for site in ("B", "Z"):
        with pytest.raises(LabError, match=named):
            net.rebind(site)


def test_a_route_leads_over_the_links_of_other_sites_which_all_share():
    net = switch(route=[{"from": "A", "to": "C", "over": "B"}])
    net.arrive(0, to_site(3, 1), 0.0)
    net.arrive(1, to_site(3, 2), 0.0105)  # on the link from B to C when the first comes there
    assert handed(net) == [(0.0215, 2, 2), (0.0225, 2, 1)]
    net.arrive(0, to_site(2, 3), 1.0)
    net.arrive(2, to_site(1, 4), 1.0)  # straight back
    assert sorted(handed(net)) == [(1.011, 0, 4), (1.011, 1, 3)]


def test_a_packet_that_is_too_large_further_on_is_answered_from_there():
    large = {"from": "B", "to": "C", "mtu": 1000, "mtu_icmp": True}
    net = switch(route=[{"from": "A", "to": "C", "over": "B"}], link=[large])
    net.arrive(0, to_site(3, 1), 0.0)
    ((when, site),) = [(now, site) for now in (0.011, 0.03) for site, _, packets in net.due(now) if packets]
    assert (when, site) == (0.03, 0)
