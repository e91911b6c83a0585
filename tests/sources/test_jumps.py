"""Jumps between rows: found where episodes are joined, and never in a single recording of a simulator."""

from __future__ import annotations

import numpy as np
import pytest

from datasets_rl import download
from datasets_rl.errors import ConversionError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.sources.local.files import check_files, draft_description
from datasets_rl.sources.local.jumps import jump_steps


def moves(rng, rows, dims, hold=15, drag=0.05, gain=0.1):
    """Return positions and velocities of a mass that is pushed, [rows, dims] each. A push is held for some rows."""
    pushes = rng.normal(size=(rows // hold + 1, dims)).repeat(hold, axis=0)[:rows]
    position, velocity = rng.normal(size=dims), np.zeros(dims)
    found = []
    for push in pushes:
        velocity = (1 - drag) * velocity + gain * push
        position = position + gain * velocity
        found.append((position, velocity))
    return (np.array(part) for part in zip(*found, strict=True))


def point_mass(rng, rows):
    return np.hstack([*moves(rng, rows, 2)])


def arm(rng, rows):
    positions, velocities = moves(rng, rows, 7, hold=40, drag=0.3)
    gripper = (np.arange(rows) // 40 % 2)[:, None]
    return np.hstack([positions, velocities, gripper])


def arm_that_rests(rng, rows):
    pushes = rng.normal(size=(rows, 6)) * (rng.random(rows) < 0.01)[:, None]
    smooth = np.apply_along_axis(np.convolve, 0, pushes, np.hanning(30), "same")
    return np.cumsum(smooth, axis=0) * 0.1 + rng.normal(size=(rows, 6)) * 1e-4


def angles(rng, rows):
    _, speed = moves(rng, rows, 3, hold=30)
    return (np.cumsum(0.1 * speed + 0.02, axis=0) + np.pi) % (2 * np.pi) - np.pi


def pendulum(rng, rows):
    angle, speed, found = rng.uniform(-3, 3), rng.normal(), []
    for _ in range(rows):
        speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * rng.uniform(-2, 2)), -8, 8)
        angle += 0.05 * speed
        found.append((np.cos(angle), np.sin(angle), speed))
    return np.array(found)


def quaternion(rng, rows):
    found, quaternion = [], np.array([1.0, 0, 0, 0])
    for row in range(rows):
        turn = np.concatenate([[1], 0.05 * np.sin(row / (20 + np.arange(3))) + 0.01 * rng.normal(size=3)])
        w, *v = quaternion
        quaternion = np.concatenate(
            [[w * turn[0] - v @ turn[1:]], w * turn[1:] + turn[0] * np.array(v) + np.cross(v, turn[1:])]
        )
        quaternion = quaternion / np.linalg.norm(quaternion) * (-1 if row % 70 == 50 else 1)
        found.append(quaternion)
    return np.array(found)


def ball(rng, rows):
    place, speed, found = np.array([0.0, rng.uniform(1, 3)]), np.array([rng.normal(), 0]), []
    for _ in range(rows):
        speed = speed - [0, 0.49]
        place = place + 0.05 * speed
        hit = [abs(place[0]) > 3, place[1] < 0]
        place, speed = np.where([False, hit[1]], -place, place), np.where(hit, -0.9 * speed, speed)
        found.append((*place, *speed))
    return np.array(found)


def car(rng, rows):
    steering, acceleration = (rng.normal(size=rows // 30 + 1).repeat(30)[:rows] for _ in range(2))
    speed = np.clip(1 + np.cumsum(0.01 * acceleration), 0.2, 5)
    heading = np.cumsum(0.02 * steering * speed)
    place = np.cumsum(0.1 * speed[:, None] * np.stack([np.cos(heading), np.sin(heading)], 1), axis=0)
    return np.column_stack([place, (heading + np.pi) % (2 * np.pi) - np.pi, speed])


def goals(rng, rows):
    return np.hstack([*moves(rng, rows, 2), rng.normal(size=(rows // 50 + 1, 4)).repeat(50, axis=0)[:rows]])


def walk(rng, rows):
    return np.cumsum(rng.normal(size=(rows, 4)), axis=0)


def noise(rng, rows):
    return rng.normal(size=(rows, 4))


def attractor(rng, rows):
    (x, y, z), found = rng.normal(size=3) * 5, []
    for _ in range(rows):
        x, y, z = x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)
        found.append((x, y, z))
    return np.array(found)


def grid(rng, rows):
    return np.clip(np.cumsum(rng.integers(-1, 2, size=(rows, 2)), axis=0), -5, 5).astype(float)


def prices(rng, rows):
    return 100 * np.exp(np.cumsum(rng.standard_t(4, size=(rows, 3)) * 0.01, axis=0))


def heating(rng, rows):
    outside = 10 + 8 * np.sin(np.arange(rows) / 144 * 2 * np.pi)
    inside = 20 + np.cumsum(0.02 * rng.normal(size=rows)) + 0.2 * outside
    return np.column_stack([inside, outside, np.arange(rows) % 144])


def sensor_that_drops_out(rng, rows):
    states = point_mass(rng, rows)
    states[rng.integers(20, rows - 20, size=3)] = 0
    return states


def first_row_that_is_empty(rng, rows):
    states = point_mass(rng, rows)
    states[0] = 0
    return states


SIMULATORS = [
    point_mass, arm, arm_that_rests, angles, pendulum, quaternion, ball, car, goals, walk, noise, attractor, grid, prices,
    heating, sensor_that_drops_out, first_row_that_is_empty,
]  # fmt: skip


def false_alarms(simulator, seeds):
    alarms = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        if len(jump_steps(simulator(rng, (100, 300, 1000)[seed % 3]))):
            alarms.append(seed)
    return alarms


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_single_recording_has_no_jumps(simulator):
    assert false_alarms(simulator, range(4)) == []


@pytest.mark.slow
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_of_many_single_recordings_at_most_one_in_a_hundred_has_jumps(simulator):
    assert len(false_alarms(simulator, range(12, 312))) <= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Hopper-v5", "Walker2d-v5", "InvertedPendulum-v5", "Reacher-v5", "Pusher-v5", "Ant-v5"]
)
def test_recordings_of_mujoco_have_no_jumps(name):
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    environment = gymnasium.make(name).unwrapped
    for seed in range(12):
        observation, _ = environment.reset(seed=seed)
        environment.action_space.seed(seed)
        states, action = [], None
        for step in range(500):
            action = environment.action_space.sample() if step % (1 + seed) == 0 else action
            states.append(observation)
            observation = environment.step(action)[0]
        assert not len(jump_steps(np.array(states))), seed


@pytest.mark.parametrize("simulator", [point_mass, arm, car, quaternion, goals, heating])
def test_the_seams_of_joined_episodes_are_jumps(simulator):
    found = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        episodes = [simulator(rng, int(length)) for length in rng.integers(60, 120, size=4)]
        seams = np.cumsum([len(states) for states in episodes])[:-1] - 1
        jumps = jump_steps(np.concatenate(episodes))
        assert {*jumps.tolist()} <= {*seams.tolist()}
        found += len(jumps) > 0
    assert found >= 6


def walk_back(rng, rows):
    """Return a state in which all elements are pushed by an action, and pulled back to zero."""
    state, push = rng.normal(size=4), 0.1 * rng.normal(size=4)
    found = []
    for action in np.tanh(rng.normal(size=rows)):
        found.append(state)
        state = 0.99 * state + action * push
    return np.array(found)


def test_a_seam_that_most_of_four_rough_elements_show_is_a_jump():
    found = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        episodes = [walk_back(rng, rows) for rows in (60, 45, 50, 38)]
        jumps = jump_steps(np.concatenate(episodes))
        assert {*jumps.tolist()} <= {59, 104, 154}
        found += len(jumps) > 0
        assert not len(jump_steps(episodes[0]))
    assert found >= 12


def joined(*lengths):
    """Return the arrays of episodes, of which the observation after each is a state far away."""
    rng = np.random.default_rng(1)
    states = np.concatenate([point_mass(rng, length) + 9 * number for number, length in enumerate(lengths)])
    return {"obs": states, "action": np.zeros(len(states)), "reward": np.zeros(len(states))}


@pytest.fixture
def convert(tmp_path):
    """A function that writes arrays into files and a description, and converts the files."""

    folder = tmp_path / "mine"
    folder.mkdir()

    def run(*files, text=None):
        for number, arrays in enumerate(files):
            np.savez(folder / f"a{number}.npz", **arrays)
        if text is not None:
            (folder / "dataset.toml").write_text(text)
        path = folder / "a0.npz" if len(files) == 1 and text is None else folder
        return StoredDataset(download(str(path), settings=Settings(home=tmp_path / "home", progress=False, jobs=1)))

    return run


def test_a_single_episode_with_jumps_is_refused_until_it_is_stated(convert, tmp_path):
    with pytest.raises(ConversionError, match=r"obs jumps before row 60, 140, as between two episodes") as caught:
        convert(joined(60, 80, 70))

    assert 'by = "file" if the episodes are whole' in str(caught.value.remedy)
    assert "# by = ...    # obs jumps before row 60, 140" in draft_description(tmp_path / "mine" / "a0.npz").text
    assert convert(joined(60, 80, 70), text='[episodes]\nby = "file"').episodes.lengths.tolist() == [210]
    assert check_files(tmp_path / "mine").episodes == 1


def test_a_smooth_recording_is_a_single_episode(convert):
    assert convert(joined(300)).episodes.lengths.tolist() == [300]


def test_files_of_an_episode_each_are_not_searched(convert):
    assert len(convert(joined(60, 80), joined(90)).episodes) == 2


def flagged(arrays, *stops):
    return {**arrays, "dones": np.isin(np.arange(len(arrays["obs"])) + 1, stops)}


def test_a_missing_flag_shows_in_the_longest_episode(convert):
    lengths = [100, 90, 110, 100, 95]
    stops = np.cumsum(lengths)

    with pytest.raises(ConversionError, match="obs jumps before row 190, as between two episodes"):
        convert(flagged(joined(*lengths), *np.delete(stops, 1)))
    assert convert(flagged(joined(*lengths), *stops)).episodes.lengths.tolist() == lengths


def test_a_missing_flag_beside_next_observations_names_the_row_and_the_answer(convert):
    lengths = [100, 90, 110, 100, 95]
    stops = np.cumsum(lengths)
    arrays = joined(*lengths)
    after = np.concatenate([arrays["obs"][1:], arrays["obs"][-1:]])
    after[stops - 1] = arrays["obs"][stops - 1] + 0.01
    arrays = flagged({**arrays, "next_obs": after}, *np.delete(stops, 1))

    problem = r"next_obs of row 189 is not obs of row 190 \(the only such row\): an episode ends there without a flag"
    with pytest.raises(ConversionError, match=problem) as caught:
        convert(arrays)
    assert 'by = "seams"' in str(caught.value.remedy)
    assert convert(arrays, text='[episodes]\nby = "seams"').episodes.lengths.tolist() == lengths


def test_a_jump_in_an_episode_like_the_others_is_no_missing_flag(convert):
    arrays = flagged(joined(50, 50, 100, 100, 100), 100, 200, 300, 400)

    assert convert(arrays).episodes.lengths.tolist() == [100] * 4


@pytest.mark.parametrize("name", ["timestamp", "time", "Timestamps"])
def test_a_clock_that_goes_back_within_an_episode_is_refused(convert, name):
    arrays = joined(300)
    clock = np.concatenate([np.arange(100), np.arange(200)]) * 0.1

    with pytest.raises(ConversionError, match=rf"{name} goes back from 9\.\d+ at row 99 to 0\.0, within an episode"):
        convert({**arrays, name: clock}, text="")
    stored = convert(flagged({**arrays, name: clock}, 100, 300), text="")
    assert stored.episodes.lengths.tolist() == [100, 200]


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ({"episode_returns": np.array([1, 2, 5])}, r"episode_returns is int64 \[3\] and speaks of episodes"),
        ({"episode_returns": np.ones(3)}, r"episode_returns is float64 \[3\] and speaks of episodes"),
        (
            {"episode_bounds": np.array([[0, 60], [60, 300]])},
            r"episode_bounds is int64 \[2, 2\] and speaks of episodes",
        ),
        ({"traj_names": np.array(["a", "b", "c"])}, r"traj_names is text \[3\] and speaks of episodes"),
        ({"episode_infos": np.array([{}, {}], dtype=object)}, r"episode_infos is object \[2\] and speaks of episodes"),
        ({"num_episodes": 3}, "num_episodes is 3, but the file has one episode"),
        ({"infos/episode_id": np.tile([0.5, 1.5, 0.5], 100)}, "episode_id .* speaks of episodes"),
        ({"max_episode_steps": 200}, "an episode has 300 steps, but max_episode_steps is 200"),
    ],
)
def test_a_single_episode_beside_what_speaks_of_episodes_is_refused(convert, others, problem):
    with pytest.raises(ConversionError, match=problem):
        convert({**joined(300), **others})

    assert convert({**joined(300), **others}, text='[episodes]\nby = "file"').episodes.lengths.tolist() == [300]


@pytest.mark.parametrize(
    "others",
    [
        {"episode_return": np.ones(1)},
        {"ep_rets": np.array([7])},
        {"episode_step": np.arange(300)},
        {"num_episodes": 1},
        {"max_episode_steps": 300},
        {"pole_length": np.linspace(0.5, 1, 300)},
        {"episode_name": np.array(["a"])},
    ],
)
def test_what_speaks_of_a_single_episode_agrees_with_it(convert, others):
    assert convert({**joined(300), **others}, text="").episodes.lengths.tolist() == [300]


def test_names_of_episodes_in_each_row_mark_the_episodes(convert):
    stored = convert({**joined(60, 80, 70), "traj_name": np.repeat(["run_9", "run_10", "b"], [60, 80, 70])})

    assert stored.episodes.lengths.tolist() == [60, 80, 70]


def test_names_of_episodes_that_come_back_do_not_mark_episodes(convert):
    with pytest.raises(ConversionError, match=r"traj_name is text .* speaks of episodes"):
        convert({**joined(300), "traj_name": np.repeat(["a", "b", "a"], 100)})
