"""Whether a worker is amid its data, as far as its run knows; and what the others are told of its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_runs import batch, begin, descend, train

from geomx.errors import RunFailed
from geomx.train import LiveRun


def test_a_loop_that_was_left_is_amid_data_until_the_script_goes_on(tmp_path: Path) -> None:
    batches = [batch(index, 3) for index in range(6)]

    def script(run: LiveRun) -> list[bool]:
        model, optimizer = begin(run)
        seen = [run.is_amid_data]

        def leave() -> None:
            for data in run.shard(batches):
                descend(model, optimizer, *data)
                break
            seen.append(run.is_amid_data)

        leave()
        run.save(tmp_path / "model.safetensors")
        seen.append(run.is_amid_data)
        leave()
        list(run.shard(batches, train=False))
        seen.append(run.is_amid_data)
        for data in run.shard(batches):
            descend(model, optimizer, *data)
        return [*seen, run.is_amid_data]

    results, _ = train([2], script)
    assert results["A/0"] == results["A/1"] == [False, True, False, True, False, False]


def test_a_block_that_exits_with_status_0_leaves_in_order() -> None:
    batches = [batch(index, 3) for index in range(6)]

    def script(run: LiveRun) -> int:
        model, optimizer = begin(run)
        steps = 0
        for data in run.shard(batches):
            descend(model, optimizer, *data)
            steps += 1
            if run.name == "A/1":
                run.__exit__(SystemExit, SystemExit(0), None)
                break
        return steps

    results, _ = train([2], script)
    assert results == {"A/0": 3, "A/1": 1}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SystemExit(3), "its script ended with status 3"),
        (SystemExit("no data"), "its script ended with status no data"),
        (KeyboardInterrupt(), r"it was asked to end \(SIGINT\)"),
        (ValueError("boom"), "ValueError: boom"),
        (AssertionError(), "AssertionError$"),
    ],
)
def test_the_others_are_told_what_ended_a_script(error: BaseException, why: str) -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        for number in range(3):
            if number == 1 and run.name == "A/1":
                run.__exit__(type(error), error, None)
                return
            run.weight(3)
            descend(model, optimizer, *batch(number, 3))

    with pytest.raises(RunFailed, match=f"failed at A/1: {why}"):
        train([2], script)
