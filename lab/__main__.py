"""The lab's commands: `python -m lab up FILE`, `down`, `status`, `set`, `begin`, `rebind`, `shell`, `exec`, `check`,
`graphs`, `demo`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from geomx.config.reading.overrides import literal
from geomx.errors import ConfigError
from lab import namespaces, nat, system
from lab.check import check
from lab.control import Control
from lab.describe import CONGESTION, Network, describe, load
from lab.errors import LabError, RouterError, Unavailable
from lab.graphs import compare
from lab.lab import Lab
from lab.link import Conditions, Counters
from lab.lossy_demo import play

SKIPPED = 77  # exit status where this machine or user cannot have a lab, as test runners know it
_DOWN_AFTER_S = 20.0
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        system.require()
        return int(chosen.run(chosen) or 0)
    except (LabError, ConfigError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return SKIPPED if isinstance(error, Unavailable) else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="A wide area network on one machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, *, of_lab: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        if of_lab:
            added.add_argument("--lab", help="which lab, where several are up (status names them)")
        return added

    for name, run, text in (("up", _up, "put a network up"), ("keep", _keep, "put a network up, and stay")):
        added = command(name, run, text, of_lab=False)
        added.add_argument("file", help="a network, such as lab/networks/100mbit-30ms.toml")
        added.add_argument("--congestion", choices=CONGESTION, help="instead of the file's")
    command("down", _down, "take down what `up` put up")
    command("status", _status, "sites, links, what they carried, and how the router fares")
    command("begin", _begin, "begin the script of events anew")
    added = command("set", _set, "change a link: set A B rate_mbps=5 cut=false")
    added.add_argument("source", metavar="FROM", help="a site, or '*'")
    added.add_argument("target", metavar="TO", help="a site, or '*'")
    added.add_argument("changes", metavar="KEY=VALUE", nargs="+")
    added.add_argument("--both", action="store_true", help="the way back too")
    added = command(
        "rebind", _rebind, "let a site's NAT forget its UDP flows; their next datagrams have new ports"
    )
    added.add_argument("site", help="a site with nat = true")
    command("shell", _shell, "a shell in a site").add_argument("site", help="SITE or SITE.HOST")
    added = command("exec", _exec, "a command in a site: exec A -- COMMAND ...")
    added.add_argument("site", help="SITE or SITE.HOST")
    added.add_argument("command", nargs="+")
    added = command("check", _check, "measure rates, delays and losses against what was set", of_lab=False)
    added.add_argument("--quick", action="store_true", help="a few cells, in less than 20 s")
    added.add_argument("--seed", type=int, help="of the losses, to repeat a check; else another each time")
    text = "measure what TCP makes of shared links, against the simulator's fair shares"
    added = command("graphs", _graphs, text, of_lab=False)
    added.add_argument("--times", type=int, default=1, help="how often each network is measured")
    command("demo", _demo, "train over links that lose 5 %: TCP and datagrams in turn", of_lab=False)
    return parser


# -- up and down ----------------------------------------------------------------------------------------


def _up(chosen: argparse.Namespace) -> None:
    network = load(chosen.file, chosen.congestion)
    here = str(Path(__file__).resolve().parents[1])
    keeper = subprocess.Popen(
        [sys.executable, "-m", "lab", "keep", chosen.file, "--congestion", network.congestion],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # ours would be kept open, and who reads it would wait for its end
        text=True,
        start_new_session=True,  # it outlives this terminal
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])},
    )
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    owner = keeper.stdout.readline().strip()
    if not owner:
        sys.stderr.write(keeper.stderr.read())
        raise RouterError("the lab did not come up")
    print(f"lab {owner} is up: {chosen.file}, {network.congestion}")
    _show_sites(network)


def _keep(chosen: argparse.Namespace) -> None:
    with Lab(load(chosen.file, chosen.congestion), {"kept": True}) as lab:
        lab.begin()
        print(lab.owner, flush=True)
        ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}  # the last: the router's end
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        signal.sigwait(ends)


def _down(chosen: argparse.Namespace) -> None:
    cleared = namespaces.clear_orphans()
    kept = [owner for owner in _running() if (status := _status_of(owner)) and status.get("kept")]
    if chosen.lab is not None:
        kept = [_choose(chosen.lab)]
    for owner in kept:
        os.kill(namespaces.owner_pid(owner), signal.SIGTERM)
    give_up_at = time.monotonic() + _DOWN_AFTER_S
    while left := [owner for owner in kept if namespaces.alive(owner)]:
        if time.monotonic() > give_up_at:
            raise LabError(f"still up after {_DOWN_AFTER_S:g} s: {', '.join(left)}")
        time.sleep(0.05)
    for owner in kept:
        namespaces.remove(owner)
    print(f"taken down: {', '.join([*kept, *cleared]) or 'nothing was up'}")


# -- a running lab --------------------------------------------------------------------------------------


def _running() -> list[str]:
    return sorted(owner for owner in namespaces.owners() if namespaces.alive(owner))


def _choose(wanted: str | None) -> str:
    running = _running()
    if wanted in running:
        return str(wanted)
    if wanted is None and len(running) == 1:
        return running[0]
    if not running:
        raise LabError("no lab is up: python -m lab up lab/networks/100mbit-30ms.toml")
    raise LabError(f"which lab? --lab takes one of: {', '.join(running)}")


def _ask(owner: str, do: str, **arguments: Any) -> Any:
    control = Control(owner)
    try:
        return control.ask(do, **arguments)
    finally:
        control.close()


def _status_of(owner: str) -> dict[str, Any] | None:
    """None, with a word of it, for a lab that is coming up or going down: that is no reason to leave the others."""
    try:
        return dict(_ask(owner, "status"))
    except RouterError as error:
        print(f"lab {owner}: {error}", file=sys.stderr)
        return None


def _status(chosen: argparse.Namespace) -> None:
    running = _running()
    if not running:
        print("no lab is up")
    if chosen.lab:
        running = [_choose(chosen.lab)]
    for owner in running:
        if status := _status_of(owner):
            _show(owner, status)


def _show(owner: str, status: dict[str, Any]) -> None:
    script_s = status["script_s"]
    script = "its script has not begun" if script_s is None else f"second {script_s:.0f} of its script"
    print(f"lab {owner}: {status['source']}, {script}")
    _show_sites(describe(status["table"], status["source"]))
    print(f"  {'link':<18}{'Mbit/s':>8}{'ms':>7}{'loss':>8}{'sent MB':>10}{'came MB':>10}", end="")
    print(f"{'lost':>9}{'overflow':>10}{'cut':>8}{'blocked':>9}{'too large':>11}   segments")
    for link in status["links"]:
        conditions, counters = Conditions(**link["conditions"]), Counters(**link["counters"])
        rate = "cut" if conditions.cut else f"{conditions.rate_mbps:g}"
        print(f"  {link['from'] + ' > ' + link['to']:<18}{rate:>8}{conditions.delay_ms:>7g}", end="")
        print(f"{conditions.mean_loss:>8.2%}{counters.offered_bytes / 1e6:>10.2f}", end="")
        print(f"{counters.delivered_bytes / 1e6:>10.2f}{counters.lost_segments:>9}", end="")
        print(f"{counters.overflowed_segments:>10}{counters.cut_segments:>8}", end="")
        print(f"{counters.blocked_segments:>9}{counters.oversized_segments:>11}")
    for site, seen in status.get("nats", {}).items():  # a lab of an older version tells of none
        print(f"  NAT of {site}: {seen['mappings']} flows, {seen['refused']} packets refused")
    router = status["router"]
    late = router["late"] / max(1, router["handed"])
    print(f"  router: {router['cpu_s']:.1f} s of CPU, {late:.2%} handed over more than 1 ms late", end="")
    print("" if status["realtime"] else "; without SCHED_RR, so busy processes hold it up")


def _show_sites(network: Network) -> None:
    for number, site in enumerate(network.sites, start=1):
        hosts = f" to .{site.hosts}" if site.hosts > 1 else ""
        lan = "" if site.lan_mbps is None else f", each at {site.lan_mbps:g} Mbit/s"
        outside = f", others see {namespaces.address(number, nat.HOST)}" if site.nat else ""
        print(f"  {site.name:<16}{namespaces.address(number, 1)}{hosts}{lan}{outside}")


def _begin(chosen: argparse.Namespace) -> None:
    _ask(_choose(chosen.lab), "begin")


def _rebind(chosen: argparse.Namespace) -> None:
    _ask(_choose(chosen.lab), "rebind", site=chosen.site)


def _set(chosen: argparse.Namespace) -> None:
    changes = dict(_change(text) for text in chosen.changes)
    pair = {"from": chosen.source, "to": chosen.target, "both": chosen.both}
    _ask(_choose(chosen.lab), "set", link={**changes, **pair})


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise LabError(f"{text!r} is not KEY=VALUE, such as rate_mbps=5")
    return key, literal(value)  # the router names what is allowed


def _shell(chosen: argparse.Namespace) -> None:
    _enter(chosen, [os.environ.get("SHELL", "/bin/sh")])


def _exec(chosen: argparse.Namespace) -> None:
    _enter(chosen, chosen.command)


def _enter(chosen: argparse.Namespace, command: Sequence[str]) -> NoReturn:
    owner = _choose(chosen.lab)
    status = _ask(owner, "status")
    network = describe(status["table"], status["source"])
    name, _, host = chosen.site.partition(".")
    site = network.site(name)
    number = int(host) if host.isdigit() else 1 if not host else 0
    if not 1 <= number <= site.hosts:
        raise LabError(f"site {name} has hosts 1 to {site.hosts}, not {host}")
    namespace = namespaces.of_host(owner, site, number)
    os.execvp("ip", ["ip", "netns", "exec", namespace, *command])


def _check(chosen: argparse.Namespace) -> int:
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    return 0 if check(chosen.quick, seed, lambda line: print(line, flush=True)) else 1


def _graphs(chosen: argparse.Namespace) -> int:
    return 0 if compare(chosen.times, lambda line: print(line, flush=True)) else 1


def _demo(_: argparse.Namespace) -> int:
    try:
        play()
    except KeyboardInterrupt:
        print("lab: stopped; its processes and its network are gone", file=sys.stderr)
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
