"""A lab that is really up, and what it leaves behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from labs_up import GIVE_UP_S, carried, connection, in_a_lab, until, up

from lab import LabError, namespaces, system
from lab.__main__ import main
from lab.describe import MAX_SITES

pytestmark = in_a_lab

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab():
    sites = ["A", {"name": "B", "hosts": 2}, {"name": "C", "hosts": 2, "lan_mbps": 500}]
    with up(*sites) as lab:
        yield lab


def test_a_stream_arrives_whole_although_segments_of_large_packets_come_twice_late_or_never(lab):
    size_bytes = 3_000_000
    disorder = {"duplicate": 0.05, "reorder": 0.05, "reorder_ms": 5}
    lab.set("*", "*", loss=0.01, burst_enter=0.002, burst_leave=0.5, **disorder)
    before, sent_before = lab.links()[("A", "B")].counters, lab.counters("A")[0]
    with connection(lab, "A", "B") as ends:
        assert carried(*ends, size_bytes)
    lab.set("*", "*", loss=0, burst_enter=0, duplicate=0, reorder=0)
    after = lab.links()[("A", "B")].counters
    for name in ("lost_segments", "duplicated_segments", "held_segments"):
        assert getattr(after, name) > getattr(before, name)
    assert after.delivered_bytes - before.delivered_bytes > size_bytes
    assert size_bytes < lab.counters("A")[0] - sent_before <= lab.wire_bytes("A")[0]
    assert lab.router().refused == 0


def test_a_cut_link_carries_nothing_and_a_healed_one_does(lab):
    with lab.inside("A"):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with lab.inside("B"):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, far:
        far.bind((lab.address("B"), 0))
        far.settimeout(GIVE_UP_S)
        lab.cut("A", "B")
        before = lab.links()[("A", "B")].counters.cut_segments
        near.sendto(b"lost", far.getsockname())
        until(lambda: lab.links()[("A", "B")].counters.cut_segments == before + 1)
        lab.heal("A", "B")
        near.sendto(b"came", far.getsockname())
        assert far.recv(10) == b"came"


def test_sockets_have_the_congestion_control_that_was_chosen_and_the_host_allows_what_it_did(lab):
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    with lab.inside("A"), socket.socket() as end:
        name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert name.rstrip(b"\0") == b"cubic"
    before = allowed.read_text()
    with up("A", "B"):
        assert allowed.read_text() == before


def test_a_thread_that_stands_in_a_site_comes_back_even_from_an_error(lab):
    def namespace():
        return Path("/proc/thread-self/ns/net").stat().st_ino

    def fail_inside():
        with lab.inside("A"):
            assert namespace() != here
            raise ZeroDivisionError

    here = namespace()
    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert namespace() == here


def test_what_does_not_exist_is_named(lab):
    with pytest.raises(LabError, match="no site Z; it has A, B, C"):
        lab.address("Z")
    with pytest.raises(LabError, match="site A has hosts 1 to 1, not 2"):
        lab.address("A", 2)
    with pytest.raises(LabError, match='rate_mbps: found "fast"'):
        lab.set("A", "B", rate_mbps="fast")


def test_closing_ends_what_runs_in_the_sites_and_leaves_nothing():
    lab = up("A", "B")
    with lab:
        sleeper = lab.popen("A", ["sleep", "1000"])
        until(lambda: sleeper.pid in namespaces._processes([lab.namespace("A")]))
    assert sleeper.returncode == -signal.SIGTERM
    assert lab.owner not in namespaces.owners()
    with pytest.raises(LabError, match="not up"):
        lab.links()


def test_nothing_is_left_when_the_owner_is_killed():
    script = (
        "import time\n"
        "from lab import Lab\n"
        "from lab.describe import load\n"
        "lab = Lab(load('lab/networks/100mbit-30ms.toml'))\n"
        "lab.open()\n"
        "sleeper = lab.popen('A', ['sleep', '1000'])\n"
        "print(lab.owner, lab.router().pid, sleeper.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as owner:
        name, router, sleeper = owner.stdout.readline().split()
        assert name in namespaces.owners()
        owner.kill()
    until(lambda: name not in namespaces.owners())
    until(lambda: system.started_at(int(router)) is None)
    until(lambda: system.started_at(int(sleeper)) is None)


def test_a_lab_whose_owner_and_router_are_both_gone_is_cleared_and_others_are_not(lab):
    gone = f"{os.getpid()}-1-0"  # this process began at another time
    subprocess.run(["ip", "netns", "add", namespaces.of_site(gone, "A")], check=True)
    assert gone in namespaces.clear_orphans()
    assert gone not in namespaces.owners()
    assert lab.owner in namespaces.owners()
    assert lab.router().strays == 0


def test_a_lab_that_its_own_router_is_taking_down_meanwhile_is_no_error(tmp_path, monkeypatch):
    (tmp_path / namespaces.of_site(f"{os.getpid()}-1-0", "A")).symlink_to("gone")
    monkeypatch.setattr(system, "NAMESPACES", tmp_path)
    assert f"{os.getpid()}-1-0" in namespaces.clear_orphans()


def test_the_commands_put_a_lab_up_and_take_it_down(tmp_path, capfd):
    path = tmp_path / "net.toml"
    path.write_text(
        'site = [{name = "A", nat = true}, {name = "B"}]\n[default]\nrate_mbps = 10\ndelay_ms = 1\n'
    )
    command = [sys.executable, "-m", "lab", "up", str(path)]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    owner = up.stdout.readline().split()[1]
    try:
        up.communicate(timeout=GIVE_UP_S)  # who reads what it prints does not wait for the end of the lab
        assert main(["set", "--lab", owner, "A", "B", "rate_mbps=7"]) == 0
        assert main(["status", "--lab", owner]) == 0
        (line,) = [line for line in capfd.readouterr().out.splitlines() if "A > B" in line]
        assert line.split()[3] == "7"
        assert main(["rebind", "--lab", owner, "A"]) == 0
        assert main(["rebind", "--lab", owner, "B"]) == 2
        assert "no site 'B' is behind a NAT; those are A" in capfd.readouterr().err
        assert main(["set", "--lab", owner, "A", "B", "udp_blocked=true", "mtu=1280", "reorder=0.01"]) == 0
        assert main(["set", "--lab", owner, "A", "B", "rate_mbps=fast"]) == 2
        assert 'rate_mbps: found "fast"' in capfd.readouterr().err
        command = [sys.executable, "-m", "lab", "exec", "--lab", owner, "B", "--", "ip", "-br", "address"]
        shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
        assert "10.77.2.1/32" in shown
    finally:
        assert main(["down", "--lab", owner]) == 0
    assert owner not in namespaces.owners()


def test_a_lab_that_is_only_coming_up_is_no_reason_to_leave_the_others(lab, capfd):
    coming = up("A", "B")
    namespaces.make(coming.owner, coming.network)
    try:
        assert main(["status"]) == 0
        shown = capfd.readouterr()
        assert f"lab {coming.owner}: no router of lab {coming.owner} listens" in shown.err
        assert f"lab {lab.owner}: " in shown.out
    finally:
        coming.close()
    assert coming.owner not in namespaces.owners()


def test_a_router_that_was_not_waited_for_is_ended(monkeypatch):
    started = []

    class Impatient(subprocess.Popen):
        """Whoever waits for its first line is interrupted."""

        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            if "lab.router" in self.args:
                started.append(self)
                self.stdout.close()
                self.stdout = self

        def readline(self):
            raise KeyboardInterrupt

        def close(self):
            """As a pipe."""

    monkeypatch.setattr(subprocess, "Popen", Impatient)
    with pytest.raises(KeyboardInterrupt):
        up("A", "B").open()
    assert [process.returncode is not None for process in started] == [True]


def test_the_most_sites_can_be_up_and_tell_of_themselves():
    with up(*(f"S{number}" for number in range(MAX_SITES))) as lab:
        assert len(lab.links()) == MAX_SITES * (MAX_SITES - 1)
