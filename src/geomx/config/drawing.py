"""A run's tree of nodes, drawn as plain text."""

from __future__ import annotations

from geomx.config.run import Run
from geomx.config.tables import EdgeTable, LinkTable, PartyTable
from geomx.sync import policies
from geomx.sync.contract import LocalStep, next_run_mean

WORKERS_DRAWN = 4


def describe(run: Run) -> str:
    """The shards, the parties with their links, the workers, what becomes of links; lines, without a last newline."""
    counts = (run.run.shards, "shard"), (len(run.parties), "party"), (len(run.workers), "worker")
    lines = [
        f"{run.run.name}: {', '.join(_count(*count) for count in counts)}",
        f"policy {run.sync.policy}, {_weight(run)}, {_optimizer(run)}",
        "",
        *(_server(run, shard) for shard in run.shard_names),
        *_parties(run),
        *_changes(run),
    ]
    return "\n".join(lines)


def _parties(run: Run) -> list[str]:
    lines = []
    for party in run.parties:
        last = party is run.parties[-1]
        branch, stem = ("└── ", "    ") if last else ("├── ", "│   ")
        edge = _edge(run.wan, run.link_of(party.name))
        lines.append(f"{branch}{_server(run, party.name)}  [{edge}]")
        lines += [stem + line for line in _workers(run, party)]
    return lines


def _changes(run: Run) -> list[str]:
    """`B from 30 s on: 5 Mbit/s, 20 ms one way`."""
    changes = [change for party in run.servers for change in run.link_changes_of(party)]
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
    down = "as over the WAN" if edge.codec_down == "wan" else edge.codec_down
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
