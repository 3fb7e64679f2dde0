"""One server's part in who takes part: it tells who is lost or wants to come back, and does what rosters say.

Whoever has told of a change closes no turn before a roster settles that: else it could count somebody, or go on without
somebody, where other servers do not. See `geomx.node.members.roster_keeper` for how it is decided.

Members are workers. Of a server below, nothing is decided: it is lost with its workers, joins as one that nobody waits
for, and follows the run until one of its workers is let in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import Any, Protocol

import msgspec

from geomx.errors import NodeLost, ProtocolError
from geomx.node.edges import ChildEdges
from geomx.node.peers.handshake import LAST, shown
from geomx.node.peers.peer import Peer
from geomx.node.slices.joined import Joined, grouped
from geomx.rounds.absences import Absences
from geomx.rounds.gathering import Gathering
from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.rounds.roster import at_first, reason
from geomx.rounds.round import Round
from geomx.rounds.turn import OPEN_ROUNDS
from geomx.tree import EVERYONE
from geomx.wire.messages import Push
from geomx.wire.roster_messages import (
    MOST_TURNS,
    Asks,
    Complete,
    Departed,
    Held,
    Lost,
    Message,
    Over,
    Roster,
    Standing,
    latest,
)

RETRY_S = 5.0  # whoever has to be awaited is told of again after so long
MOST_LATER = 64  # rosters that have overtaken others


class Welcoming(Protocol):
    """How that server lets in those below; see `geomx.node.members.reception`."""

    def welcome(self, peer: Peer) -> None: ...
    def is_welcomed(self, name: str) -> bool: ...
    def has_attached(self, peer: Peer) -> bool: ...
    def leaves(self, peer: Peer) -> None: ...
    def possible(self, step: int, cohort: str, turn: int, everyones: int) -> int: ...
    def standings(self, turns: Mapping[str, int]) -> dict[str, Standing]: ...


class Agreeing(Protocol):
    """What that server does with rounds; see `geomx.node.round_sink`."""

    @property
    def is_top(self) -> bool: ...
    def agrees(self, turn: Complete) -> bool: ...


class AttendanceHost(Protocol):
    """The server around it."""

    members: Members

    @property
    def now(self) -> float: ...
    @property
    def reception(self) -> Welcoming: ...
    @property
    def sink(self) -> Agreeing: ...
    def note(self, name: str, level: str = "debug", **fields: object) -> None: ...
    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def dismiss(self, peer: Peer, reason: str) -> None: ...
    def report(self, message: Lost | Asks) -> None: ...
    def enrolled(self, number: int) -> None: ...
    def took_leave(self, names: frozenset[str]) -> None: ...


class Attendance:
    """See the module's text."""

    def __init__(self, host: AttendanceHost, edges: ChildEdges, gathering: Gathering, losses: Losses) -> None:
        self._may_change, self._losses = losses.on_loss == "continue", losses
        self._timeout_s = edges.patience.timeout_s
        self._host, self._children, self._gathering = host, edges.children, gathering
        self._members = host.members
        self.roster = at_first(self._members.tree)  # the newest
        self._absences = Absences(self.roster.out)
        self._unheard = frozenset[
            str
        ]()  # children to come to a shard that was started again: to leave, at least
        self._is_in = False  # this server, if it is no shard, has joined the run
        self._later: dict[int, Roster] = {}  # that have overtaken others, by number
        self._unsettled: dict[str, int] = {}  # whom something was told of, with the incarnation
        self._held_for = 0  # the roster for which a shard holds
        self._told_at: dict[str, float] = {}  # of whom that was a loss, when
        self._newly_out: dict[
            str, tuple[int, frozenset[str]]
        ] = {}  # by cohort: who was in before the newest loss, and from which turn on is not
        self._torn = "", -1  # of which it was told last
        self._asking: dict[str, int] = {}  # workers that are there and out, with the incarnation
        self._gone: dict[str, tuple[int, float]] = {}  # children that were let go: the incarnation, and when
        self.departed: dict[
            str, Mapping[str, int]
        ] = {}  # the workers of the run that have left early: their last turns

    # -- what is told ------------------------------------------------------------------------------------------

    def lost(self, peer: Peer) -> bool:
        """Nothing is heard any more of a child. Returns whether this is dealt with; else it is to be awaited."""
        if not self._members.present(self._children[peer.name]):
            self.let_go(peer, _why_out(peer, self._host.now))
            return True
        return self._lose(peer.name, peer.session.incarnation, _why_lost(peer, self._host.now))

    def tick(self) -> None:
        """Notice children that are to take part and have gone, or never come back. Raises `NodeLost`."""
        for name in list(self._gone):
            if self._host.peer(name) is not None or not self._members.present(self._children[name]):
                del self._gone[name]
        if not self._may_change:
            return
        for name, (incarnation, since) in self._gone.items():
            away_s = self._host.now - since
            is_told = away_s <= self._timeout_s or self._lose(
                name, incarnation, "it has gone, and not come back"
            )
            if not is_told and away_s > self._losses.wait_s:
                raise NodeLost(name, f"not back within {self._losses.wait_s:g} s (run.wait_s)")

    def back(self, peer: Peer) -> None:
        """A child has connected again."""
        self._told_at.pop(peer.name, None)

    def asks(self, worker: str, incarnation: int) -> None:
        """A worker that hangs on this server is out, and there."""
        self._asking[worker] = incarnation
        if worker not in self._unsettled:
            self._host.report(Asks(worker, incarnation, self._begin(worker, incarnation)))

    def passes_on(self, peer: Peer, message: Lost | Asks) -> None:
        """A server below tells of somebody below it. Raises `ProtocolError` for what it cannot know."""
        self._check(peer, message)
        said = {cohort: self._possible(peer, cohort, told) for cohort, told in message.standings.items()}
        message = msgspec.structs.replace(message, standings=said)
        if isinstance(message, Asks):
            if message.worker in self._unsettled:  # one at a time
                return
            ours = self._begin(message.worker, message.incarnation)
            message = msgspec.structs.replace(message, standings=latest(ours, message.standings))
        else:
            message = msgspec.structs.replace(message, reason=shown(message.reason))
        self._host.report(message)

    def _possible(self, peer: Peer, cohort: str, told: Standing) -> Standing:
        """What a server below may tell of a cohort: of its own all, of others no step that is too far, and no data."""
        if set(self._children[peer.name]).issuperset(self._members.tree.leaves(cohort)):
            return told
        everyones = self._gathering.last_closed(self._members.order)[EVERYONE]
        step = self._host.reception.possible(told.step, cohort, told.step_turn, everyones)
        return Standing(told.turn, step, told.step_turn)

    def held(self, number: int, nodes: Iterable[str]) -> Held:
        """Close nothing before the roster of this number; tells where the cohorts of those below these nodes stand."""
        self._held_for = max(number, self._held_for)
        self._gathering.hold()
        return Held(number, self._standings(nodes))

    def out_at(self, cohort: str, turn: int) -> bytes:
        """Who took no part in a turn that everybody takes: a bitmap as in `Roster`; of other cohorts, nobody."""
        return self._absences.in_turn(turn) if cohort == EVERYONE else b""

    def slowest(self) -> int:
        """See `Gathering.slowest`."""
        return self._gathering.slowest()

    def pace(self) -> int:
        """How many steps the slowest worker below has taken by itself; -1: that is not known."""
        below = [
            self._host.peer(name) for name, leaves in self._children.items() if self._members.present(leaves)
        ]
        return min((child.step for child in below if child is not None), default=-1)

    def agrees(self, cohort: str, turn: int, together: bytes) -> bool:
        """Whether a turn that counts as a whole, and is complete here, may close at once; else see `named`."""
        return self._host.sink.agrees(Complete(cohort, turn, self.roster.number, together))

    # -- what is heard -----------------------------------------------------------------------------------------

    def stands(self, told: Joined) -> None:
        """This server joins a run that has come to some roster, and holds nothing of its own back any more."""
        self._is_in = True
        if told.roster.number >= self.roster.number:
            self.roster = told.roster
            self._changes(told.roster)
        self._members.enroll(self._members.tree.workers_in(self.roster.out), told.begins)
        for name, turns in told.left.items():
            self._members.leave([name], turns)
        for name in self._children:
            if self._host.peer(name) is None:
                self._gone.setdefault(name, (0, self._host.now))
        self._unsettled = {}
        self._later = {number: later for number, later in self._later.items() if number > self.roster.number}
        self._gathering.resume(self._host.now)
        self._take_next()

    def tells_again(self) -> None:
        """The first shard was started again: what it was told, and has not settled, it has to hear once more."""
        self._unsettled, self._told_at = {}, {}
        for name, incarnation in list(self._asking.items()):
            self.asks(name, incarnation)
        if not self._unsettled and self._held_for <= self.roster.number:
            self._gathering.resume(self._host.now)

    @property
    def absences(self) -> tuple[tuple[int, bytes], ...]:
        """See `Absences.kept`."""
        return self._absences.kept

    def put_back(
        self,
        roster: Roster,
        absences: tuple[tuple[int, bytes], ...],
        departed: Mapping[str, Mapping[str, int]],
    ) -> None:
        """This roster is the newest; who took no part before, and who has left early."""
        self.roster = roster
        self._absences.put_back(absences)
        self.depart(departed)

    def begins_again(self) -> None:
        """This shard was started again: who does not come back is lost, once it was awaited for long enough."""
        self._unheard = frozenset(self._children)
        for name in self._children:
            self._gone.setdefault(name, (0, self._host.now))

    def told(self, roster: Roster) -> None:
        """A roster has come; they are taken in the order of their numbers, by whoever has something of the run."""
        if roster.number > self.roster.number and not (self._is_in or self._host.sink.is_top):
            self._take(roster)
        elif roster.number <= self.roster.number:
            if self._host.sink.is_top and self._held_for > roster.number:  # the first shard decides anew
                self._held_for = 0
                self._gathering.resume(self._host.now)
        else:
            if len(self._later) >= MOST_LATER:
                raise ProtocolError(
                    f"{MOST_LATER} rosters have come, and not number {self.roster.number + 1}"
                )
            self._later[roster.number] = roster
            self._take_next()

    @property
    def absent(self) -> bool:
        """Whether somebody is out and away, who may come and has not heard that the run has ended."""
        away = {
            name: leaves
            for name, leaves in self._children.items()
            if self._host.peer(name) is None and not self._members.are_vacant(leaves)
        }
        is_unheard = not self._unheard.isdisjoint(away)
        return is_unheard or any(not self._members.has_left(leaves) for leaves in away.values())

    def named(self, cohort: str, turn: int) -> None:
        """A turn that counts as a whole is complete on all shards."""
        self._gathering.named(cohort, turn, self._host.now)

    def closed(self, round_: Round) -> None:
        """A round has closed; where others of its turn had closed before somebody was lost, it is of fewer workers."""
        cohort, turn = round_.cohort, round_.turn
        first, gone = self._newly_out.get(cohort, (0, frozenset[str]()))
        if turn >= first or (cohort, turn) == self._torn:
            return
        if gone & self._members.of(cohort) - round_.origins.keys():
            self._torn = cohort, turn
            self._host.note("torn", "warning", turn=turn, cohort=cohort, whom=", ".join(sorted(gone)))

    def over(self) -> None:
        """The run has ended, of which those hear who took no part."""
        for name, leaves in self._children.items():
            if (child := self._host.peer(name)) is not None and not self._members.has_left(leaves):
                self._host.send(child, Over())

    def nears_its_end(self) -> bool:
        """Whether a worker has left that was not asked to."""
        return not self._members.left(self._members.order).keys() <= self.departed.keys()

    def depart(self, left: Mapping[str, Mapping[str, int]]) -> None:
        """These workers have left early, behind these turns, as all below hear."""
        if new := {name: turns for name, turns in left.items() if name not in self.departed}:
            self.departed |= new
            for group in grouped(new, self._members.tree):
                self._absences.departs(group.workers, group.turns.get(EVERYONE, -1))
            for name, leaves in self._children.items():
                child = self._host.peer(name)
                if child is not None and self._host.reception.is_welcomed(name):
                    self._tell_departed(child, leaves, new)

    def tell_departed(self, peer: Peer) -> None:
        """Tell a child that is welcomed who has left."""
        if self.departed:
            self._tell_departed(peer, self._children[peer.name], self.departed)

    def _tell_departed(
        self, peer: Peer, leaves: tuple[str, ...], left: Mapping[str, Mapping[str, int]]
    ) -> None:
        if not self._members.has_left(leaves):
            self._host.send(peer, Departed(grouped(left, self._members.tree)))

    def let_go(self, peer: Peer, why: str) -> None:
        """Forget a child: if it comes again, it hears why, and begins anew."""
        self._host.reception.leaves(peer)
        self._asking.pop(peer.name, None)
        self._gone[peer.name] = peer.session.incarnation, self._host.now
        self._host.dismiss(peer, why)

    def _lose(self, node: str, incarnation: int, reason: str) -> bool:
        if node in self._unsettled:
            return True
        if self._host.now - self._told_at.get(node, -math.inf) < RETRY_S:
            return False
        if node not in self._told_at:
            self._host.note("lost", "warning", peer=node, reason=reason)
        self._told_at[node] = self._host.now
        self._host.report(Lost(node, incarnation, self._begin(node, incarnation), reason))
        return True

    def let_all_go(self) -> None:
        """Forget all children: what they have told belongs to what this server was before."""
        for name in self._children:
            if (child := self._host.peer(name)) is not None:
                self.let_go(
                    child, "its server was cut off from the run, and begins anew; it may ask to come back"
                )

    def _changes(self, roster: Roster) -> None:
        self._absences.changes(roster.from_turns.get(EVERYONE, 0), roster.out)

    def _take_next(self) -> None:
        while (roster := self._later.pop(self.roster.number + 1, None)) is not None:
            self._take(roster)

    def _take(self, roster: Roster) -> None:
        self.roster, members = roster, self._members
        self._changes(roster)
        out, back = members.tree.workers_in(roster.out), members.tree.workers_in(roster.joined)
        joined = frozenset(back).intersection(members.order)
        gone = members.enroll(out, dict.fromkeys(joined, roster.from_turns))
        self._gathering.changes(roster.from_turns)
        self._host.note(
            "roster", "info", number=roster.number, members=len(members.present(members.order)),
            out=", ".join(name for name in out if name not in members.tree.guests), joined=", ".join(back),
            turns=roster.from_turns, lost=roster.why.lost, awaited=roster.why.awaited, reason=reason(back, roster.why),
        )  # fmt: skip
        if gone:
            self._gathering.drop(gone, roster.from_turns, partial(self.is_spoiled, gone))
            self._newly_out |= {cohort: (turn, gone) for cohort, turn in roster.from_turns.items()}
        if joined:
            self._gathering.came_back(joined)
        settled = dict(roster.settles)
        self._unsettled = {
            name: each for name, each in self._unsettled.items() if settled.get(name, -1) < each
        }
        self._tell_children(roster, joined, settled, gone)
        self._asking = {name: each for name, each in self._asking.items() if name in members.out}
        for name, incarnation in list(self._asking.items()):
            self.asks(name, incarnation)
        if not self._unsettled and roster.number >= self._held_for:
            self._gathering.resume(self._host.now)
        self._host.enrolled(roster.number)
        self._host.took_leave(gone)

    def is_spoiled(self, gone: Set[str], push: Push) -> bool:
        """Whether a sum of several children's has something of one of which all are gone."""
        own = [push.origins.keys() & leaves for leaves in map(set, self._children.values())]
        return any(part and part <= gone for part in own)

    def _tell_children(
        self, roster: Roster, joined: frozenset[str], settled: Mapping[str, int], gone: frozenset[str]
    ) -> None:
        for name, leaves in self._children.items():
            child = self._host.peer(name)
            if child is None:
                if name in joined:  # it has gone while it was let in
                    self._gone[name] = settled.get(name, 0), self._host.now - 2 * self._timeout_s
                continue
            is_lost = settled.get(name, -1) >= child.session.incarnation and not self._members.present(leaves)
            is_welcomed = self._host.reception.is_welcomed(name)
            if is_lost or name in gone:
                self.let_go(child, _why_out(child, self._host.now))
            elif is_welcomed or leaves != (name,):  # a server that has no model yet may have told of somebody
                self._host.send(child, roster)
            elif name in joined and self._host.reception.has_attached(child):
                self._host.reception.welcome(child)

    def _check(self, peer: Peer, message: Lost | Asks) -> None:
        """Nobody tells of others than its own, or of turns that others have not come to."""
        name, tree = message.node if isinstance(message, Lost) else message.worker, self._members.tree
        own, below = set(self._children[peer.name]), tree.leaves(name)
        if not self._may_change or name == peer.name or not below or not set(below) <= own:
            raise ProtocolError(f"{peer.name} tells of {shown(name)}, which does not hang on it")
        here = self._gathering.last_closed(below)
        for cohort, standing in message.standings.items():
            members = set(tree.leaves(cohort))
            known = max(here.get(cohort, -1), self._gathering.newest(cohort))
            turn, most = standing.turn, known + OPEN_ROUNDS
            if members <= own:
                most = MOST_TURNS
            elif not self._gathering.is_common(cohort):  # of a region's means, steps are the turns
                most = self._host.reception.possible(MOST_TURNS, cohort, turn, here[EVERYONE])
            if own.isdisjoint(members) or not -1 <= turn <= most:
                raise ProtocolError(f"{peer.name} tells that turn {turn} of {shown(cohort)!r} has closed")
            if not standing.is_sound(len(tree.workers)):
                raise ProtocolError(f"{peer.name} tells that {shown(cohort)!r} stands at {standing}")
        if not 0 <= message.incarnation < LAST:
            raise ProtocolError(f"{peer.name} tells of incarnation {message.incarnation} of {shown(name)}")

    def _begin(self, node: str, incarnation: int) -> dict[str, Standing]:
        self._unsettled[node] = incarnation
        self._gathering.hold()
        return self._standings((node,))

    def _standings(self, nodes: Iterable[str]) -> dict[str, Standing]:
        below = (name for node in nodes for name in self._members.tree.leaves(node))
        return self._host.reception.standings(self._gathering.last_closed(below))


def _why_lost(peer: Peer, now: float) -> str:
    patience = peer.session.patience
    if not peer.session.is_lost(now):
        return f"its connection has ended, and no other has come in {patience.heartbeat_s:g} s"
    return f"nothing was heard of it for {patience.timeout_s:g} s"


def _why_out(peer: Peer, now: float) -> str:
    """What a child hears that is out, and may not have noticed."""
    if peer.session.is_lost(now):
        longer_s = peer.session.patience.timeout_s
        why = f"nothing was heard of {peer.name} for more than {longer_s:g} s, and the run went on"
    elif not peer.session.is_open:
        why = f"the connection of {peer.name} had ended, and the run went on"
    else:
        why = f"the run went on without {peer.name}, whose server was not reached"
    return f"{why}; it may ask to come back"
