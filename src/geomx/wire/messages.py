"""Every message that travels between two nodes.

A message is a small header (msgpack, at most 64 KiB) and, for those with a `size`, that many raw payload bytes
behind it. Rules:

- `turn` numbers the collective calls of a cohort, the workers that move in step (see `membership`): each of them
  makes the same calls in the same order, and the n-th of them is turn n on every node. A slice's rounds are the turns
  in which it took part. A mean of a party or region that takes no steps of its own has its step's number as its turn.
- `kind` says what adding means: `gradient` (the weighted sum, then the optimizer), `mean` (the weighted mean, nothing
  is optimized), `assign` (the value of the lowest origin replaces).
- A contribution carries Σ w·x and w. Leaves multiply, inner nodes add, the root divides.
- `origins` maps each worker whose contribution is inside to its incarnation.
- `present` tells which parts of the slice (tensors, see `Slice.parts`) have a value at all: None means every one,
  else a bitmap, part 0 in the lowest bit of the first byte. A push without any has no payload.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from geomx.wire.copy_messages import Begun, Keep, Kept, Recall, Recalled
from geomx.wire.flow_messages import Beside, FlowBroken, FlowOpen
from geomx.wire.overlay_messages import Apart, Linked, Rates, Strayed, Table, Unanswered, Use, Void
from geomx.wire.request_messages import Present, Request, Response, Told
from geomx.wire.roster_messages import (
    Asks,
    Close,
    Complete,
    Departed,
    Held,
    Hold,
    Lost,
    Message,
    Over,
    Retire,
    Roster,
    Standing,
    Turns,
)

PROTOCOL_VERSION = 4
COLLECTIVE = "a collective call"
NOTHING = (
    ""  # the operation of whoever has nothing to contribute to a step, whichever of several models it is of
)

Kind = Literal["gradient", "mean", "assign", "call"]
Value = str | int | float | bool | None
Of = Literal["optimizer", "weights", "root", "exact", "server"]
Hyperparameters = dict[str, Value | list[float]]
RefusalCode = Literal[
    "version",  # another geomx
    "proof",  # not this run's secret
    "certificate",  # one that does not name the node
    "run",
    "identity",  # nobody of the run, or one that has left it
    "manifest",  # describes another run
    "fenced",  # a newer incarnation has joined
    "held",  # the name's holder is connected and speaks
    "returned",  # the dialler was restarted, and cannot come back
    "watermark",  # the dialler's session has lost messages
    "ended",  # the listener knows nothing of the dialler's session any more
]


class Challenge(Message, frozen=True, array_like=True, tag=True):
    """First message of whoever listens. `nonce`: 16 bytes drawn for this connection, see `geomx.wire.proof`."""

    nonce: bytes


class Hello(Message, frozen=True, array_like=True, tag=True):
    """The dialler's answer to `Challenge`. The same node and incarnation resume their session.

    `received`: every message numbered up to this one has arrived (0: none yet). `nonce`: as in `Challenge`.
    """

    version: int
    run: str
    node: str
    incarnation: int
    manifest: dict[str, Value]
    received: int
    nonce: bytes
    proof: bytes


class Welcome(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Hello` from whoever listens; only now does the dialler believe in the connection.

    `term`: of a shard that keeps a log: which process of its name this is, counted from 1.
    """

    node: str
    incarnation: int
    received: int
    proof: bytes
    term: int = 0


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """One field in which two manifests differ."""

    field: str
    yours: str
    ours: str


class Refuse(Message, frozen=True, array_like=True, tag=True):
    """The other answer to `Hello` or `Attach`; the connection closes behind it.

    Whoever has not proved membership is told the code alone. `newest`: with `fenced`, the incarnation that holds the
    name.
    """

    code: RefusalCode
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    newest: int = 0


