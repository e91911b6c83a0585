"""RLlib's batches and columns: fragments of episodes, arrays packed as RLlib packs them, and files of damaged batches."""

from __future__ import annotations

import base64
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from layouts import ACTION, LENGTHS, NEXT_OBS, NUMBERS, OBS, REWARD, STEPS, TERMINATED, TRUNCATED
from layouts_tables import ALTERNATING, batches, json_lines, pack

from datasets_rl.errors import ConversionError
from datasets_rl.sources.flat import ray_tables, rllib
from datasets_rl.sources.flat.formats import open_arrays
from datasets_rl.sources.local.files import check_files

WRITTEN = (
    '{"type": "SampleBatch", "obs": "BCJNGGhAoQAAAAAAAACQmAAAAFKABZWWAAEA8hqME251bXB5Ll9jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZl'
    "cpSTlCiWIC8AAwIA8Q6APwAAAEAAAEBAAACAQAAAoEAAAMBAAADgQJSMBVEA8RaUjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////BQDw"
    'BUsAdJRiSwRLAoaUjAFDlHSUUpQuAAAAAA==", "new_obs": "BCJNGGhAoQAAAAAAAACQmwAAAFKABZWWAAEA8hqME251bXB5Ll9jb3JlLm51bWVya'
    "WOUjAtfZnJvbWJ1ZmZlcpSTlCiWIC8AAAIA8RFAAABAQAAAgEAAAKBAAADAQAAA4EAAAABBAAAQQZSMBVEA8RaUjAVkdHlwZZSTlIwCZjSUiYiHlFKUK"
    'EsDjAE8lE5OTkr/////BQDwBUsAdJRiSwRLAoaUjAFDlHSUUpQuAAAAAA==", "actions": [0, 1, 0, 1], "rewards": [0.5, 1.0, 1.5, 2.0],'
    ' "terminateds": [false, true, false, false], "truncateds": [false, false, false, true], "eps_id": [5, 5, 9, 9], "t": [0, 1, 0, 1]}\n'
)
"""What the JsonWriter of Ray 2.60 wrote, with lz4 4.4, of observations 0 to 7."""


def opened(path, values):
    path.write_text(values if isinstance(values, str) else json_lines(values))
    return open_arrays(path, "jsonl", path.name)


