"""From steps to figures."""

import json
from dataclasses import replace

import pytest

from benchmarks.cells import Cell, Result, read_results, write_results
from benchmarks.grounds import Way
from benchmarks.measures import (
    Turn,
    measured_span,
    percentile,
    ratio_to_floor,
    reached,
    read_steps,
    result_of,
    round_times,
)

WAYS = [Way(100, 100, 0.03)]


def cell_of(**more):
    settings = {"rounds_a_turn": 4, "warmup": 1, "parties": 2, "workers": 1, "batch": 10} | more
    return Cell("geomx", "dense", "cnn-179k", 1000, "100mbit-30ms", **settings)


def steps_of(cell, step_s=0.5, start=100.0, bytes_up=300, bytes_down=200):
    """A worker's lines: the first step is slow, as it is where a connection warms up."""
    lines = [{"t": start, "step": 0, "sent": 0, "received": 0}]
    for step in range(1, cell.steps + 1):
        line = {"t": start + 9 + step_s * step, "step": step}
        lines.append(line | {"sent": bytes_up * step, "received": bytes_down * step})
    return lines


def turn_of(cell, **more):
    return Turn("now", 0.5, steps={name: steps_of(cell, **more) for name in cell.worker_names})


@pytest.mark.parametrize("every", [1, 10])
def test_a_round_has_the_steps_between_two_synchronisations_and_those_of_the_warm_up_do_not_count(every):
    cell = cell_of(every=every)
    assert round_times(turn_of(cell).steps, cell) == pytest.approx([0.5 * every] * 4 * 2)
    assert result_of(cell, [turn_of(cell)], WAYS).step_s == pytest.approx(0.5)


def test_turns_are_pooled_bytes_are_a_round_and_a_party_and_samples_are_those_of_all_workers():
    cell = cell_of()
    turns = [turn_of(cell, step_s=0.4), turn_of(cell, step_s=0.6), Turn("now", 0.5, "it hung")]
    result = result_of(cell, turns, WAYS)
    assert (result.rounds, result.is_ok, "it hung" in result.note) == (8, True, True)
    assert result.round_s_median == pytest.approx(0.5)
    assert [turn.get("round_s_median") for turn in result.turns[:2]] == pytest.approx([0.4, 0.6])
    assert (result.wan_bytes_up, result.wan_bytes_down) == (300, 200)
    assert result_of(cell, [turn_of(cell)], WAYS).samples_per_s == pytest.approx(2 * 10 / 0.5)


def test_a_round_into_which_an_evaluation_fell_is_left_out_for_every_worker():
    cell = cell_of()
    turn = turn_of(cell)
    third = turn.steps["A/0"][3]
    turn.steps["A/0"].insert(4, third | {"accuracy": 0.5, "until": third["t"] + 0.1})
    assert len(round_times(turn.steps, cell)) == 2 * 3


@pytest.mark.parametrize(("moved", "own"), [(300, 300), (9000, 4000), (0, 4000)])
def test_the_ratio_is_to_the_floor_of_the_bytes_that_were_moved(moved, own):
    """A codec's are fewer than the dense ones, which are 4,000; where none were counted, they stand for them."""
    cell = cell_of()
    result = result_of(cell, [turn_of(cell)], WAYS)
    assert result.floor_s == pytest.approx(0.03 + 8 * 4000 / 100e6)
    result = replace(result, wan_bytes_up=moved, wan_bytes_down=moved / 2)
    assert ratio_to_floor(result, WAYS) == pytest.approx(0.5 / (0.03 + 8 * own / 100e6))


def test_a_cell_none_of_whose_turns_succeeded_says_why():
    result = result_of(cell_of(), [Turn("now", 0.5, "B/0 ended with status 1")], WAYS)
    assert not result.is_ok
    assert result.state == "B/0 ended with status 1"
    assert result.round_s_median is None


def test_the_span_that_all_workers_share_is_measured():
    cell = cell_of()
    steps = {"A/0": steps_of(cell, start=100.0), "B/0": steps_of(cell, start=100.2)}
    assert measured_span(steps, cell) == pytest.approx((109.7, 111.5))


def test_nothing_is_measured_where_a_worker_did_not_warm_up():
    cell = cell_of()
    assert measured_span({"A/0": steps_of(cell), "B/0": steps_of(cell)[:2]}, cell) is None


