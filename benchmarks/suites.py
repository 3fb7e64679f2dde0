"""The suites: which cells are run, how often in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.cells import CNN_1M, CNN_10M, CNN_179K, GPT_10M, Cell, Hub, Workload, synthetic
from benchmarks.floors import round_s
from benchmarks.grounds import ways_of

FAST, SLOW, BROAD, UNEQUAL, LOSSY = (
    "100mbit-30ms",
    "20mbit-100ms-0.1loss",
    "1gbit-10ms",
    "unequal",
    "10mbit-150ms-1loss",
)
EVERY = 10
MEASURED_S, FEWEST, MOST = 6.0, 2, 12


@dataclass(frozen=True, slots=True)
class Suite:
    """What `run.py NAME` runs. `turns`: of each cell in its sitting."""

    cells: tuple[Cell, ...]
    turns: int
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration of a system, and where its servers may stand.

    `faster`: about how many times faster than dense its rounds are; so many more are measured, in as much time. More
    rounds, too, where one is unlike the other: ESync's have the steps that it chooses.
    """

    system: str
    config: str
    hubs: tuple[Hub, ...]
    every: int = 1
    faster: int = 1


OWN: tuple[Hub, ...] = ("own site",)
BOTH: tuple[Hub, ...] = ("own site", "A")
IN_A: tuple[Hub, ...] = ("A",)
NONE: tuple[Hub, ...] = ("none",)

RAW = Entry("raw", "sockets", BOTH)
GEOMX = (
    Entry("geomx", "dense", BOTH),
    Entry("geomx", "dense, paced", BOTH),
    Entry("geomx", "dense, overlap", OWN),
    Entry("geomx", "dense, 2 shards", OWN),
)
CODED = tuple(
    Entry("geomx", config, OWN, faster=faster)
    for config, faster in {
        "fp16": 1,
        "int4": 2,
        "Bi-Sparse 1 % up, int4 down": 2,
        "Bi-Sparse 1 %": 10,
        "Bi-Sparse 1 %, int2": 10,
        "Bi-Sparse 1 %, cubic": 10,
        "Bi-Sparse 1 %, int2, cubic": 10,
    }.items()
)
DDP = (
    Entry("ddp", "fp32", NONE),
    Entry("ddp", "fp16", NONE),
    Entry("ddp", "PowerSGD rank 2", NONE, faster=3),
    Entry("ddp", "hierarchical fp32", NONE),
    Entry("ddp", "hierarchical fp16", NONE),
)
DDP_SGD = Entry("ddp", "PowerSGD rank 2, SGD", NONE, faster=3)
DDP_LOCAL = Entry("ddp", "post-local, every 10", NONE, EVERY)
MXNET = (
    Entry("mxnet", "dist_sync", IN_A),
    Entry("mxnet", "2-bit", IN_A),
    Entry("mxnet", "dist_async", IN_A),
)
HIVEMIND = tuple(Entry("hivemind", config, NONE) for config in ("fp32", "fp16", "8-bit"))
HIVEMIND_LOCAL = Entry("hivemind", "fp32, every 10", NONE, EVERY)
TORCHFT = Entry("torchft", "DDP", NONE)
TORCHFT_LOCAL = Entry("torchft", "DiLoCo, every 10", NONE, EVERY)
FLOWER = Entry("flower", "FedAvg, H = 1", IN_A)
FLOWER_LOCAL = Entry("flower", "FedAvg, H = 10", IN_A, EVERY)

LOCAL = (
    *(Entry("geomx", f"{config}, every 10", OWN, EVERY) for config in ("HFA", "DiLoCo")),
    Entry("geomx", "HFA, every 10, int4", OWN, EVERY),
    Entry("geomx", "ESync, int4", OWN, EVERY, faster=4),
)

