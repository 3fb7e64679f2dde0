"""The page's tables."""

from benchmarks import tables
from benchmarks.cells import Cell, Result
from benchmarks.page import measured
from benchmarks.tables import Table


def result(system="geomx", config="dense", hub="own site", parties=2, where="lab", **figures):
    cell = Cell(system, config, "cnn-1m", 1_068_490, "100mbit-30ms", parties=parties, hub=hub, where=where)
    return Result.of(cell, **figures)


def cells(line):
    return [each.strip().replace("\N{NO-BREAK SPACE}", " ") for each in line.strip("|").split("|")]


def test_the_fastest_stands_first_and_is_compared_with_geomx():
    lines = tables.rounds(
        [result(round_s_median=0.5), result("ddp", "fp16", "none", round_s_median=0.25)]
    ).lines()
    head, _, first, second = map(cells, lines)
    assert (first[0], second[0]) == ("PyTorch DDP, fp16", "geomx, dense")
    assert (first[head.index("× geomx")], second[head.index("× geomx")]) == ("0.50", "1.00")


def test_who_was_not_measured_is_named_with_the_reason():
    lines = tables.rounds(
        [result(round_s_median=0.5), result("mxnet", "2-bit", "A", state="it does not install")]
    ).lines()
    assert "- MXNet, 2-bit, servers in party A: it does not install" in lines


def test_steps_of_systems_that_synchronise_seldom_are_compared_not_rounds():
    seldom = result("torchft", "DiLoCo, every 10", "none", round_s_median=1.0)
    seldom.every = 10
    head, _, first, _ = map(cells, tables.rounds([result(round_s_median=0.5), seldom]).lines())
    assert first[head.index("seconds a step")] == "0.100"


def test_cpu_is_a_round():
    head, _, row = map(
        cells, tables.rounds([result(round_s_median=0.5, rounds=10, cpu_s={"A": 1.0, "B": 2.0})]).lines()
    )
    assert row[head.index("CPU s a round")] == "0.300"


def test_who_did_not_reach_the_target_is_named():
    lines = tables.accuracy(
        [result(to_accuracy_s=100.0, accuracy=0.85), result("flower", "FedAvg, H = 1", "A", state="slow")]
    ).lines()
    assert any("Flower" in line and "slow" in line for line in lines)
    assert cells(lines[2])[2] == "100"


def test_the_simulator_stands_beside_the_same_number_of_parties():
    real = result(parties=4, round_s_median=1.1, rounds=10, cpu_s={"global/0": 2.0})
    lines = tables.scale(
        [real, result("simulated", parties=4, where="simulator", round_s_median=1.0)]
    ).lines()
    assert cells(lines[2]) == ["4", "1.10", "1.00", "+10%", "–", "0.200"]


def test_imitated_links_stand_beside_the_lab():
    pair = [result(round_s_median=0.4), result(where="loopback", round_s_median=0.38)]
    alone = [result(parties=1, round_s_median=0.2), result(parties=1, where="loopback", round_s_median=0.2)]
    lines = tables.fallback([*pair, *alone]).lines()
    assert cells(lines[2])[1:] == ["2", "0.400", "0.380", "-5%"]
    assert cells(lines[3])[1:] == ["1", "0.200", "0.200", "+0%"]


def test_the_page_says_which_load_and_versions_figures_were_taken_with():
    turns = [{"at": "2026-01-02T03:04:05", "load": 1.5, "state": "ok", "round_s_median": 0.5}]
    text = measured([result(turns=turns, commit="abc", versions={"cores": "2", "torch": "2.13.0"})])
    assert "1.5" in text
    assert "abc" in text
    assert "torch 2.13.0" in text


TABLE = Table(
    ["system", "servers in", "seconds"],
    [["one", "A", "1"], ["one", "B", "2"], ["other", "A", "3"]],
    ["slow, servers in party A: it was stopped: twice", "late: it was not"],
)


def test_some_rows_and_columns_are_chosen_in_the_order_that_they_have():
    found = TABLE.chosen(["seconds", "system"], ["other", "one; B", "slow"])
    assert found.columns == ["system", "seconds"]
    assert found.rows == [["one", "2"], ["other", "3"]]
    assert found.missing == TABLE.missing[:1]
    assert TABLE.chosen() == TABLE


def test_a_cell_is_found_by_the_name_of_its_row():
    assert TABLE.cell("one; B", "seconds") == "2"
    assert TABLE.cell("nobody", "seconds") == "–"


def test_numbers_are_set_to_the_right_and_words_to_the_left():
    assert TABLE.lines()[:3] == ["| system | servers in | seconds |", "|---|---|---:|", "| one | A | 1 |"]
