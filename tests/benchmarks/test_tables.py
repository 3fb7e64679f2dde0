"""The page's tables, and what is put together over seeds."""

from benchmarks import sweep, tables
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
        [
            result(round_s_median=0.5, rounds=10, cpu_s={"A": 1.0, "B": 2.0}),
            result("ddp", "fp16", "none", round_s_median=0.25),
        ]
    ).lines()
    head, _, first, second = map(cells, lines)
    assert (first[0], second[0]) == ("PyTorch DDP, fp16", "geomx, dense")
    assert (first[head.index("× geomx")], second[head.index("× geomx")]) == ("0.50", "1.00")
    assert second[head.index("CPU s a round")] == "0.300"


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


def learned_row(config, optimizer, seed, accuracy, up):
    return {
        "config": config, "model": "cnn-179k", "parameters": 178_762, "optimizer": optimizer, "rounds": 940,
        "seed": seed, "accuracy": accuracy, "wan_bytes_up": up, "wan_bytes_down": up, "codec_up": "", "took_s": 1.0,
    }  # fmt: skip


def test_seeds_are_put_together_and_stand_beside_dense(tmp_path):
    rows = [learned_row("dense", "Adam", seed, 0.88 + 0.01 * seed, 800_000) for seed in range(3)]
    rows += [learned_row("int4", "Adam", seed, 0.88, 100_000) for seed in range(3)]
    rows += [learned_row("top-k", "SGD", 0, 0.8, 10_000)]
    sweep.keep(tmp_path / "rows.jsonl", rows)
    table = tables.learned(sweep.grouped(sweep.rows_of(tmp_path / "rows.jsonl"), "config")).lines()
    assert table[2] == "| dense | 89.00% | 88.00% | 90.00% | +0.00 | 0.8 | 0.8 | 1 |"
    assert table[3] == "| int4 | 88.00% | 88.00% | 88.00% | -1.00 | 0.1 | 0.1 | 8 |"
    assert table[4].endswith("| – | 0.01 | 0.01 | – |")  # there is no dense run with SGD
    assert sweep.rows_of(tmp_path / "none.jsonl") == []


def seed_of(algorithm, seed, to_80, to_88):
    found = {"algorithm": algorithm, "scenario": "slow party", "seed": seed}
    for target, seconds in (("80%", to_80), ("88%", to_88)):
        found |= {f"to_{target}_s": seconds, f"to_{target}_wan_bytes": seconds and 2e6 * seconds}
    return found


def test_medians_over_seeds_the_fastest_first():
    rows = [
        *(seed_of("FSA", seed, 30.0 + seed, 200.0) for seed in range(3)),
        *(seed_of("Downpour", seed, 100.0, None) for seed in range(3)),
        *(seed_of("ESync", seed, 15.0, 100.0 if seed else None) for seed in range(3)),
    ]
    seeds = sweep.grouped(rows, "algorithm")
    assert tables.median(seeds["Downpour"], 0.88, "s") is None
    table = tables.unequal(seeds).lines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["ESync", "FSA", "Downpour"]
    assert table[2] == "| ESync | 15.0 | 2.07 | 30 | 100 | 2.00 | 200 |"
    assert table[4] == "| Downpour | 100 | 0.31 | 200 | – | – | – |"