class Attach(Message, frozen=True, array_like=True, tag=True):
    """A node's model and optimizer. Payload: the `Layout`, msgpack.

    `settings` are compared field by field with those of the nodes that attached before. `step`: as in `Beat`.
    """

    fingerprint: str
    settings: dict[str, Value]
    size: int
    step: int = -1


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a worker's script is.

    `epoch`: how many passes over its share have ended. `batches`: of each pass that is under way, how many its steps
    have used. `steps`: how many it has taken. `weight`: the sum of what they weighed. `first_loss`: to which later
    losses are related; None: none has been told.
    """

    epoch: int = 0
    batches: tuple[int, ...] = ()
    steps: int = 0
    weight: float = 0.0
    first_loss: float | None = None


class Reached(Message, frozen=True, array_like=True, tag=True):
    """A worker contributes to a turn of its steps: how far its script was before this step, and is behind it.

    Its parents keep the last of them, for the case that it is started again. `step`: in the policy's count, -1: of a
    call that is no step, behind which the script goes on there.
    """

    worker: str
    cohort: str
    turn: int
    step: int
    before: Place
    behind: Place


class Attached(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Attach`. Payload: for each slice two int64, the last closed turn of its cohort and of everybody.

    -1 where none has. `standings`: of every cohort to which it belongs. `reached`: what it has told before it was
    started again, the newest last. Without payload the run is fresh. Otherwise the current values follow as `Update`s.
    `roster`: the newest, None: that of the description. `begins`: workers below that have come back, and the first
    turns in which they take part; `left`: workers below that have left, and their last turns.
    """

    standings: dict[str, Standing] = msgspec.field(default_factory=dict)
    reached: tuple[Reached, ...] = ()
    size: int = 0
    roster: Roster | None = None
    begins: tuple[Turns, ...] = ()
    left: tuple[Turns, ...] = ()


class Hyper(Message, frozen=True, array_like=True, tag=True):
    """The hyper-parameters of one parameter group, sent before the first push that names their digest."""

    digest: bytes
    values: Hyperparameters


class Reading(NamedTuple):
    """How far a script is: passes over its data that have ended, batches of the next, and steps that it has taken.

    Where nobody trains in a turn, it is no step: its weight is 0.
    """

    passes: int = 0
    batches: int = 0
    steps: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether a pass has ended, and nothing has been read since."""
        return self.passes > 0 and not self.batches


UNREAD = Reading()


class Push(Message, frozen=True, array_like=True, tag=True):
    """A contribution to one slice in one turn, on its way up."""

    turn: int
    slice: int
    kind: Kind
    operation: str  # the call of the user's script, for the message when workers disagree: `step()`
    weight: float
    origins: dict[str, int]
    present: bytes | None
    hyper: bytes  # digest of the group's hyper-parameters; empty: no opinion
    reading: Reading  # what every origin inside has read of its data, behind this
    cohort: str = ""
    step: int = -1  # in the policy's count: where whoever joins has to go on; -1: of a call that is no step
    planes: tuple[
        str, ...
    ] = ()  # `assign` alone: what lies behind the weights; see node/slices/slice_state.py
    scalars: tuple[tuple[str, tuple[float, ...]], ...] = ()  # `assign` alone: see optim/contract.py
    size: int = 0
    beside: Beside | None = None  # given by the connection that sends it so
    together: bytes = b""  # a bitmap of slices: these of the turn count all, or none; see `rounds/turn.py`
    relative_loss: float | None = None  # of `run.loss`, to each worker's first: the mean by weight
    awaits: bool = False  # everybody is awaited, where else a quorum is enough
    drains: bool = False  # of no turn, and dense: what a node that leaves has not shared; see `HandedOver`
    table: int = 0  # of the overlay, by which it travels; 0: to its holder


class Update(Message, frozen=True, array_like=True, tag=True):
    """The answer to a slice's pushes, on its way down to their cohort. `weight`: their sum, 0: nobody contributed.

    Without payload nothing changed. `receipt`: which blocks of the receiver's own push were added, a bitmap as in
    `geomx.wire.presence`; None: all that it has sent. `base`: of a delta, the version to which it adds, and of values
    that a joiner is sent, theirs; a version is the turn of the update that has made it. `missed`: the workers without
    whom the turn has closed, and whose contributions to it come later; a bitmap as in `Roster`.
    """

    turn: int
    slice: int
    kind: Kind
    weight: float
    present: bytes | None
    reading: Reading  # as in `Push`
    cohort: str = ""
    size: int = 0
    receipt: bytes | None = None
    beside: Beside | None = None  # as in `Push`
    step: int = -1  # likewise
    base: int = -1
    missed: bytes = b""
    table: int = 0  # of the overlay, by which it travels, and what the receiver pushes next of the slice


Carried = Push | Update  # the messages whose payloads may travel in datagrams


class Stepped(Message, frozen=True, array_like=True, tag=True):
    """To the first shard: a worker has taken its `steps`-th step towards round `turn`, which took so many seconds."""

    worker: str
    turn: int
    steps: int
    seconds: float


class Sampled(Message, frozen=True, array_like=True, tag=True):
    """To the first shard: digests of the samples that a worker begins with, by their places in its party's data."""

    worker: str
    digests: dict[int, bytes]


