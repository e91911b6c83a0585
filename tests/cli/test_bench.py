"""The command ``rlds bench``."""

KINDS = [
    "bare copy",
    "sample",
    "batches(64)",
    "slices of 32",
    "3-step targets",
    "chunks of 16 actions",
    "stacks of 4",
]


def test_bench_measures_each_kind_of_batch_beside_a_bare_copy(rlds, stored):
    shown = rlds("bench", stored, "-n", 32, "--seconds", 0, "--json").json

    assert (shown["id"], shown["batch_size"], shown["threads"]) == ("demo/pendulum", 32, 1)
    assert [one["kind"] for one in shown["kinds"]] == KINDS
    assert all(one["us"] > 0 and one["steps_per_s"] > 0 for one in shown["kinds"])
    assert shown["kinds"][0]["times_floor"] == 1


def test_bench_prints_a_table_and_leaves_out_what_the_batch_size_does_not_allow(rlds, stored):
    printed = rlds("bench", "demo/pendulum", "-n", 20, "--seconds", 0)

    assert (printed.code, stored.exists()) == (0, True)
    kinds = [line.split("\t")[0] for line in printed.out.splitlines()[2:]]
    assert kinds == [kind for kind in KINDS if kind != "slices of 32"]


def test_bench_names_a_dataset_that_is_not_stored(rlds):
    missing = rlds("bench", "demo/pendulum")
    assert (missing.code, missing.out) == (3, "")
    assert "rlds download demo/pendulum" in missing.err
