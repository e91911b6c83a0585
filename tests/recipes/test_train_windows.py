"""The training programs for sequences, goals, frames, prior data and values: what they learn from, and exact resumption."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
import torch
import view_data
from gymnasium.utils.env_checker import check_env
from tensordict import TensorDict

from datasets_rl import RecordEpisodes, downloading, load
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.steps.forms import CompressImages
from datasets_rl.recipes.results import point_maze, push
from datasets_rl.recipes.train import program_files, read_arguments
from datasets_rl.storages import compressed
from datasets_rl.transforms import CatFrames

SMALL = ["--batch-size", "8", "--eval-episodes", "1"]
TINY = {
    "dt": [*SMALL, "--hidden", "8", "--length", "4"],
    "diffusion_policy": [*SMALL, "--hidden", "8", "--denoise-steps", "2"],
    "act": [*SMALL, "--hidden", "8", "--heads", "2", "--style", "2", "--chunk", "3"],
    "rlpd": [*SMALL, "--hidden", "8", "--start", "190"],
    "gc_iql": [*SMALL, "--hidden", "8"],
    "gcbc": [*SMALL, "--hidden", "8"],
    "hiql": [*SMALL, "--hidden", "8"],
    "dqn_atari": [*SMALL, "--channels", "4", "4", "4", "--hidden", "8", "--eval-steps", "5", "--copy-every", "1"],
    "ope": [*SMALL, "--hidden", "8", "--policy", "policy.pt"],
}
STEPS = dict.fromkeys(TINY, (2, 4)) | {"rlpd": (200, 400)}
"""The steps of the first part of a run, and of the whole run; those of an online program end with an episode."""


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "train-home"
    monkeypatch.setenv("RLDS_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """Return the folder of datasets of the maze, of the disc that is pushed, and of an ALE game."""
    folder = tmp_path_factory.getbasetemp() / "train-home" / "local"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(folder.parent))
        point_maze.gather("local/tiny-maze", episodes=2, seed=0, noise=0.5)
        push.gather("local/tiny-push", episodes=2, seed=0, noise=6.0)
        record_pong("local/tiny-pong", steps=12)
    return folder


def record_pong(dataset, steps):
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    env = RecordEpisodes(gymnasium.make("ALE/Pong-v5", obs_type="grayscale"), dataset)
    env.reset(seed=0)
    for step in range(steps):
        env.step(step % 6)
    env.close()


def record_game(env, dataset):
    env = RecordEpisodes(env, dataset)
    env.reset(seed=0)
    for step in range(6):
        env.step(step % 6)
    env.close()


FRAMES = {
    "raw": ((210, 160, 3), (12, 210, 160)),
    "small": ((84, 84), (4, 84, 84)),
    "stacks": ((84, 84, 4), (4, 84, 84)),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("frames", FRAMES)
def test_dqn_trains_on_frames_and_stacks_of_real_games(frames, tmp_path, monkeypatch):
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    if frames == "small":
        pytest.importorskip("cv2", reason="pip install 'datasets-rl[atari]'")
        env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1), noop_max=0)
    else:
        env = gymnasium.make("ALE/Pong-v5")
    record_game(env, "local/pong")
    dataset = load("local/pong")
    if frames == "stacks":
        dataset = dataset.derive("atari_dqn")
    stored, read = FRAMES[frames]
    assert tuple(dataset[0]["observation"].shape) == dataset.make_env().observation_space.shape == stored

    name = "local/pong@atari_dqn" if frames == "stacks" else "local/pong"
    words = ["--dataset", name, "--out", str(tmp_path / "run"), "--steps", "2", "--eval-every", "2"]
    result = program("dqn_atari").main([*words, *TINY["dqn_atari"]])
    weights = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["networks"]["network.0.weight"]
    assert np.isfinite([value for value in result.values() if isinstance(value, float)]).all()
    assert weights.shape[1] == read[0]


class Blink(gymnasium.Env):
    """A bright square in one of two corners; the reward is 1 for the number of the corner."""

    observation_space = gymnasium.spaces.Box(0, 255, (68, 68), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return self.image(), {}

    def step(self, action):
        reward = float(action == self.corner)
        return self.image(), reward, False, False, {}

    def image(self):
        self.corner = int(self.np_random.integers(2))
        image = np.zeros((68, 68), np.uint8)
        image[60 * self.corner :, 60 * self.corner :][:8, :8] = 255
        return image


@pytest.mark.slow
def test_dqn_continues_online_with_a_compressed_ring_and_resumes_there(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    monkeypatch.setattr(compressed, "_TRAINING_FRAMES", 20)
    monkeypatch.setitem(
        gymnasium.registry, "Blink-v0", gymnasium.envs.registration.EnvSpec("Blink-v0", Blink, max_episode_steps=20)
    )
    env = RecordEpisodes(gymnasium.make("Blink-v0"), "local/blink")
    for seed in range(3):
        env.reset(seed=seed)
        for step in range(20):
            env.step(step % 2)
    env.close()
    load("local/blink").derive(CompressImages(), name="small")

    def run(out, steps):
        words = ["--dataset", "local/blink@small", "--out", str(tmp_path / out), "--steps", str(steps)]
        words += ["--eval-every", "20", "--offline-fraction", "0.5", "--start", "10", "--ring", "50"]
        return program("dqn_atari").main([*words, *TINY["dqn_atari"]])

    run("whole", 80)
    run("parts", 40)
    result = run("parts", 80)

    assert result["step"] == 80
    assert_same_networks(tmp_path / "whole", tmp_path / "parts")


def test_dqn_learns_without_an_environment_from_recorded_actions(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    with RecordEpisodes(gymnasium.wrappers.TimeLimit(Blink(), 20), "local/blink") as env:
        for seed in range(3):
            env.reset(seed=seed)
            for _ in range(20):
                env.step(0)

    words = ["--dataset", "local/blink", "--out", str(tmp_path / "run"), "--steps", "2", "--no-eval"]
    result = program("dqn_atari").main([*words, *TINY["dqn_atari"]])

    assert result["step"] == 2


@pytest.mark.slow
def test_dqn_goes_online_only_with_an_environment_and_frames(tmp_path, gathered):
    del gathered
    words = ["--dataset", "local/tiny-pong", "--out", str(tmp_path), "--offline-fraction", "0.5", "--no-eval"]
    with pytest.raises(SystemExit):
        program("dqn_atari").main(words)


def test_a_stack_of_the_program_is_that_of_the_batches(tmp_path, monkeypatch):
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    record_game(gymnasium.make("ALE/Pong-v5"), "local/pong")
    dataset = load("local/pong")
    images = program("dqn_atari").Images(dataset)
    frames = [dataset[row]["observation"].numpy() for row in range(6)]
    dataset.append_transform(CatFrames(4, images.axis, in_keys=["observation"], padding="same"))

    for row in range(6):
        seen = [frames[0]] * 4 + frames[1 : row + 1]
        stack = images.stack([frame[None] for frame in seen])
        oracle = (
            np.stack(seen[-4:]).transpose(0, 3, 1, 2).reshape(12, 210, 160)
        )  # color c of frame f is channel 3 f + c
        assert torch.equal(stack[0], dataset[[row]]["observation"][0])
        np.testing.assert_allclose(images.first(stack)[0].numpy(), oracle / 255, atol=1e-6)


def program(name):
    return importlib.import_module(f"datasets_rl.recipes.train.{name}")


DATASETS = {**dict.fromkeys(("gc_iql", "gcbc", "hiql"), "local/tiny-maze"), "dqn_atari": "local/tiny-pong"}


def train(name, out, steps, *words):
    dataset = DATASETS.get(name, "demo/pendulum")
    if name == "ope":
        policy = out.parent / "policy"
        small = ["--hidden", "8", *SMALL, "--steps", "2", "--eval-every", "2"]
        program("bc").main(["--dataset", dataset, "--out", str(policy), *small])
        words = ["--policy", str(policy / "checkpoint.pt"), *words]
    every = str(STEPS[name][0])
    arguments = ["--dataset", dataset, "--out", str(out), "--steps", str(steps), "--eval-every", every]
    return program(name).main([*arguments, *TINY[name], *words])


def agent_of(name, dataset, *words, **more):
    module = program(name)
    args = module.parse_arguments(["--dataset", "demo/pendulum", *TINY[name], *words])
    return module.Agent(dataset, gymnasium.spaces.Box(-2.0, 2.0, (1,)), args, **more)


POLICIES = ("act", "diffusion_policy")
"""The programs that read images and vectors in windows."""


def train_on_images(name, out, steps, *words, dataset="local/tiny-push"):
    arguments = [
        "--dataset",
        str(dataset),
        "--out",
        str(out),
        "--steps",
        str(steps),
        "--eval-every",
        "2",
        "--threads",
        "1",
    ]
    return program(name).main([*arguments, *TINY[name], *words])


@pytest.mark.slow
@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_of_images_and_states_is_evaluated_and_resumes_exactly(name, tmp_path):
    result = train_on_images(name, tmp_path / "whole", 4)
    train_on_images(name, tmp_path / "parts", 2)
    train_on_images(name, tmp_path / "parts", 4)

    assert result["observed"] == "observation.agent_pos [2], observation.pixels [96, 96, 3]"
    assert {"return", "success"} <= result.keys()
    assert 0 <= result["data_seconds"] <= result["train_seconds"] + 0.1
    assert_same_networks(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("gathered", "warm_python")
@pytest.mark.parametrize("name", ["act", pytest.param("diffusion_policy", marks=pytest.mark.slow)])
def test_a_killed_run_on_images_ends_with_the_weights_of_an_uninterrupted_one(name, tmp_path):
    words = [
        "--dataset",
        "local/tiny-push",
        "--eval-every",
        "2",
        *TINY[name],
        "--threads",
        "1",
        "--out",
        str(tmp_path / "killed"),
    ]
    command = ["-m", "datasets_rl.cli", "train", "--import", push.__name__, name, *words, "--steps", "1000000"]
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    limit = time.monotonic() + 240
    while not (tmp_path / "killed" / "checkpoint.pt").exists():
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < limit
        time.sleep(0.01)
    child.kill()
    child.communicate()

    step = torch.load(tmp_path / "killed" / "checkpoint.pt", weights_only=True)["step"]
    for run in ("killed", "whole"):
        train_on_images(name, tmp_path / run, step + 2)
    assert_same_networks(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.first(1)
@pytest.mark.parametrize("name", POLICIES)
def test_the_form_of_images_on_disk_makes_no_difference(name, tmp_path):
    """The cameras have the same images: as pixels, compressed, as PNG files, and as a video without loss."""
    view_data.cameras_dataset(tmp_path / "cameras", lengths=(9, 14))
    found = []
    for form in view_data.CAMERAS:
        keys = ["--keys", f"observation.images.{form}"]
        train_on_images(name, tmp_path / form, 2, *keys, dataset=tmp_path / "cameras")
        state = torch.load(tmp_path / form / "checkpoint.pt", weights_only=True)["networks"]
        found.append({key.replace(form, "camera"): value for key, value in state.items()})

    first, *others = found
    assert all(other.keys() == first.keys() for other in others)
    assert all(torch.equal(value, other[key]) for other in others for key, value in first.items())


@pytest.mark.first(1)
@pytest.mark.parametrize("name", POLICIES)
def test_all_cameras_of_nested_keys_are_seen(name, tmp_path):
    view_data.cameras_dataset(tmp_path / "cameras", lengths=(9, 14))
    result = train_on_images(name, tmp_path / "run", 2, dataset=tmp_path / "cameras")

    assert result["observed"] == ", ".join(
        f"observation.images.{form} [24, 24, 3]" for form in sorted(view_data.CAMERAS)
    )


def write_robot_files(source, folder):
    """Write a dataset of LeRobot with a video and PNG images, or one of robomimic with two cameras; return its id."""
    if source == "lerobot":
        pytest.importorskip("av", reason="pip install av")
        from raw import lerobot

        lerobot.write_new(folder, [lerobot.draw(length, seed) for seed, length in enumerate((9, 7, 8))])
        return "lerobot/me/arm_new", folder
    from raw import robomimic

    draw = np.random.default_rng(0)
    demos = {number: robomimic.draw(draw, 8, images=32) for number in range(3)}
    robomimic.write_file(folder / "image.hdf5", demos, robomimic.write_robomimic)
    return "robomimic/lift-images", folder / "image.hdf5"


@pytest.mark.first(1)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("source", ["lerobot", "robomimic"])
def test_the_cameras_of_robot_datasets_train_with_a_validation_loss(source, name, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    dataset, files = write_robot_files(source, tmp_path / "files")
    downloading.download(dataset, from_local=files)
    result = train_on_images(name, tmp_path / "run", 2, dataset=dataset)

    seen = {"lerobot": ("image.top", "image.wrist", "state"), "robomimic": ("agentview_rgb", "eye_in_hand_rgb")}
    assert all(f"observation.{camera} [" in result["observed"] for camera in seen[source])
    assert math.isfinite(result["validation_loss" if name == "diffusion_policy" else "validation_l1"])


def test_act_averages_what_it_predicted_for_a_step_and_trusts_the_oldest_most():
    agent = agent_of("act", load("demo/pendulum"), "--ensemble", "0.5")
    plans = torch.arange(12.0).reshape(4, 1, 3, 1)  # made in step t, for the steps t, t + 1 and t + 2
    remaining = iter(plans)
    agent.predict = lambda *_: next(remaining)
    policy = agent.start_policy()
    found = [float(policy(np.zeros((1, 3), np.float32), np.zeros(1), {})[0, 0]) for _ in range(4)]

    weights = np.exp(-0.5 * np.arange(3))
    means = [np.average(values, weights=weights[: len(values)]) for values in ([0], [1, 3], [2, 4, 6], [5, 7, 9])]
    expected = agent.outputs.denormalize(torch.tensor(means)[:, None]).flatten()
    assert found == pytest.approx(expected.tolist(), abs=1e-5)


def test_act_learns_nothing_from_actions_after_the_end_of_an_episode():
    agent = agent_of("act", load("demo/pendulum"), "--dropout", "0")
    observation, action = torch.randn(4, 3), torch.randn(4, 3, 1)
    is_pad = torch.tensor([[False, False, True]]).expand(4, -1)
    changed = torch.where(is_pad[..., None], 100.0, action)
    losses = []
    for chunk in (action, changed):
        torch.manual_seed(0)
        agent.learning = False
        losses.append(agent.update({"observation": observation, "action": chunk, "is_pad": is_pad}, 1))

    assert all(torch.equal(losses[0][name], losses[1][name]) for name in ("l1", "divergence"))


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space")
def test_the_expert_pushes_the_disc_to_the_goal_and_only_the_image_shows_the_disc(gathered):
    check_env(gymnasium.make("datasets_rl/Push-v0").unwrapped, skip_render_check=True)
    dataset = load(gathered / "tiny-push")
    last = dataset.episodes.stops - 1
    assert dataset[last.tolist()]["next", "reward"].min() >= push.COVERED
    assert dataset[last.tolist()]["next", "terminated"].all()

    env = gymnasium.make("datasets_rl/Push-v0").unwrapped
    first, _ = env.reset(seed=0)
    env.disc = env.disc + 30
    moved, *_ = env.step(env.pusher.astype(np.float32))
    assert np.array_equal(first["agent_pos"], moved["agent_pos"])
    assert not np.array_equal(first["pixels"], moved["pixels"])


@pytest.mark.slow
def test_act_learns_to_push_from_images(tmp_path):
    push.gather("local/slow-push", episodes=100, seed=0, noise=6.0)
    words = ["--dataset", "local/slow-push", "--steps", "400", "--eval-every", "400", "--eval-episodes", "20"]
    result = program("act").main([*words, "--batch-size", "16", "--out", str(tmp_path)])

    assert result["success"] >= 10  # without training, it never pushes the disc to the goal


def assert_same_networks(first, second):
    first, second = (torch.load(out / "checkpoint.pt", weights_only=True)["networks"] for out in (first, second))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("name", TINY)
def test_a_program_trains_evaluates_and_prints_its_result_as_one_line(name, tmp_path, capsys):
    result = train(name, tmp_path / "run", STEPS[name][0])
    printed = capsys.readouterr().out.splitlines()

    assert json.loads(printed[-1]) == result
    assert (result["algorithm"], result["step"]) == (name, STEPS[name][0])
    assert np.isfinite([value for value in result.values() if isinstance(value, float)]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("name", ["dt", *(pytest.param(one, marks=pytest.mark.slow) for one in TINY if one != "dt")])
def test_a_run_in_two_parts_ends_with_the_weights_of_one_run(name, tmp_path):
    first, whole = STEPS[name]
    train(name, tmp_path / "whole", whole)
    train(name, tmp_path / "parts", first)
    train(name, tmp_path / "parts", whole)

    assert_same_networks(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.first(1)
@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("name", ["gcbc", *(one for one in TINY if one not in {"gcbc", "rlpd"})])
def test_a_run_on_a_mixture_in_two_parts_ends_with_the_weights_of_one_run(name, tmp_path):
    dataset = DATASETS.get(name, "demo/pendulum")
    members = "".join(f'[[member]]\ndataset = "{dataset}"\nweight = {weight}\n' for weight in (0.7, 0.3))
    (tmp_path / "mix.toml").write_text(members)
    words, (first, whole) = ["--dataset", str(tmp_path / "mix.toml")], STEPS[name]
    train(name, tmp_path / "whole", whole, *words)
    train(name, tmp_path / "parts", first, *words)
    result = train(name, tmp_path / "parts", whole, *words)

    assert result["shared"][0]["episodes"] > 0

    assert_same_networks(tmp_path / "parts", tmp_path / "whole")


def test_a_decision_transformer_sees_earlier_actions_only():
    agent = agent_of("dt", load("demo/pendulum")).eval()
    sequence = [torch.randn(1, 4, size) for size in (1, 3, 1)]
    times = torch.arange(4)[None]
    before = agent(*sequence, times)
    sequence[2][:, 1] += 1
    changed = (agent(*sequence, times) != before).flatten()

    assert changed.tolist() == [False, False, True, True]


def test_diffusion_policy_returns_the_actions_that_a_perfect_network_denoises_to():
    agent = agent_of("diffusion_policy", load("demo/pendulum"), "--observe", "2", "--horizon", "5", "--execute", "3")
    clean = torch.linspace(-0.8, 0.8, 5)[None]

    def perfect(actions, level, given):
        del given
        kept = agent.kept[level][:, None]
        return (actions - kept.sqrt() * clean) / (1 - kept).sqrt()

    agent.average.forward = perfect
    actions = agent.denoise({"observation": torch.zeros(1, 2, 3)}, torch.Generator().manual_seed(0))

    expected = agent.outputs.denormalize(clean[0, 1:4, None])  # from the action of the last observation on
    torch.testing.assert_close(actions[0], expected, atol=1e-4, rtol=0)


def test_the_value_of_constant_rewards_is_their_discounted_sum():
    policy = argparse.Namespace(act=lambda states: states[:, :1])
    agent = agent_of("ope", load("demo/pendulum"), "--discount", "0.5", "--tau", "1", "--lr", "0.1", policy=policy)
    for _ in range(60):
        states, following, going = torch.randn(16, 3), torch.randn(16, 3), torch.zeros(16, 1, dtype=torch.bool)
        after = {"observation": following, "reward": torch.full((16, 1), 3.0), "terminated": going}
        agent.update(TensorDict({"observation": states, "action": states[:, :1], "next": after}, [16]), 1)

    found = agent.estimate(torch.randn(50, 3))
    assert found["estimate"] == pytest.approx(3 / (1 - 0.5), rel=0.15)
    assert found["estimate_low"] <= found["estimate"] <= found["estimate_high"]


def test_rlpd_refuses_images_and_dqn_continuous_actions(tmp_path, gathered):
    del gathered
    words = ["--eval-episodes", "1", "--out", str(tmp_path)]
    with pytest.raises(
        InvalidArgumentError, match=r"dqn_atari needs an image.* demo/pendulum has the observation \[3\]"
    ):
        program("dqn_atari").main(["--dataset", "demo/pendulum", *words])
    with pytest.raises(
        InvalidArgumentError, match=r"needs observation as a vector of numbers, .* observation \[210, 160\]"
    ):
        program("rlpd").main(["--dataset", "local/tiny-pong", *words])


def test_the_maze_is_an_environment_whose_walls_stop_the_point(gathered):
    check_env(gymnasium.make("datasets_rl/PointMaze-v0").unwrapped, skip_render_check=True)
    maze = gymnasium.make("datasets_rl/PointMaze-v0").unwrapped
    for task, (start, goal) in enumerate(point_maze.TASKS, 1):
        position, info = maze.reset(seed=0, options={"task_id": task})
        assert np.abs(position - start).max() < 0.25
        assert info["goal"].tolist() == list(goal)
    for _ in range(20):
        position, *_ = maze.step(np.array([1.0, 0.0], np.float32))
    assert 5 < position[0] < 5.5  # the wall begins half a cell after the cell at 5

    cells = np.rint(load(gathered / "tiny-maze")[:]["next", "observation"].numpy()).astype(int)
    assert point_maze.GRID[cells[:, 1], cells[:, 0]].all()


@pytest.mark.slow
def test_goals_that_behavior_cloning_misses_are_reached_by_goal_conditioned_iql(tmp_path):
    point_maze.main(["--dataset", "local/slow-maze"])
    words = ["--dataset", "local/slow-maze", "--eval-every", "3000"]
    learned = program("gc_iql").main([*words, "--out", str(tmp_path / "iql")])
    cloned = program("gc_iql").main([*words, "--out", str(tmp_path / "bc"), "--beta", "0"])

    assert learned["return"] > cloned["return"] + 0.15


@pytest.mark.parametrize("name", [*program_files()])
def test_all_programs_take_the_hidden_layers_by_one_flag(name):
    more = ["--policy", "policy.pt"] if name == "ope" else []
    args = read_arguments(program_files()[name], ["--dataset", "demo/pendulum", *more, "--hidden", "16", "16"])

    assert args.hidden == [16, 16]
    assert not {"width", "layers"} & vars(args).keys()


@pytest.mark.parametrize("name", ["act", "diffusion_policy", "dt"])
def test_layers_of_different_widths_are_refused_where_all_are_equal(name, capsys):
    with pytest.raises(SystemExit):
        read_arguments(program_files()[name], ["--dataset", "demo/pendulum", "--hidden", "16", "32"])

    assert "argument --hidden: the widths are 16 32, expected equal widths" in capsys.readouterr().err
