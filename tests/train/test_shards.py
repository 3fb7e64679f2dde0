"""Tensors of which a process holds a part: which part, and what goes to and from slices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from geomx.errors import Unsupported
from geomx.train.model.fsdp import check_cut, cut_like, held, held_of, range_of
from geomx.train.model.support import check_model, unwrapped

RANKS = 2


@pytest.fixture(params=range(RANKS))
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """A mesh of two, of which this process is one; the other is imagined."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 (slow)

    dist.init_process_group("fake", rank=request.param, world_size=RANKS, store=FakeStore())
    yield DeviceMesh("cpu", list(range(RANKS)))
    dist.destroy_process_group()


def cut(whole: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """As fully_shard cuts it."""
    chunks = torch.chunk(whole, RANKS)
    rank = mesh.get_local_rank()
    local = chunks[rank] if rank < len(chunks) else whole[:0]
    return DTensor.from_local(
        local.clone(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 65])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranges_are_those_of_chunks(rows: int, ranks: int) -> None:
    whole = torch.arange(rows * 6).view(rows, 3, 2)
    chunks = [*torch.chunk(whole, ranks), *[whole[:0]] * ranks][:ranks]
    stops = [0]
    for rank, chunk in enumerate(chunks):
        start, stop = range_of(whole.shape, rank, ranks)
        assert whole.reshape(-1)[start:stop].tolist() == chunk.reshape(-1).tolist()
        assert start == stops[-1]
        stops.append(stop)
    assert stops[-1] == whole.numel()


@pytest.mark.parametrize("rows", [1, 5])
def test_what_is_held_is_the_local_memory(mesh: DeviceMesh, rows: int) -> None:
    whole = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
    tensor = cut(whole, mesh)
    local, start = held(tensor)
    assert local.data_ptr() == tensor._local_tensor.data_ptr()
    assert local.reshape(-1).tolist() == whole.reshape(-1)[start : start + local.numel()].tolist()
    ours, theirs = held_of(tensor, whole)
    assert torch.equal(ours, theirs)
    assert torch.equal(cut_like(tensor, whole)._local_tensor, local)


def test_other_cuts_are_refused(mesh: DeviceMesh) -> None:
    local = torch.zeros(4, 4)
    for placement in (Shard(1), Replicate()):
        tensor = DTensor.from_local(local, mesh, [placement], run_check=False)
        with pytest.raises(
            Unsupported, match=r"w is a DTensor with placements .*; supported are those that .*fully_shard"
        ):
            check_cut("w", tensor, RANKS)
    even = cut(torch.zeros(4, 4), mesh)
    check_cut("w", even, RANKS)
    with pytest.raises(Unsupported, match="over all 3 workers"):
        check_cut("w", even, 3)
    rows = torch.zeros(1 + 2 * mesh.get_local_rank(), 4)
    uneven = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=(4, 4), stride=(4, 1))
    with pytest.raises(Unsupported, match="no even cut"):
        check_cut("w", uneven, RANKS)


def check(model: nn.Module, ranks: int) -> None:
    check_model(model, torch.optim.SGD(model.parameters(), lr=0.1), ranks)


@pytest.mark.usefixtures("mesh")
def test_wrappers_are_for_parties_whose_workers_reduce_among_themselves() -> None:
    replica = DistributedDataParallel(nn.Linear(3, 2))
    parts = fully_shard(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)))
    for model in (replica, parts):
        check(model, RANKS)
        with pytest.raises(Unsupported, match=r'party\.inside = "collective"'):
            check(model, 0)
    assert unwrapped(replica) is replica.module
    with pytest.raises(Unsupported, match="over 2 of the party's 3 workers"):
        check(replica, 3)
    with pytest.raises(Unsupported, match="wrap the whole model"):
        check(nn.Sequential(replica), RANKS)


@pytest.mark.usefixtures("mesh")
def test_other_kinds_of_fsdp_are_refused() -> None:
    half = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    fully_shard(half[0])
    with pytest.raises(Unsupported, match=r"1\.weight is trained, but not sharded"):
        check(half, RANKS)
    with pytest.raises(Unsupported, match=r"FSDP1.*use torch\.distributed\.fsdp\.fully_shard"):
        check(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")), RANKS)