def test_a_file_of_rllibs_own_writer_has_its_values(tmp_path):
    with opened(tmp_path / "a.json", WRITTEN) as file:
        np.testing.assert_array_equal(file.read_all("obs"), np.arange(8, dtype=np.float32).reshape(4, 2))
        np.testing.assert_array_equal(file.read_all("new_obs"), np.arange(2, 10, dtype=np.float32).reshape(4, 2))
    found = check_files(tmp_path / "a.json")
    assert (found.episodes, found.steps, found.description.by, found.description.arrays) == (
        2,
        4,
        "column",
        ("eps_id",),
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("order", [range(STEPS), ALTERNATING], ids=["in order", "alternating"])
def test_the_fragments_of_an_episode_are_together_and_in_order(tmp_path, order, size, packed):
    lines = batches(order, size, packed=packed)
    expected = {"obs": OBS, "new_obs": NEXT_OBS, "actions": ACTION, "rewards": REWARD}
    expected |= {"terminateds": TERMINATED, "truncateds": TRUNCATED, "eps_id": NUMBERS + 7}

    with opened(tmp_path / "a.jsonl", lines) as file:
        for name, values in expected.items():
            np.testing.assert_array_equal(file.read_all(name), values)
    found = check_files(tmp_path / "a.jsonl")
    moved = int((np.array(order) != np.arange(STEPS)).sum())
    counts = {decision.rule: decision.count for decision in found.decisions}
    assert found.lengths == {"min": 3, "median": 4, "max": 6}
    assert counts.get("rows-of-episodes-joined", 0) == moved


def test_several_batches_of_a_single_policy_and_empty_batches_are_read(tmp_path):
    several = [
        {
            "type": "MultiAgentBatch",
            "count": 4,
            "policy_batches": {"default_policy": {k: v for k, v in one.items() if k != "type"}},
        }
        for one in batches()
    ]
    empty = {name: "SampleBatch" if name == "type" else [] for name in batches()[0]}
    with opened(tmp_path / "a.json", [*several[:2], empty, *several[2:]]) as file:
        np.testing.assert_array_equal(file.read_all("obs"), OBS)


def test_the_files_of_several_workers_are_a_dataset_without_the_other_json_files(tmp_path):
    for worker in (1, 2):
        lines = batches(eps_id=NUMBERS + 10 * worker)
        (tmp_path / f"output-2026-11-28_10-00-00_worker-{worker}_0.json").write_text(json_lines(lines))
    (tmp_path / "params.json").write_text("{}")

    found = check_files(tmp_path)

    assert (found.description.files, found.episodes, found.steps) == (2, 6, 2 * STEPS)
    assert found.last.steps == LENGTHS[2]


def test_observations_of_several_arrays_have_their_names(tmp_path):
    lines = batches(packed=False)
    for line in lines:
        line["obs"] = pack({"pos": np.array(line["obs"]), "goal": {"x": np.ones(len(line["obs"]))}})
    with opened(tmp_path / "a.json", lines) as file:
        np.testing.assert_array_equal(file.read_all("obs/pos"), OBS)
        assert file.arrays["obs/goal/x"].shape == ()


def changed(line, **columns):
    lines = batches()
    lines[line] |= columns
    return lines


DAMAGED = {
    "a missing step": (
        batches(np.delete(np.arange(STEPS), 6)),
        r"t is 3 after 1 in the episode 8, expected consecutive",
    ),
    "a repeated step": (batches(np.sort([*range(STEPS), 6])), "t is 2 after 2 in the episode 8"),
    "shuffled steps": (batches(np.arange(STEPS)[::-1]), "expected consecutive steps"),
    "several agents": (batches(agent_index=np.arange(STEPS) % 2), "agent_index is 1 after 0 in the episode 7"),
    "no order": ([{k: v for k, v in one.items() if k != "t"} for one in batches(ALTERNATING)], "no column t states"),
    "other columns": (changed(1, more=[1] * 4), "line 2 differs from the first batch in more"),
    "another number of rows": (changed(1, rewards=[0.5]), "line 2 has the columns .*expected equal numbers of rows"),
    "another shape": (changed(1, actions=[[1.0]] * 4), r"actions has rows of the shapes \[1\], \[2\]"),
    "another type": (changed(1, type="Episode"), "line 2 has the type 'Episode'"),
    "two policies": (
        [{"type": "MultiAgentBatch", "policy_batches": {"a": {}, "b": {}}}],
        "has the policies a, b, expected the batch of one policy",
    ),
    "a truncated packed array": (changed(1, obs=batches()[1]["obs"][:-8]), "the packed array is damaged"),
    "a text instead of a packed array": (changed(1, obs="observations"), "the packed array is damaged"),
    "a line that is not JSON": (json_lines(batches()[:2]) + '{"type"', "row 2 is not JSON"),
    "long integers beside fractions": (
        [*batches()[:1], *changed(1, actions=[[2**53 + 1, 2]] * 4)[1:]],
        "actions has integers that float64 does not hold exactly",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_batches_are_refused(tmp_path, name):
    lines, problem = DAMAGED[name]
    with pytest.raises(ConversionError, match=problem):
        opened(tmp_path / "a.json", lines)


class _Call:
    def __reduce__(self):
        return os.system, ("false",)


def test_a_packed_array_calls_nothing_that_its_pickle_names(tmp_path):
    with pytest.raises(ConversionError, match=r"system is not allowed"):
        opened(tmp_path / "a.json", changed(1, obs=pack(_Call())))


def test_a_packed_array_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rllib, "_ARRAYS_MAX_BYTES", 1 << 16)
    with pytest.raises(ConversionError, match="the packed array has more than"):
        opened(tmp_path / "a.json", changed(1, obs=pack(np.zeros(1 << 16))))
    with pytest.raises(ConversionError, match="brings the arrays to more than 65,536 bytes"):
        opened(tmp_path / "a.json", batches(packed=False) * 80)


def columns(obs):
    return {
        "eps_id": [f"{number}" for number in NUMBERS],
        "obs": obs,
        "actions": ACTION.tolist(),
        "rewards": REWARD,
        "terminateds": TERMINATED,
        "truncateds": TRUNCATED,
    }


def test_tensors_of_ray_and_of_arrow_keep_their_axes(tmp_path):
    images = np.arange(STEPS * 24, dtype=np.float32).reshape(STEPS, 2, 3, 4)
    metadata = {"ARROW:extension:name": "ray.data.arrow_tensor_v2", "ARROW:extension:metadata": "[2, 3, 4]"}
    lists = pa.array(images.reshape(STEPS, -1).tolist(), pa.large_list(pa.float32()))
    ray = pa.table(columns(lists))
    field = ray.schema.field("obs").with_metadata(metadata)
    pq.write_table(ray.cast(ray.schema.set(1, field)), tmp_path / "ray.parquet")
    pq.write_table(pa.table(columns(pa.FixedShapeTensorArray.from_numpy_ndarray(images))), tmp_path / "arrow.parquet")

    for name in ("ray.parquet", "arrow.parquet"):
        with open_arrays(tmp_path / name, "parquet", name) as file:
            np.testing.assert_array_equal(file.read_all("obs"), images)
        assert check_files(tmp_path / name).lengths["max"] == max(LENGTHS)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (pack(np.zeros(4)), r"a row is float64 \[4\], expected float64 \[3\]"),
        (pack({"a": 1}), "a row is a dict, expected an array of numbers"),
        (pack(_Call()), "is not allowed"),
        ("BCJNGGhA", "the packed array is damaged"),
        (pack(np.zeros(1 << 16)), "the packed array has more than 65,536 bytes"),
    ],
)
def test_packed_rows_of_another_kind_are_refused(tmp_path, row, problem, monkeypatch):
    monkeypatch.setattr(ray_tables, "_ROW_MAX_BYTES", 1 << 16)
    packed = [pack(values) for values in OBS]
    packed[5] = row
    pq.write_table(pa.table(columns(packed)), tmp_path / "a.parquet")
    with pytest.raises(ConversionError, match=problem):
        check_files(tmp_path / "a.parquet")


