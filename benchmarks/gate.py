"""Measures this checkout of geomx and another commit in turn, and fails where this one has become slower.

    python benchmarks/gate.py COMMIT                  about ten minutes; needs root and /dev/net/tun, for the network
    python benchmarks/gate.py COMMIT --rows fp16      some rows alone

Both are built and installed beside each other in out/gate, with the packages of this Python; this checkout's benchmark
measures both. Gradients are synthetic, so that no data is needed and nothing but geomx and the network takes time:
1.07 M parameters, 2 × 2 workers unless a row says otherwise, 100 Mbit/s, 30 ms, BBR. A ratio is that of the medians
over all rounds of all turns. A row above the limit is measured once more, since timings are noisy, and all its turns
count. Ends with 1 where a ratio stays above the limit, and with 2 where something cannot be measured.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

from benchmarks.cells import OK, Cell
from benchmarks.grounds import Grounds
from benchmarks.measures import percentile, round_times
from benchmarks.suites import cells_of
from benchmarks.systems.adapters import ROOT, SYSTEMS, Desk, Nodes, System
from benchmarks.turn import run_turn
from lab import awake
from lab.errors import LabError
from lab.system import missing_here

LIMIT, TURNS, ROUNDS = 1.05, 3, 12
SHARED = {
    "workload": "synthetic",
    "parameters": 1_068_490,
    "network": "100mbit-30ms",
    "rounds_a_turn": ROUNDS,
}
ROWS = {  # by name: the configuration of `systems.toml`, and what is particular about the cell
    "dense": ("dense", {}),
    "2 shards": ("dense, 2 shards", {}),
    "one worker": ("dense", {"parties": 1, "workers": 1}),
    "fp16": ("fp16", {}),
    "int4": ("int4", {}),
    "Bi-Sparse": ("Bi-Sparse 1 %", {}),
    "HFA int4": ("HFA, every 10, int4", {"rounds_a_turn": 10 * ROUNDS, "step_ms": 5.0}),
}
Pair = tuple[list[float], list[float]]  # seconds of rounds: of this checkout, of the other commit


class GateError(Exception):
    """What cannot be measured, and why."""


def main() -> int:
    """Measure; gives the exit status."""
    options = _arguments()
    if missing := missing_here():
        print("gate: networks cannot be had here: " + "; ".join(missing), file=sys.stderr)
        return 2
    try:
        sides = [_with_path(_installed(commit)) for commit in (None, options.commit)]
        with awake.cores(), Grounds() as grounds:
            times = _measured(grounds, sides, options.rows, options.turns)
            slow = [name for name in options.rows if _ratio(times[name]) > options.limit]
            if slow:
                print(f"once more: {', '.join(slow)}", flush=True)
            for name, more in _measured(grounds, sides, slow, options.turns).items():
                times[name] = times[name][0] + more[0], times[name][1] + more[1]
    except (GateError, LabError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2
    print(_table(times, options.commit))
    slow = [name for name, pair in times.items() if _ratio(pair) > options.limit]
    if slow:
        print(f"slower than {options.limit:g} × {options.commit}: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="what to compare this checkout with")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each row is measured, in turn")
    parser.add_argument("--limit", type=float, default=LIMIT, help="the highest ratio that passes")
    return parser.parse_args()


def _installed(commit: str | None) -> Path:
    """The folder in which geomx of a commit is installed, with its kernels; None: of this working tree, anew.

    Raises:
        GateError: There is no such commit, or it cannot be built.
    """
    if commit is None:
        place = ROOT / "out" / "gate" / "here"
        _must("rm", "-rf", str(place))
        _install(ROOT, place)
        return place
    name = _must("git", "rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}").strip()
    place = ROOT / "out" / "gate" / name
    if not (place / "geomx").exists():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            archive = tree / "tree.tar"
            _must("git", "archive", "--output", str(archive), name)
            _must("tar", "-xf", str(archive), "-C", folder)
            _install(tree, place)
    return place


def _install(tree: Path, place: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _must(*pip, "--no-deps", "--no-build-isolation", "--target", str(place), str(tree))


def _must(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GateError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _with_path(place: Path) -> System:
    """geomx as it is installed in this folder."""
    system, path = SYSTEMS["geomx"], f"{place}:{ROOT}"
    told: set[str] = set()  # lines that were left out

    def nodes(desk: Desk) -> Nodes:
        started, addresses = system.nodes(desk)
        _leave_out_later_keys(desk.folder / "bench.toml", path, told)
        return [replace(node, env=node.env | {"PYTHONPATH": path}) for node in started], addresses

    return replace(system, nodes=nodes)


def _leave_out_later_keys(description: Path, path: str, told: set[str]) -> None:
    """What a former commit's geomx does not know yet is no part of its description."""
    check = (sys.executable, "-m", "geomx", "check", str(description))
    done = subprocess.run(check, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    unknown = {int(line) for line in re.findall(r"\(line (\d+)\): found an unknown key", done.stderr)}
    lines = list(enumerate(description.read_text().splitlines(), 1))
    for number, text in lines:
        if number in unknown and text not in told:
            told.add(text)
            print(f"  left out where it is not known: {text.partition('=')[0].strip()}", flush=True)
    description.write_text("".join(f"{text}\n" for number, text in lines if number not in unknown))


def _measured(grounds: Grounds, sides: Sequence[System], names: Sequence[str], turns: int) -> dict[str, Pair]:
    """Seconds of rounds of each row, both sides in turn; who begins changes from turn to turn."""
    times: dict[str, Pair] = defaultdict(lambda: ([], []))
    for turn in range(turns):
        for name in names:
            cell = cell_of(name)
            for side in ((0, 1), (1, 0))[turn % 2]:
                times[name][side].extend(_round_times(cell, sides[side], grounds))
            medians = " ".join(f"{statistics.median(each):.3f}" for each in times[name])
            print(f"  {turn + 1}/{turns}  {name}: {medians} s a round so far", flush=True)
    return dict(times)


def _round_times(cell: Cell, system: System, grounds: Grounds) -> list[float]:
    """Of one turn; a turn that fails is tried once more. Raises `GateError`."""
    for _ in range(2):
        turn = run_turn(cell, system, grounds.of(cell), Path(sys.executable))
        if turn.state == OK and (times := round_times(turn.steps, cell)):
            return times
    raise GateError(f"{cell}: {turn.state}")


def cell_of(name: str) -> Cell:
    """What a row runs."""
    config, particular = ROWS[name]
    (cell,) = cells_of([f"geomx: {config}"], **SHARED | particular)
    return cell


def _ratio(pair: Pair) -> float:
    here, there = map(statistics.median, pair)
    return here / there


def _table(times: dict[str, Pair], commit: str) -> str:
    """Medians and 95th percentiles of a round in seconds, and the ratio of the medians."""
    lines = [f"{'':12}{'here':>9}{'p95':>8}{commit[:10]:>12}{'p95':>8}{'ratio':>8}"]
    for name, pair in times.items():
        here, there = ((statistics.median(each), percentile(each, 0.95)) for each in pair)
        lines.append(
            f"{name:12}{here[0]:9.3f}{here[1]:8.3f}{there[0]:12.3f}{there[1]:8.3f}{_ratio(pair):8.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