EACH_STEP = (*GEOMX, *CODED, *DDP, *MXNET, *HIVEMIND, TORCHFT, FLOWER)
EVERY_TEN = (*LOCAL, DDP_LOCAL, HIVEMIND_LOCAL, TORCHFT_LOCAL, FLOWER_LOCAL)
EVERY_FORTY = (
    Entry("geomx", "HFA, 20 × 2, int4", BOTH, 40),
    Entry("ddp", "post-local, every 40", NONE, 40),
    Entry("hivemind", "fp32, every 40", NONE, 40),
    Entry("torchft", "DiLoCo, every 40", NONE, 40),
    Entry("flower", "FedAvg, H = 40", IN_A, 40),
)
EVERYTHING = (RAW, *EACH_STEP, *EVERY_TEN)
CHOSEN = (
    Entry("raw", "sockets", OWN),
    Entry("geomx", "dense", OWN),
    *(CODED[0], CODED[3], CODED[4]),
    *LOCAL[1:3],
    *(DDP[0], DDP[1], DDP[2], DDP[4], DDP_LOCAL),
    *(MXNET[0], MXNET[2]),
    *(HIVEMIND[1], HIVEMIND_LOCAL),
    *(TORCHFT, TORCHFT_LOCAL, FLOWER, FLOWER_LOCAL),
)
DENSE = (
    Entry("raw", "sockets", OWN),
    GEOMX[0],
    *(replace(entry, hubs=OWN) for entry in GEOMX[1:]),
    *(DDP[0], DDP[3], MXNET[0], HIVEMIND[0], TORCHFT, FLOWER),
)
DENSE_CUBIC = (DENSE[0], replace(GEOMX[0], hubs=OWN), DENSE[2], DDP[0])