class Calling(Message, frozen=True, array_like=True, tag=True):
    """To every shard: all workers below the sender have come to call `turn` of the whole run, and step no further."""

    turn: int


class Allowance(Message, frozen=True, array_like=True, tag=True):
    """From the first shard: how many steps a worker may take before it contributes to round `turn`."""

    worker: str
    turn: int
    steps: int


class Advice(Message, frozen=True, array_like=True, tag=True):
    """From the first shard: what a worker's user should know of the run, and do."""

    worker: str
    text: str


class Norms(Message, frozen=True, array_like=True, tag=True):
    """Between shards: the square sums of a cohort's mean gradient, slice by slice, for `clip_norm`."""

    cohort: str
    turn: int
    squares: dict[int, float]


class Scale(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to the others: the square sum over all slices."""

    cohort: str
    turn: int
    square: float


class Fetch(Message, frozen=True, array_like=True, tag=True):
    """Asks for what belongs in a checkpoint: a slice's optimizer state, or what the edges of a server hold back.

    `of`: the optimizer at the root; the same with its weights, where parties have others; the root's edges; the same
    with the exact weights, since nobody below has them; or the edges of the server of the name `server`.
    """

    token: int
    slice: int
    of: Of = "optimizer"
    server: str = ""


class State(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Fetch`. Payload: the planes in this order, each of the slice's elements.

    See `geomx.node.slices.slice_state`.
    """

    token: int
    slice: int
    planes: tuple[str, ...]
    scalars: tuple[tuple[str, tuple[float, ...]], ...]
    size: int


class Ack(Message, frozen=True, array_like=True, tag=True):
    """Every message numbered up to `received` has arrived: it need not be kept for a resend."""

    received: int


class Beat(Message, frozen=True, array_like=True, tag=True):
    """The heartbeat, sent when nothing else was. `received`: as in `Ack`. `sent`: the last number given.

    `still_s`: for so many seconds nothing has happened at the sender, nor below it, while every worker there waited
    inside geomx; 0: something does, or may. See `geomx.node.peers.stillness`. `step`: upwards, how many steps of the
    policy the slowest worker below has taken, where they are local; -1: that is not known.
    """

    received: int
    sent: int
    still_s: float
    step: int = -1


class Leave(Message, frozen=True, array_like=True, tag=True):
    """The sender's origins take no part in turns after the last of each cohort to which they belong.

    `early`: they were asked to leave, and others go on.
    """

    turns: dict[str, int]
    origins: tuple[str, ...]
    early: bool = False


class Failure(Message, frozen=True, array_like=True, tag=True):
    """The run cannot go on; travels over the whole tree, so that every node ends and says why."""

    node: str
    error: str  # the name of the class in geomx.errors
    reason: str


class Gone(Message, frozen=True, array_like=True, tag=True):
    """The last word of a node that has left, and knows that its parent has heard so: nobody needs to wait for it."""


AnyMessage = (
    Challenge | Hello | Welcome | Refuse | Attach | Reached | Attached | Hyper | Push | Update | Stepped
    | FlowOpen | FlowBroken | Sampled | Calling | Allowance | Advice | Norms | Scale | Fetch | State | Ack | Beat
    | Leave | Gone | Failure | Complete | Close | Roster | Lost | Asks | Hold | Held | Over | Retire | Departed
    | Keep | Kept | Recall | Recalled | Begun | Table | Linked | Apart | Void | Use | Strayed | Rates
    | Unanswered | Request | Response | Told | Present
)  # fmt: skip

HEAD_LIMIT_BYTES = 65_535

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)

decode_head = _decoder.decode


def encode_head(message: Message) -> bytes:
    """A message's header. Raises `ValueError` where it is longer than one can be."""
    head = _encoder.encode(message)
    if len(head) > HEAD_LIMIT_BYTES:
        raise ValueError(
            f"{type(message).__name__} has a header of {len(head)} bytes; at most {HEAD_LIMIT_BYTES} fit"
        )
    return head


def payload_size(message: Message) -> int:
    """How many raw bytes follow the header."""
    size = getattr(message, "size", 0)
    return 0 if getattr(message, "beside", None) is not None else int(size)
