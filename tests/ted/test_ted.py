"""Keys, the episode table, the conversion of states to transitions, and the rules of TED."""

from __future__ import annotations

import re

import numpy as np
import pytest
from stored_data import Trajectory, columns, trajectory, write_dataset

from datasets_rl import downloading, verify
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.check import check_rules
from datasets_rl.format.schema import Column
from datasets_rl.preprocessing import Recipe
from datasets_rl.preprocessing.run import preprocess
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import as_key, dotted_name, names_among, spelled_key
from datasets_rl.ted.steps import values_after
from datasets_rl.ted.table import EPISODE_DTYPE, EpisodeTable


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("observation", ("observation",)),
        ("next.reward", ("next", "reward")),
        (("next", "reward"), ("next", "reward")),
        (["next", ("info", "qpos")], ("next", "info", "qpos")),
    ],
)
def test_a_key_is_read_from_dots_or_tuples(given, key):
    assert as_key(given) == key
    assert as_key(dotted_name(key)) == key


@pytest.mark.parametrize("given", ["", "a..b", ".a", (), ("a", "")])
def test_an_invalid_key_is_refused(given):
    with pytest.raises(InvalidArgumentError, match="is not a key"):
        as_key(given)


def table_of(*lengths):
    return EpisodeTable.from_lengths(np.array(lengths))


def test_the_table_has_the_rows_of_each_episode():
    table = table_of(4, 2, 3)

    assert table.starts.tolist() == [0, 4, 6]
    assert table.stops.tolist() == [4, 6, 9]
    assert (len(table), table.steps) == (3, 9)
    assert [list(rows) for rows in table] == [[0, 1, 2, 3], [4, 5], [6, 7, 8]]
    assert table.episode_of(np.arange(9)).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    assert table.episode_of(np.array([[8], [0]])).tolist() == [[2], [0]]
    assert int(table.episode_of(5)) == 1
    assert (table.rows(1), table.rows(-1)) == (range(4, 6), range(6, 9))
    assert repr(table) == "EpisodeTable(3 episodes, 9 steps, lengths 2 to 4)"
    with pytest.raises(IndexError):
        table.rows(3)


@pytest.mark.parametrize(
    ("episodes", "rows"),
    [
        ([0, 2], [0, 1, 2, 3, 6, 7, 8]),
        (np.array([-1, 1]), [6, 7, 8, 4, 5]),
        (range(1, 3), [4, 5, 6, 7, 8]),
        (np.array([False, True, False]), [4, 5]),
        ([], []),
    ],
    ids=str,
)
def test_the_table_has_the_rows_of_several_episodes(episodes, rows):
    found = table_of(4, 2, 3).rows(episodes)

    assert (found.tolist(), found.dtype) == (rows, np.int64)
    with pytest.raises(IndexError):
        table_of(4, 2, 3).rows([0, 3])


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([1], [2]), ([0, 2], [3, 1]), ([0, 4], [3, 1]), ([0, 3], [3, 0]), ([0], [-1]), ([0, 2], [2, -2])],
)
def test_episodes_are_contiguous_from_row_0(starts, lengths):
    records = np.zeros(len(starts), EPISODE_DTYPE)
    records["start"], records["length"] = starts, lengths

    with pytest.raises(InvalidArgumentError, match="expected contiguous episodes"):
        EpisodeTable(records)


def test_lengths_whose_sum_wraps_around_are_refused():
    """Four times 2 to the 62 overflows to 0 in 64 bits, so five rows would seem to fit the file."""
    with pytest.raises(InvalidArgumentError, match="expected contiguous episodes"):
        table_of(1 << 62, 1 << 62, 1 << 62, 1 << 62, 5)


def test_a_table_without_its_fields_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"lacks the fields .*'return'"):
        EpisodeTable(np.zeros(1, [("start", "<i8"), ("length", "<i8")]))


def test_metadata_are_the_fields_that_do_not_follow_from_the_rows():
    records = np.array([(0, 3, 1.5, 7, True, "pick")], [*EPISODE_DTYPE.descr, ("task", "U8")])

    assert EpisodeTable(records).metadata_names == ["source", "task"]


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("stop", range(7))
def test_the_next_state_is_the_next_row_or_the_final_state(start, stop):
    rows = np.array([10, 11, 12, 20, 30, 31])
    final_states = np.array([13, 21, 0])
    following = [11, 12, 13, 21, 31, 0]

    if start <= stop:
        assert values_after(rows, final_states, table_of(3, 1, 2), start, stop).tolist() == following[start:stop]