def cells_of(entries: Iterable[Entry], base: Cell) -> Iterator[Cell]:
    """`base` for each of the configurations, once for each place of their servers."""
    for entry in entries:
        for hub in entry.hubs:
            rounds, warmup = base.rounds, base.warmup
            if entry.every > 1:
                rounds, warmup = max(3, rounds // entry.every), 1
            yield replace(
                base,
                system=entry.system,
                config=entry.config,
                hub=hub,
                every=entry.every,
                rounds=rounds * entry.faster,
                warmup=warmup * entry.faster,
            )


def base(
    workload: Workload, network: str, parties: int, workers: int, congestion: str = "bbr", **more: float
) -> Cell:
    """A cell without a system. Where a round takes long, there are fewer of them: `MEASURED_S` at the floor's pace."""
    cell = Cell("", "", workload, network, parties, workers, "own site", congestion)
    floor_s = round_s(workload.size_bytes, ways_of(cell))
    rounds = min(max(round(MEASURED_S / floor_s), FEWEST), MOST)
    settings = {"rounds": rounds, "warmup": 1 if rounds < 6 else 2, "limit_s": 120 + 20 * rounds * floor_s}
    return replace(cell, hub="none", **settings | more)  # type: ignore[arg-type]


def quick() -> Suite:
    """At most ten minutes: one network."""
    entries = (RAW, Entry("geomx", "dense", BOTH), CODED[0], CODED[3], *DDP[:2], MXNET[0])
    cells = cells_of(entries, base(CNN_1M, FAST, 2, 2, rounds=10))
    return Suite(tuple(cells), 2, "geomx, DDP, MXNet and the floor, on one network")


def full() -> Suite:
    """Everything on two networks; the chosen of each system on the other networks, workloads and shapes.

    The slowest networks have the smallest model. With cubic the network of 1 % loss is left out: one flow gets less
    than 1 of its 10 Mbit/s there.
    """
    cells: list[Cell] = []
    for network in (FAST, SLOW):
        cells += cells_of(EVERYTHING, base(CNN_1M, network, 2, 2))
    cells += cells_of(CHOSEN, base(CNN_1M, BROAD, 2, 2))
    cells += cells_of(CHOSEN, base(CNN_179K, LOSSY, 2, 2))
    cells += cells_of(CHOSEN, base(CNN_179K, UNEQUAL, 3, 1))
    for network in (FAST, SLOW):
        cells += cells_of(CHOSEN, base(CNN_1M, network, 2, 1))
        cells += cells_of((*DENSE_CUBIC, MXNET[0]), base(CNN_1M, network, 2, 2, "cubic"))
    for workload in (CNN_179K, CNN_10M, GPT_10M):
        cells += cells_of(CHOSEN, base(workload, FAST, 2, 2))
    each_step = (entry for entry in CHOSEN if entry.every == 1)
    cells += cells_of(each_step, base(synthetic(1_068_490), FAST, 4, 2))
    return Suite(tuple(cells), 1, "every system, network, workload and shape")


def dense() -> Suite:
    """A dense round of 10 million parameters against the floor and every dense peer.

    Two rounds, which the pace of `base` would give, say little of a connection that has just begun, and of what a lossy
    link happened to lose. With cubic over the slow network, where a round takes more than a minute, there are no more.
    """
    workload, longer, slow = synthetic(10_000_000), {"rounds": 6, "warmup": 2}, {"rounds": 4}
    paced = [Entry("geomx", "dense, paced, cubic", BOTH)]
    cells = list(cells_of(paced, base(workload, FAST, 2, 2, **longer)))
    for network, bbr, cubic in ((FAST, longer, longer), (SLOW, slow, {})):
        cells += cells_of(DENSE, base(workload, network, 2, 2, **bbr))
        cells += cells_of(DENSE_CUBIC, base(workload, network, 2, 2, "cubic", **cubic))
    return Suite(tuple(cells), 2, "10 million parameters, dense, beside the floor")


def accuracy() -> Suite:
    """Time and WAN bytes until 85 % of Fashion-MNIST's test images are right.

    geomx's dense rounds once: pacing and shards change no weight. Who synchronises seldom is looked at just behind it.
    """
    several = (*EACH_STEP, DDP_SGD, *EVERY_TEN, *EVERY_FORTY)
    entries = [entry for entry in several if entry not in GEOMX[1:]]
    cells = []
    for network in (SLOW, FAST):
        for cell in cells_of(entries, base(CNN_179K, network, 2, 2, limit_s=400.0)):
            workload = replace(CNN_179K, target_accuracy=0.85, evaluate_every=max(20, cell.every))
            cells.append(replace(cell, workload=workload, rounds=2000 // cell.every))
    return Suite(tuple(cells), 1, "until 85 % of Fashion-MNIST, over two networks")


def scale() -> Suite:
    """From one party to sixteen in processes, and to a thousand in the simulator."""
    workload = synthetic(2_000_000)
    cells = []
    for parties in (1, 2, 4, 8, 16):
        for entry in (RAW, GEOMX[0]):
            cell = base(workload, FAST, parties, 1, limit_s=400.0)
            cells.append(replace(cell, system=entry.system, config=entry.config, hub="own site"))
    for parties in (1, 2, 4, 8, 16, 32, 100, 316, 1000):
        cell = base(workload, FAST, 1, 1, rounds=3, warmup=1, limit_s=900.0)
        virtual = {"system": "simulated", "config": "dense", "where": "simulator"}
        cells.append(replace(cell, parties=parties, hub="own site", **virtual))
    return Suite(tuple(cells), 1, "1 to 16 parties, and the simulator's 1 to 1,000")


def fallback() -> Suite:
    """geomx's own shaping of links, which needs no root, beside the lab.

    At 1 Gbit/s a few rounds are over before the connections have found their rate, and two cores carry one party
    without being the limit.
    """
    cells = []
    longer = {"rounds": 60, "warmup": 20}
    for network, parties, more in ((FAST, 2, {}), (BROAD, 1, longer), (BROAD, 2, longer)):
        for workload in (synthetic(1_068_490), synthetic(10_000_000)):
            cell = base(workload, network, parties, 1, **more)
            here = replace(cell, system="geomx", config="dense", hub="own site")
            cells += [here, replace(here, config="dense, link in process", where="loopback")]
    return Suite(tuple(cells), 2, "links imitated in the process, beside the lab")


SUITES: dict[str, Callable[[], Suite]] = {
    each.__name__: each for each in (quick, full, dense, accuracy, scale, fallback)
}
