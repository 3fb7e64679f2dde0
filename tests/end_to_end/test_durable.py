"""A global server that has a store is killed and started again: the weights are the bits of the undisturbed run."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest
from fault_rows import USUAL
from real_runs import RealRun

pytestmark = pytest.mark.processes
STEPS = 60
CODECS = {
    "dense": (),
    "int8": ("wan.codec_up=int8", "wan.codec_down=int8"),
    "bisparse": ("wan.codec_up=bisparse ratio=0.1", "wan.codec_down=bisparse ratio=0.1"),
    "lan int8": ("lan.codec_up=int8", "lan.codec_down=int8"),
}


def weights(folder: Path, settings: tuple[str, ...], shards: int, kill: str = "") -> set[str]:
    """What the workers' weights are in the end. `kill`: whom to kill twice amid the steps, and start again."""
    is_cut = "store.every_s=0.1" in settings
    folder.mkdir()
    run = RealRun(folder, STEPS, shards=shards)
    every = (
        *USUAL,
        "run.on_loss=wait",
        "run.wait_s=60",
        "limits.start_s=60",
        f"store.url=file://{folder}/store",
        *settings,
    )
    with closing(run):
        run.start(run.nodes, *every)
        for at in (10, 30) if kill else ():
            run.until("B/0", f"step {at}\n")
            assert bool(list((folder / "store").rglob("cut-*"))) == is_cut
            run.signal(kill, signal.SIGKILL)
            run.processes[kill].join()
            run.start([kill], *every)
        for node in run.nodes:
            run.processes[node].join(120)
            assert run.processes[node].exitcode == 0, run.printed(node)
        assert not list((folder / "store").rglob("*-*"))  # the run has ended well
        return {
            line
            for name in run.workers
            for line in run.printed(name).splitlines()
            if line.startswith("weights ")
        }


@pytest.mark.parametrize(
    ("codec", "shards", "kill", "every_s"),
    [
        pytest.param("dense", 1, "global/0", 60.0),
        pytest.param("int8", 2, "global/1", 0.1),
        *(
            pytest.param(codec, shards, kill, every_s, marks=pytest.mark.faults)
            for codec in CODECS
            for shards, kill in ((1, "global/0"), (2, "global/0"))
            for every_s in (0.1, 60.0)
            if (codec, shards, every_s) != ("dense", 1, 60.0)
        ),
    ],
)
def test_the_weights_are_those_of_the_undisturbed_run(
    tmp_path: Path, codec: str, shards: int, kill: str, every_s: float
) -> None:
    calm = weights(tmp_path / "calm", CODECS[codec], shards)
    assert len(calm) == 1
    killed = weights(tmp_path / "killed", (*CODECS[codec], f"store.every_s={every_s}"), shards, kill)
    assert killed == calm
