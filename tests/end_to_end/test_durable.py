"""A global server that has a store is killed and started again: the weights are the bits of the undisturbed run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from failpoints import KEY, POINTS, struck_command
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


class DurableRun(RealRun):
    """One whose global servers keep logs. `failpoint`: where the first of them dies; see `struck_command`."""

    target = staticmethod(struck_command)
    failpoint = ""

    def _job(self, name: str) -> dict[str, str]:
        point, self.failpoint = (self.failpoint, "") if name == "global/0" else ("", self.failpoint)
        return {**super()._job(name), KEY: point}


def weights(
    folder: Path,
    settings: tuple[str, ...],
    shards: int,
    disturb: Callable[[DurableRun, tuple[str, ...]], None] = lambda run, settings: None,
    failpoint: str = "",
) -> set[str]:
    """What the workers' weights are in the end."""
    folder.mkdir()
    run = DurableRun(folder, STEPS, shards=shards)
    run.failpoint = failpoint
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
        disturb(run, every)
        run.end_well()
        assert not list((folder / "store").rglob("*-*"))  # the run has ended well
        return run.weights()


@pytest.mark.parametrize(
    ("codec", "shards", "kill", "every_s"),
    [
        # With a cut between the two deaths. Without one: `test_standby.py`.
        pytest.param("int8", 2, "global/1", 0.1),
        *(
            pytest.param(codec, shards, kill, every_s, marks=pytest.mark.matrix)
            for codec in CODECS
            for shards, kill in ((1, "global/0"), (2, "global/0"))
            for every_s in (0.1, 60.0)
        ),
    ],
)
def test_the_weights_are_those_of_the_undisturbed_run(
    tmp_path: Path, codec: str, shards: int, kill: str, every_s: float
) -> None:
    def kill_twice(run: DurableRun, every: tuple[str, ...]) -> None:
        for at in (10, 30):
            run.until("B/0", f"step {at}\n")
            deadline = time.monotonic() + (10.0 if every_s < 1.0 else 0.0)
            while not (cuts := list((run.folder / "store").rglob("cut-*"))) and time.monotonic() < deadline:
                time.sleep(0.01)  # a fast machine takes these steps before a cut is due
            assert bool(cuts) == (every_s < 1.0)
            run.signal(kill, signal.SIGKILL)
            run.processes[kill].join()
            run.start([kill], *every)

    calm = weights(tmp_path / "calm", CODECS[codec], shards)
    assert len(calm) == 1
    settings = (*CODECS[codec], f"store.every_s={every_s}")
    assert weights(tmp_path / "killed", settings, shards, kill_twice) == calm


@pytest.mark.matrix
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_they_are_wherever_in_the_code_it_dies(tmp_path: Path, moment: str, point: str, shards: int) -> None:
    """Residuals of both ways included."""
    settings = (*CODECS["bisparse"], "store.every_s=0.1")

    def start_again(run: DurableRun, every: tuple[str, ...]) -> None:
        run.processes["global/0"].join(60)
        assert run.processes["global/0"].exitcode == -signal.SIGKILL, run.report()
        run.start(["global/0"], *every)

    calm = weights(tmp_path / "calm", settings, shards)
    count = {"manifest": 3, "receive": 100}.get(point, 40)
    assert weights(tmp_path / "killed", settings, shards, start_again, f"{moment} {point} {count}") == calm