def test_episodes_in_msgpack_are_refused_with_the_program_that_converts_them(tmp_path):
    packed = b"\xde\x00\x12\xa3id_\xd9 3649d2d2ef0a4be396b86300d6b35c76\xa8agent_id\xc0"
    pq.write_table(pa.table({"item": [packed] * 3}), tmp_path / "a.parquet")
    with pytest.raises(ConversionError, match="the rows are episodes of RLlib, as msgpack") as caught:
        check_files(tmp_path / "a.parquet")
    program = str(caught.value.hint).split("\n\n")[1]
    assert len(program.strip().splitlines()) == 3
    compile(program, "program", "exec")


def test_other_columns_of_bytes_are_not_taken_for_episodes(tmp_path):
    pq.write_table(pa.table({"item": [b"0" * 64] * 3}), tmp_path / "a.parquet")
    with pytest.raises(ConversionError, match="which array is the observation"):
        check_files(tmp_path / "a.parquet")


def test_the_packed_arrays_of_the_tests_are_those_of_lz4():
    line = json.loads(WRITTEN)
    own = pa.CompressedInputStream(pa.BufferReader(base64.b64decode(line["obs"])), "lz4").read()
    assert pickle.loads(own).tolist() == np.arange(8).reshape(4, 2).tolist()
    assert base64.b64decode(pack(OBS))[:4] == base64.b64decode(line["obs"])[:4]
