"""Who hangs on whom: the tree of a run's nodes, of any depth.

The *shards* of the global server are its top and count as one: whoever has no parent of its own hangs on all of them.
*Workers* are the leaves. Every node between is a *server*: a party's, whose children are workers, or a region's, whose
children are servers. Nodes are known by their names, and nobody asks how deep one stands.

A *cohort* is the workers below one node, and has that node's name; `""` is the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from geomx import bits
from geomx.errors import ProtocolError

TOP = ""  # the parent of whoever hangs on the shards
EVERYONE = ""  # the cohort of the whole run
# Places for parties that come later, where a run is open: by party its workers.
GUESTS = {f"guest-{place}": tuple(f"guest-{place}/{rank}" for rank in range(8)) for place in range(1, 9)}
GLOBAL = "global"  # all shards
# Places for servers beside the shards that hold rows of tables alone, and come and go while the run lasts.
ROW_SERVERS = tuple(f"global/rows-{place}" for place in range(1, 9))
SOLO = "solo"  # the party of a run of one

SyncGroup = Literal["run", "party", "worker"]


class Tree:
    """See the module's text. Immutable.

    Args:
        parents: The parent of every node but the shards, `TOP` for those below the shards; workers in the order in
            which contributions are added.
        shards: The shards of the global server, in order.

    Attributes:
        guests: The workers that the run does not begin with: places for whoever comes later.
        shards: As given.
        servers: All servers but the shards, in the order of `parents`.
        workers: The leaves, in the order of `parents`.
    """

    def __init__(
        self, parents: Mapping[str, str], shards: Sequence[str] = ("global/0",), guests: Iterable[str] = ()
    ) -> None:
        self.shards = tuple(shards)
        self.guests = frozenset(guests)
        self._parents = dict(parents)
        inner = set(self._parents.values())
        self.servers = tuple(name for name in self._parents if name in inner)
        self.workers = tuple(name for name in self._parents if name not in inner)
        self._places = {name: place for place, name in enumerate(self.workers)}
        children: dict[str, list[str]] = {}
        for name, parent in self._parents.items():
            children.setdefault(parent, []).append(name)
        self._children = {name: tuple(below) for name, below in children.items()}
        leaves: dict[str, list[str]] = {}
        self._heights: dict[str, int] = {}  # of servers: edges to the lowest worker below
        for worker in self.workers:
            above = self.ancestors(worker)
            for node in (worker, *above, TOP):
                leaves.setdefault(node, []).append(worker)
            for height, node in enumerate(above, 1):
                self._heights[node] = max(self._heights.get(node, 0), height)
        self._leaves = {name: tuple(below) for name, below in leaves.items()}

    @classmethod
    def of_parties(
        cls,
        parties: Mapping[str, Iterable[str]],
        regions: Mapping[str, Iterable[str]] | None = None,
        shards: Sequence[str] = ("global/0",),
    ) -> Tree:
        """A tree by parties and their workers, and by regions and the parties or regions that hang on each.

        Whatever hangs on no region hangs on the shards.
        """
        regions = regions or {}
        parents = dict.fromkeys((*regions, *parties), TOP)
        parents |= {server: region for region, servers in regions.items() for server in servers}
        return cls(
            parents | {worker: party for party, workers in parties.items() for worker in workers}, shards
        )

    def with_guests(self, guests: Mapping[str, Iterable[str]]) -> Tree:
        """The same tree with places for parties and their workers that may come later, behind all others."""
        first = {name: parent for name, parent in self._parents.items() if name not in guests}
        first = {name: parent for name, parent in first.items() if parent not in guests}
        workers = {worker: party for party, below in guests.items() for worker in below}
        return Tree(first | dict.fromkeys(guests, TOP) | workers, self.shards, workers)

    @classmethod
    def solo(cls) -> Tree:
        """A run of one: a worker that hangs on the global server itself."""
        return cls({f"{SOLO}/0": TOP})

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node's name: shards, servers, workers."""
        return (*self.shards, *self.servers, *self.workers)

    @property
    def parties(self) -> tuple[str, ...]:
        """The servers that have workers of their own, in order."""
        return tuple(
            name for name in self.servers if any(self.is_worker(each) for each in self.children(name))
        )

    @property
    def tiers(self) -> int:
        """How many edges there are from the top to the lowest worker: two where parties hang on the shards."""
        return max(self._heights.values(), default=0) + 1

    def is_shard(self, name: str) -> bool:
        """Whether a node is a shard of the global server."""
        return name in self.shards

    @property
    def holders(self) -> tuple[str, ...]:
        """Whoever may hold rows of tables, by place: the shards, then the places for row servers."""
        return (*self.shards, *ROW_SERVERS)

    def leads_to(self, place: int) -> str:
        """The shard by which a request goes to whoever has that place; row servers are shared out among them."""
        return self.shards[place if place < len(self.shards) else place % len(self.shards)]

    def is_worker(self, name: str) -> bool:
        """Whether a node is a leaf."""
        return name in self._parents and name not in self._children

    def parent(self, name: str) -> str:
        """Whose child a node is; `TOP`: the shards'."""
        return self._parents[name]

    def parents(self, name: str) -> tuple[str, ...]:
        """Whom a node dials."""
        parent = self._parents[name]
        return self.shards if parent == TOP else (parent,)

    def beside(self, shard: str, replicas: int) -> tuple[str, ...]:
        """Which other shards one dials: the first, and with `replicas` the one before it, whose log it has."""
        place = self.shards.index(shard)
        before = self.shards[place - 1 : place] if replicas else ()
        return tuple(dict.fromkeys((*self.shards[: min(place, 1)], *before)))

    def children(self, name: str) -> tuple[str, ...]:
        """Who hangs on a node; of a shard or `TOP`: on the shards."""
        return self._children.get(TOP if name in self.shards else name, ())

    def ancestors(self, name: str) -> tuple[str, ...]:
        """The servers above a node, its parent first, without the shards."""
        found = []
        parent = self._parents[name]
        while parent != TOP:
            found.append(parent)
            parent = self._parents[parent]
        return tuple(found)

    def leaves(self, name: str) -> tuple[str, ...]:
        """The workers below a node, in order; of a shard or `TOP` all, of a worker itself, of nobody none."""
        return self._leaves.get(TOP if name in self.shards else name, ())

    def bitmap_of(self, names: Iterable[str]) -> bytes:
        """Workers by their places in the run's description; who is none is left out."""
        return bits.bitmap_of(self._places[name] for name in names if name in self._places)

    def workers_in(self, bitmap: bytes) -> tuple[str, ...]:
        """The workers of a bitmap, in order. Raises `ProtocolError` where it has places that there are not."""
        places = bits.places_of(bitmap)
        if places and places[-1] >= len(self.workers):
            raise ProtocolError(f"there is no worker {places[-1]}: the run has {len(self.workers)}")
        return tuple(self.workers[place] for place in places)

    def party_members(self, worker: str) -> tuple[str, ...]:
        """The workers of a worker's party, itself included, by rank."""
        return self.leaves(self.cohort_at(worker, 1))

    def cohort(self, worker: str, sync_group: SyncGroup) -> str:
        """The name of the cohort in which a worker takes its steps."""
        return {"run": EVERYONE, "party": self.cohort_at(worker, 1), "worker": worker}[sync_group]

    def cohort_at(self, worker: str, tier: int) -> str:
        """The largest cohort of a worker that spans no more tiers than that, counted from the leaves; `""`: none does.

        All its members say the same, also where branches differ in depth: a shallow one stays with its largest.
        """
        return next(iter(self.cohorts(worker, tier)[::-1]), EVERYONE)

    def cohorts(self, worker: str, tiers: int) -> tuple[str, ...]:
        """Those of a worker that span no more tiers than that, the smallest first."""
        return tuple(name for name in self.ancestors(worker) if self._heights[name] <= tiers)