@pytest.mark.parametrize(
    ("states", "known"),
    [
        ({("observation",): 4, ("info", "x"): 3}, True),
        ({("observation",): 3, ("info", "x"): 4}, False),
        ({("observation", "a"): 4, ("observation", "b"): 3}, False),
    ],
)
def test_the_end_is_known_if_the_observation_is(states, known):
    steps = {("action",): np.zeros((3, 1))}
    episode = Episode(steps, {key: np.zeros((length, 2)) for key, length in states.items()})

    assert len(episode) == 3
    assert episode.final_known is known


@pytest.fixture
def rules(tmp_path):
    """Check the rules on a dataset with some column values replaced."""
    whole = [trajectory(4), trajectory(3, seed=1, known=False), trajectory(2, seed=2, terminated=True)]
    stored = write_dataset(tmp_path, whole)

    def check(**changes):
        def column(key, start, stop):
            values = np.array(stored.column(key))
            for row, value in changes.get("__".join(key), {}).items():
                values[row] = value
            return values[start:stop]

        return check_rules(stored.schema, stored.episodes, column)

    return check


def test_a_dataset_as_written_breaks_no_rule(rules):
    findings = rules()

    assert findings.problems == []
    assert findings.remarks == ["the final observation of 1 of 3 episodes is unknown (zeros)"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"next__done": {1: True}}, "next.done is True inside an episode: row 1"),
        ({"next__done": {1: True}}, r"next.done is not next.terminated \| next.truncated: row 1"),
        ({"next__done": {3: False}}, "next.done is False on the last row of an episode: row 3"),
        ({"next__truncated": {6: False}}, r"next.done is not next.terminated \| next.truncated: row 6"),
        ({"episode": {4: 0, 8: 7}}, "episode is not the number .*: row 4 and 1 more"),
        ({"next__observation": {5: 9}}, "next.observation is not observation of the next row .*: row 5"),
        ({"next__observation": {6: 9}}, "next.observation is not zeros where the final state is unknown: row 6"),
        ({"next__reward": {2: 50}}, "the return of episode 0 is"),
    ],
)
@pytest.mark.parametrize("rows_of_a_block", [1, 2, 100])
def test_a_broken_rule_is_named_with_its_first_row(rules, monkeypatch, rows_of_a_block, changes, problem):
    monkeypatch.setattr("datasets_rl.format.check._BLOCK_BYTES", rows_of_a_block * 40)
    findings = rules(**changes)

    assert len(findings.problems) == 1 + (list(changes) == ["next__done"])
    assert any(re.match(problem, one) for one in findings.problems)


def test_suspicious_values_are_reported_and_allowed(rules):
    findings = rules(observation={1: np.nan}, next__observation={0: np.nan}, action={8: np.inf})

    assert findings.problems == []
    assert "observation is NaN or infinite: row 1" in findings.remarks
    assert "action is NaN or infinite: row 8" in findings.remarks
    assert "observation is all zeros: row 2" in rules(observation={2: 0}, next__observation={1: 0}).remarks


def test_a_jump_inside_an_episode_is_reported(tmp_path):
    walk = np.arange(41, dtype=np.float32)[:, None].repeat(3, 1)
    walk[20:] += 1000
    whole = trajectory(40)
    stored = write_dataset(tmp_path, [Trajectory(whole.steps, {("observation",): walk})])

    assert "observation jumps more than 20 times the median step inside an episode: row 19" in (
        check_rules(stored.schema, stored.episodes, stored.column).remarks
    )


def jumps_of(folder, walk):
    one = trajectory(len(walk) - 1)
    stored = write_dataset(folder, [Trajectory(one.steps, {("observation",): walk.astype(np.float32)})])
    return check_rules(stored.schema, stored.episodes, stored.column).remarks


