"""From the description of a run to the links of a simulated one: as `wiring` is to the real driver."""

from __future__ import annotations

from geomx.channels.emulation.link import LinkSpec
from geomx.channels.emulation.shaping import HEADERS
from geomx.config import Run
from geomx.errors import ConfigError, Fault
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator


def emulate(run: Run, simulator: Simulator) -> None:
    """Give a simulated run the links that it describes, and what becomes of them. Raises `ConfigError`.

    Each edge has a link of its own. Where a server has several parents, each has an equal share of its link, both ways.
    """
    if run.lan.link is not None:
        for party in run.parties:
            for worker in party.worker_names:
                simulator.link(worker, party.name, _network(run, run.lan.link.spec))
    for server in run.tree.servers:
        link, parents = run.link_of(server), run.tree.parents(server)
        if link is None:
            continue
        for parent in parents:
            simulator.link(server, parent, _network(run, link.spec.shared(len(parents))))
            for change in run.link_changes_of(server):
                network = _network(run, change.link.shared(len(parents)))
                simulator.change(server, parent, change.at_s, network, change.fields)


def _network(run: Run, link: LinkSpec) -> Network:
    """A description counts the headers that the simulator does not have."""
    if link.loss:
        fault = Fault("link.loss", f"{link.loss:g}", "0", "the simulator loses whole messages, not packets")
        raise ConfigError(f"run {run.run.name}", [fault])
    return Network(link.rate_mbps / HEADERS, link.delay_ms, link.jitter_ms, cut=link.cut)