class TestTheTarget:
    cell = cell_of(target_accuracy=0.85, evaluate_every=2)

    def steps(self, *looks):
        """Lines of both workers, with what the first saw at its looks of 2 s: (step, accuracy)."""
        mine, theirs, paused = [], [], 0.0
        for before in steps_of(self.cell):
            line = before | {"t": before["t"] + paused}
            mine.append(line)
            theirs.append(line)
            for step, accuracy in looks:
                if step == line["step"]:
                    paused += 2.0
                    mine.append(line | {"accuracy": accuracy, "until": line["t"] + 2.0})
        return {"A/0": mine, "B/0": theirs}

    def test_is_reached_at_the_first_look_that_shows_it_and_looking_takes_no_time(self):
        steps = self.steps((2, 0.7), (4, 0.9))
        found = reached(steps, self.cell)
        assert found.accuracy == 0.9
        assert found.seconds == pytest.approx(9 + 4 * 0.5)
        assert reached(self.steps((2, 0.84)), self.cell) is None
        result = result_of(self.cell, [Turn("now", 0.5, steps=steps)], WAYS)
        assert result.samples_per_s == pytest.approx(2 * self.cell.batch / 0.5)

    def test_the_clock_starts_with_whoever_begins_last(self):
        steps = self.steps((4, 0.9))
        steps["B/0"][0] = steps["B/0"][0] | {"t": 103.0}
        assert reached(steps, self.cell).seconds == pytest.approx(-3 + 9 + 4 * 0.5)

    def test_bytes_of_a_hub_in_its_own_site_are_seen_where_they_arrive_and_between_parties_once(self):
        for hub, moved in (("own site", 300 + 200), ("A", 300)):
            assert reached(self.steps((4, 0.9)), replace(self.cell, hub=hub)).wan_bytes == 2 * 4 * moved


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    line = json.dumps({"t": 1.0, "step": 0})
    (tmp_path / "A.0.steps.jsonl").write_text(f"{line}\n{line[:5]}")
    assert read_steps(tmp_path, ["A/0", "B/0"]) == {"A/0": [{"t": 1.0, "step": 0}]}


@pytest.mark.parametrize(("share", "value"), [(0.95, 19), (0.5, 10), (1.0, 20)])
def test_a_percentile_is_a_value_that_was_seen(share, value):
    assert percentile(list(range(1, 21)), share) == value


def test_results_come_back_from_their_lines(tmp_path):
    result = Result.of(cell_of(), round_s_median=0.123456789, cpu_s={"A": 0.5})
    path = tmp_path / "suite.jsonl"
    path.write_text(result.line() + "\n")
    (back,) = read_results(path)
    assert back.round_s_median == 0.123457
    assert back.cpu_s == {"A": 0.5}
    assert back.shape == "2×1"


def test_a_cell_takes_the_place_of_itself_alone(tmp_path):
    path = tmp_path / "suite.jsonl"
    here = Cell("geomx", "dense", "synthetic", 10, "100mbit-30ms")
    elsewhere = [replace(here, **more) for more in ({"network": "unequal"}, {"hub": "A"}, {"config": "fp16"})]
    peer = replace(here, system="ddp", config="fp32", hub="none")
    cells = [here, *elsewhere, peer]
    write_results(path, [Result.of(cell, round_s_median=float(place)) for place, cell in enumerate(cells)])
    write_results(path, [Result.of(here, round_s_median=9.0)])
    assert [result.round_s_median for result in read_results(path)] == [1.0, 2.0, 3.0, 4.0, 9.0]
    assert here.sitting == peer.sitting == read_results(path)[-1].sitting != elsewhere[0].sitting
    assert here.identity == read_results(path)[-1].identity


def test_what_is_run_again_alone_stands_beside_the_sittings_raw_sockets(tmp_path):
    path = tmp_path / "suite.jsonl"
    here = Cell("geomx", "dense", "synthetic", 10, "100mbit-30ms")
    raw, peer = replace(here, system="raw", config="sockets"), replace(here, system="ddp", hub="none")
    write_results(path, [Result.of(raw, round_s_median=2.0), Result.of(here)])
    write_results(path, [Result.of(here), Result.of(peer)])
    assert [result.raw_floor_s for result in read_results(path)] == [2.0, 2.0, 2.0]


def test_cpu_seconds_are_of_as_many_rounds_as_are_counted():
    cell = cell_of()
    fast, slow = steps_of(cell, step_s=0.25), steps_of(cell, step_s=1.0, start=99.25)
    turn = Turn("now", 0.5, steps={"A/0": fast, "B/0": slow}, cpu_s={"A": 0.3, "B": 0.1})
    assert measured_span(turn.steps, cell) == pytest.approx((109.25, 110.25))
    result = result_of(cell, [turn], WAYS)
    assert result.cpu_s == pytest.approx({"A": 0.3, "B": 0.1})  # of all 4 rounds of A
    late = Turn("now", 0.5, steps={"A/0": fast, "B/0": steps_of(cell, start=100.25)}, cpu_s={"A": 0.3})
    assert measured_span(late.steps, cell) == pytest.approx((109.75, 110.25))
    assert result_of(cell, [late], WAYS).cpu_s == pytest.approx({"A": 0.6})  # of 2 of its 4
