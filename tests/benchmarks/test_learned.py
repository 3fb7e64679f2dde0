"""What came of training with codecs, put together."""

from benchmarks import sweep, tables


def row(config, optimizer, seed, accuracy, up):
    return {
        "config": config, "model": "cnn-179k", "parameters": 178_762, "optimizer": optimizer, "rounds": 940,
        "seed": seed, "accuracy": accuracy, "wan_bytes_up": up, "wan_bytes_down": up, "codec_up": "", "took_s": 1.0,
    }  # fmt: skip


def test_seeds_are_put_together_and_stand_beside_dense(tmp_path):
    rows = [row("dense", "Adam", seed, 0.88 + 0.01 * seed, 800_000) for seed in range(3)]
    rows += [row("int4", "Adam", seed, 0.88, 100_000) for seed in range(3)]
    rows += [row("top-k", "SGD", 0, 0.8, 10_000)]
    sweep.keep(tmp_path / "rows.jsonl", rows)
    table = tables.learned(sweep.grouped(sweep.rows_of(tmp_path / "rows.jsonl"), "config")).lines()
    assert table[2] == "| dense | 89.00% | 88.00% | 90.00% | +0.00 | 0.8 | 0.8 | 1 |"
    assert table[3] == "| int4 | 88.00% | 88.00% | 88.00% | -1.00 | 0.1 | 0.1 | 8 |"
    assert table[4].endswith("| – | 0.01 | 0.01 | – |")  # there is no dense run with SGD


def test_without_a_file_there_is_nothing(tmp_path):
    assert sweep.rows_of(tmp_path / "none.jsonl") == []
