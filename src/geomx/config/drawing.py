"""A run's tree of nodes, drawn as plain text."""

from __future__ import annotations

from geomx.config.run import Run
from geomx.config.tables import EdgeTable, LinkTable, PartyTable
from geomx.sync import policies
from geomx.sync.contract import LocalStep, next_run_mean
from geomx.tree import TOP

WORKERS_DRAWN = 4


def describe(run: Run) -> str:
    """The servers with their links, the workers, what becomes of links; lines, without a last newline."""
    counts = [(run.run.shards, "shard"), (len(run.parties), "party"), (len(run.workers), "worker")]
    if run.regions:
        counts.insert(1, (len(run.regions), "region"))
    lines = [
        f"{run.run.name}: {', '.join(_count(*count) for count in counts)}",
        f"policy {run.sync.policy}, {_weight(run)}, {_optimizer(run)}",
        "",
        *(_server(run, shard) for shard in run.shard_names),
        *_below(run, TOP),
        *_changes(run),
    ]
    return "\n".join(lines)


def _below(run: Run, parent: str) -> list[str]:
    """The servers that hang on a region's, or on the global servers, and what is below them."""
    lines = []
    servers = run.tree.children(parent)
    for name in servers:
        branch, stem = ("└── ", "    ") if name == servers[-1] else ("├── ", "│   ")
        edge = _edge(run.edge_above(name), run.link_of(name))
        lines.append(f"{branch}{_server(run, name)}  [{edge}]")
        below = _workers(run, run.party(name)) if name in run.servers else _below(run, name)
        lines += [stem + line for line in below]
    return lines


def _changes(run: Run) -> list[str]:
    """`B from 30 s on: 5 Mbit/s, 20 ms one way`."""
    changes = [change for server in run.tree.servers for change in run.link_changes_of(server)]
    lines = [f"{change.party} from {change.at_s:g} s on: {change.link.words}" for change in changes]
    return ["", *lines] if lines else []


def _workers(run: Run, party: PartyTable) -> list[str]:
    names, edge = party.worker_names, _edge(run.lan, run.lan.link)
    if party.inside == "collective":
        edge += "; added up by torch.distributed"
    if len(names) > WORKERS_DRAWN:
        return [f"└── {names[0]} … {names[-1]}  [{edge}]"]
    return [f"{'└' if name == names[-1] else '├'}── {name}  [{edge}]" for name in names]


def _server(run: Run, node: str) -> str:
    return f"{node}  {run.addresses[node] or 'a free port'}"


def _edge(edge: EdgeTable, link: LinkTable | None) -> str:
    """`up dense, down dense; 100 Mbit/s, 20 ± 2 ms one way, loss 1 %`."""
    down = "as above" if edge.codec_down == "wan" else edge.codec_down
    parts = [f"up {edge.codec_up}, down {down}", link.words if link else ""]
    parts.append("" if edge.channel == "tcp" else f"over {edge.channel}")
    return "; ".join(filter(None, parts))


def _weight(run: Run) -> str:
    """How much a worker counts; a policy may have a word of its own in that."""
    _, mean = next_run_mean(policies.make(run.sync.policy)) or (0, LocalStep())
    if mean.equal:
        return "every worker counts the same (equal=true of the policy)"
    return f"weight by {run.sync.weight}"


def _optimizer(run: Run) -> str:
    rule = f" by {run.optimizer.rule}" if run.optimizer.rule else ""
    return f"optimizer {run.optimizer.place}{rule}"


def _count(number: int, what: str) -> str:
    plural = {"party": "parties"}.get(what, f"{what}s")
    return f"{number} {what if number == 1 else plural}"