def test_a_phase_of_long_steps_is_not_a_jump(tmp_path):
    """A pendulum swings up within 30 steps and then hardly moves for 170."""
    angle = np.concatenate([np.linspace(0, 3, 31), 3 + np.linspace(0, 1e-3, 170)])
    walk = np.stack([np.cos(angle), np.sin(angle), angle], axis=1)
    usual = np.median(np.linalg.norm(np.diff(walk, axis=0), axis=1))
    assert np.linalg.norm(walk[1] - walk[0]) > 1000 * usual

    assert jumps_of(tmp_path / "smooth", walk) == []
    walk[100:] += 1
    assert jumps_of(tmp_path / "cut", walk) == [
        "observation jumps more than 20 times the median step inside an episode: row 99"
    ]


@pytest.mark.parametrize("row", [1, 2, 39])
def test_a_jump_at_the_border_of_an_episode_is_reported(tmp_path, row):
    walk = 1 + np.arange(41.0)[:, None].repeat(3, 1)
    walk[row:] += 1000

    (remark,) = jumps_of(tmp_path, walk)
    assert remark.endswith(f"row {row - 1}")


@pytest.mark.parametrize("percent", [10, 20, 50])
def test_the_best_episodes_of_the_demo_have_no_false_jumps(tmp_path, percent):
    """Upright pendulums hardly move, so the median step is tiny."""
    folder = downloading.download("demo/pendulum", root=tmp_path / "demo")
    preprocess(folder, Recipe.inline([f"keep_top_returns:{percent}", "normalize"]), out=tmp_path / "best")

    found = verify(tmp_path / "best", deep=True)

    assert found.problems == ()
    assert [one for one in found.remarks if "jumps" in one] == []


def test_observations_that_are_all_nan_are_judged_without_a_warning(tmp_path):
    """NumPy warns about the median of an empty array; with -W error `rlds verify --deep` would fail."""
    whole = trajectory(5)
    nothing = np.full((6, 3), np.nan, np.float32)
    stored = write_dataset(tmp_path, [Trajectory(whole.steps, {("observation",): nothing})])

    findings = check_rules(stored.schema, stored.episodes, stored.column)
    assert findings.remarks == ["observation is NaN or infinite: row 0 and 4 more"]


def test_wide_and_boolean_observations_are_checked(tmp_path):
    of = [Column(("observation",), np.dtype("?"), (3000,), shared=True), *columns()[1:]]
    whole = trajectory(4)
    shown = np.ones((5, 3000), bool)
    stored = write_dataset(tmp_path, [Trajectory(whole.steps, {("observation",): shown})], of)

    assert check_rules(stored.schema, stored.episodes, stored.column).problems == []


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_a_dataset_of_one_row_is_checked(tmp_path, length, wide):
    of = [Column(("observation",), np.dtype("?"), (3000,), shared=True), *columns()[1:]] if wide else columns()
    whole = trajectory(length)
    states = {("observation",): np.ones((length + 1, 3000), bool)} if wide else whole.states
    stored = write_dataset(tmp_path, [Trajectory(whole.steps, states)], of)

    assert check_rules(stored.schema, stored.episodes, stored.column).problems == []


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("a.b", [("a", "b")], ("a", "b")),
        ("a.b", [("a.b",)], ("a.b",)),
        (("a", "b"), [("a.b",)], ("a.b",)),
        (("a.b",), [("a", "b")], ("a", "b")),
        ("a.b", [("a.b",), ("a", "b")], ("a.b",)),
        (("a", "b"), [("a.b",), ("a", "b")], ("a", "b")),
        ("a.b", [("a", "b", "c")], ("a", "b")),
        ("a.b.c", [("a.b", "c")], ("a.b", "c")),
        ("a.b.c", [("a", "x"), ("a.b", "c")], ("a.b", "c")),
        ("a.c", [("a.b",)], ("a.c",)),
        ("a.c", [("a", "b")], ("a", "c")),
        ("a.c", [("x",)], ("a", "c")),
        (("a", "c"), [("a.b",)], ("a", "c")),
        ("next.a.c", [("next", "a.b")], ("next", "a.c")),
        ("a..b", [("x",)], ("a..b",)),
    ],
)
def test_a_name_with_dots_is_spelled_as_the_data_spells_it(name, known, expected):
    assert spelled_key(name, names_among(known)) == expected
