"""What a description asks for, may have, and gets in some places only: told, and no fault."""

from __future__ import annotations

from collections.abc import Iterator

from geomx.config.compatibility.lossy_channels import (
    LAN,
    channels_that_lose,
    edge_tables,
    named,
    needing_loss,
)
from geomx.config.reading.problems import KeyPath, dotted, shown
from geomx.config.run import Run
from geomx.sync import policies
from geomx.sync.contract import LocalStep, Policy
from geomx.tree import TOP
from geomx.wire.flow.packets import PIECE_HEAD_BYTES
from geomx.wire.flow.path import SIZES

STEPS_ASKED = 1 << 14  # of a policy, for a mean inside a party
NO_CODEC_OF_ITS_OWN = ("dense", "wan")
TRIED_ELEMENTS = 1 << 20  # of a large tensor
BLOCK_BYTES = SIZES[0] - PIECE_HEAD_BYTES


def notices(run: Run, script: bool = False) -> list[str]:
    """Sentences, without a full stop, about a description whose choices have been checked (`load_whole`).

    `script`: also what the training script would find out in its first step, and a run over several machines in its.
    """
    return [
        *_of_party_means(run),
        *_of_lossy_channels(run),
        *((*_of_overlays(run), *_of_script(run)) if script else ()),
    ]


def _of_overlays(run: Run) -> Iterator[str]:
    where = [(run.run.overlay, "run.overlay", "party.address_wan", [*run.tree.children(TOP)])]
    where.append((run.lan.overlay, "lan.overlay", "party.worker_addresses", [*run.tree.workers]))
    for spec, key, addresses, members in where:
        if spec and spec != "star" and not run.addresses_beside.keys() & set(members):
            yield (
                f"{key} has an effect in `geomx run` alone, which picks addresses: over several machines, nobody can "
                f"be dialled without {addresses}"
            )


def _of_script(run: Run) -> Iterator[str]:
    if needing := needing_loss(run):
        yield f"{needing} needs run.loss(loss) in the script before backward()"


def _of_party_means(run: Run) -> Iterator[str]:
    codecs = [
        f"{key} = {shown(spec)}"
        for key, spec in (("lan.codec_up", run.lan.codec_up), ("lan.codec_down", run.lan.codec_down))
        if spec not in NO_CODEC_OF_ITS_OWN
    ]
    if codecs and _has_party_means(run):
        applies = "apply" if len(codecs) > 1 else "applies"
        yield (
            f"with sync.policy = {shown(run.sync.policy)} the means inside a party are sent dense, since they are "
            f"means of weights; {' and '.join(codecs)} {applies} to exchanges with the global servers only"
        )


def _has_party_means(run: Run) -> bool:
    """Whether local servers answer with means of their own."""
    by_server = any(party.workers > 1 and party.inside == "server" for party in run.parties)
    policy = policies.make(run.sync.policy)
    if not by_server or policy.plans is not LocalStep:
        return False
    return any(_is_party_mean(policy, step) for step in range(STEPS_ASKED))


def _is_party_mean(policy: Policy, step: int) -> bool:
    plan = policy.step(step)
    return isinstance(plan, LocalStep) and plan.average == "party"


def _of_lossy_channels(run: Run) -> Iterator[str]:
    """Where one is no better than TCP, or loses nothing."""
    for path, classes in channels_that_lose(run).items():
        edge = edge_tables(run)[path]
        codec_up = f"{dotted(path)}.codec_up = {shown(edge.codec_up)}"
        if _loses_nothing(run, path):
            yield (
                f"{named(run, path)}: none of its links loses packets in this description, so `tcp` is as "
                "fast and takes less computing; to imitate losses, give a link a `loss` (0.01 is 1 %)"
            )
        if classes.loses and _goes_whole(run, edge.codec_up):
            yield (
                f"{named(run, path)}: slices with {codec_up} are too small for two datagrams, or are not cut into "
                "blocks; such slices are sent until they have arrived, as with `datagram`"
            )
        if classes.loses and path == LAN and _has_party_means(run):
            yield (
                f"with sync.policy = {shown(run.sync.policy)} the means inside a party are sent until they have "
                f"arrived, as with `datagram`; {named(run, path)} applies to exchanges with the global servers only"
            )


def _loses_nothing(run: Run, path: KeyPath) -> bool:
    """Every link of a table's edges is described, and loses nothing."""
    if path == LAN:
        return run.lan.link is not None and not run.lan.link.loss
    edge = edge_tables(run)[path]
    below = [server for server in run.tree.servers if run.edge_above(server) is edge]
    links = [run.link_of(server) for server in below]
    changes = [change.link for server in below for change in run.link_changes_of(server)]
    return all(link is not None and not link.loss for link in links) and not any(c.loss for c in changes)


def _goes_whole(run: Run, codec_up: str) -> bool:
    """Whether slices go in one piece, even those of a large tensor."""
    import torch  # noqa: PLC0415 (only needed where a channel has imported it)

    from geomx.codecs.pack.noise import RngKey  # noqa: PLC0415 (as above)
    from geomx.codecs.returning import for_lossy_channel, takes_back  # noqa: PLC0415
    from geomx.codecs.spec import make_codec  # noqa: PLC0415
    from geomx.layout import Layout, Tensor  # noqa: PLC0415

    tried = (Tensor("tried", (TRIED_ELEMENTS,), "float32"),)
    slice_ = Layout(tried, slice_elements=run.layout.slice_elements or TRIED_ELEMENTS).slices[0]
    codec = for_lossy_channel(make_codec(codec_up, RngKey()))
    payload = codec.encode(slice_, 0, torch.linspace(-1.0, 1.0, slice_.elements))
    return not takes_back(codec, slice_) or len(codec.cut(slice_, payload, BLOCK_BYTES)) < 2
