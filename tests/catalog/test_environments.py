"""The environment that a dataset names: from its specification, its metadata or the catalog."""

from __future__ import annotations

import json
import sys

import gymnasium
import numpy as np
import pytest

from datasets_rl import Manifest, RecordEpisodes, load
from datasets_rl.catalog.environments import NamedEnvironment, make_env, named_environment
from datasets_rl.errors import EnvironmentWarning, InvalidArgumentError, MissingDependencyError
from datasets_rl.format.schema import Schema


def manifest(dataset_id="local/own", **metadata):
    return Manifest(dataset_id, 0, 0, 0, Schema(()), (), metadata=metadata)


def recorded(env, tmp_path):
    env = RecordEpisodes(env, "local/own", root=tmp_path)
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.close()
    return load("local/own", root=tmp_path)


def test_the_demo_is_of_pendulum(tmp_path):
    env = load("demo/pendulum", root=tmp_path).make_env(g=5.0)

    assert env.spec.id == "Pendulum-v1"
    assert env.unwrapped.g == 5.0


def test_a_recorded_environment_is_made_again_with_its_arguments_and_wrappers(tmp_path):
    env = gymnasium.make("Pendulum-v1", g=5.0, max_episode_steps=7)
    again = recorded(gymnasium.wrappers.TimeAwareObservation(env), tmp_path).make_env()

    assert (again.unwrapped.g, again.observation_space.shape) == (5.0, (4,))
    again.reset(seed=0)
    assert [again.step(again.action_space.sample())[3] for _ in range(7)] == [False] * 6 + [True]


def test_an_environment_with_arguments_that_json_does_not_have_is_named_by_its_id(tmp_path):
    env = gymnasium.wrappers.ClipReward(gymnasium.make("Pendulum-v1", g=np.float32(5)), -1.0, 1.0)

    assert recorded(env, tmp_path).make_env().spec.id == "Pendulum-v1"


def test_of_a_vector_environment_one_environment_is_made(tmp_path):
    again = recorded(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), tmp_path).make_env()

    assert again.observation_space.shape == (4,)


class _Own(gymnasium.Wrapper):
    pass


def test_a_wrapper_of_the_program_that_recorded_is_named(tmp_path):
    dataset = recorded(_Own(gymnasium.make("Pendulum-v1")), tmp_path)

    with pytest.warns(UserWarning, match="the wrapper _Own of .* is not applied: wrap the environment yourself"):
        assert dataset.make_env().spec.id == "Pendulum-v1"


def test_the_specification_for_evaluation_comes_first():
    specs = {name: json.dumps({"id": env}) for name, env in (("env_spec", "A-v0"), ("eval_env_spec", "B-v0"))}

    assert named_environment(manifest(**specs, environment="C-v0")) == NamedEnvironment("B-v0")
    assert named_environment(manifest(environment="C-v0")) == NamedEnvironment("C-v0")
    assert named_environment(manifest("d4rl/hopper-medium-v2")) == NamedEnvironment("Hopper-v2")
    assert named_environment(manifest(env_spec="{", environment="C-v0")) == NamedEnvironment("C-v0")


def test_the_entry_point_in_a_specification_is_not_called(tmp_path):
    folder = tmp_path / "made"
    spec = {"id": "os:Evil-v0", "entry_point": "os:mkdir", "kwargs": {"mode": 511}}
    wrapper = {"name": "mkdir", "entry_point": "os:mkdir", "kwargs": {"path": str(folder)}}
    safe = {"id": "Pendulum-v1", "additional_wrappers": [wrapper]}

    with pytest.raises(InvalidArgumentError, match="names the environment Evil-v0, which is not registered"):
        make_env(manifest(env_spec=json.dumps(spec)))
    with pytest.warns(UserWarning, match="the wrapper mkdir of os is not applied"):
        make_env(manifest(env_spec=json.dumps(safe)))
    assert not folder.exists()


def test_a_name_with_a_module_is_refused_because_gymnasium_would_import_it():
    with pytest.raises(InvalidArgumentError, match="local/own names the environment 'this:Heater-v1'"):
        make_env(manifest(environment="this:Heater-v1"))
    assert "this" not in sys.modules


def spec_of(environment, wrappers=(), **arguments):
    stated = [
        {"name": name, "entry_point": f"gymnasium.wrappers.{module}:{name}", "kwargs": kwargs}
        for module, name, kwargs in wrappers
    ]
    return manifest(env_spec=json.dumps({"id": environment, "kwargs": arguments, "additional_wrappers": stated}))


@pytest.mark.parametrize(
    "arguments",
    [
        {"xml_file": "/etc/passwd"},
        {"xml_file": "evil"},
        {"env_id": "os:Evil-v0"},
        {"reward_type": "../secret"},
        {"reward_type": "os:system"},
        {"width": 10**9},
        {"maze_map": [["a/b"]]},
        {"desc": [0] * 10_001},
        {"deep": [[[[[1]]]]]},
        {"config": {"file": {"path": "x"}}},
    ],
)
def test_arguments_that_may_be_paths_modules_or_large_are_refused_by_their_name(arguments):
    (name,) = arguments
    with pytest.raises(InvalidArgumentError, match=rf"local/own states for Ant-v5 {name}=") as caught:
        make_env(spec_of("Ant-v5", **arguments))

    assert f"make_env({name}=...)" in str(caught.value.hint)


def test_an_argument_that_the_user_gives_is_the_users_own():
    env = make_env(spec_of("Pendulum-v1", g="/etc/passwd"), g=5.0)

    assert env.unwrapped.g == 5.0


@pytest.mark.parametrize("arguments", [{"g": 5.0}, {"max_episode_steps": 10**6}, {"g": None}])
def test_numbers_are_passed_on(arguments):
    assert make_env(spec_of("Pendulum-v1", **arguments)).spec.kwargs.get("g", 5.0) in {5.0, None}


def test_names_that_an_environment_knows_are_passed_on():
    env = make_env(spec_of("FrozenLake-v1", map_name="8x8", is_slippery=False))

    assert env.observation_space.n == 64


def test_arguments_that_an_environment_does_not_take_are_named():
    with pytest.raises(
        InvalidArgumentError, match=r"Pendulum-v1 cannot be made with the arguments of local/own, wrong=1: "
    ):
        make_env(spec_of("Pendulum-v1", wrong=1))


def test_wrappers_that_write_files_or_have_a_state_are_not_made(tmp_path):
    video = ("rendering", "RecordVideo", {"video_folder": str(tmp_path / "made")})
    env = make_env(spec_of("Pendulum-v1", [video, ("common", "TimeAwareObservation", {"flatten": True})]))

    assert env.observation_space.shape == (4,)
    assert not (tmp_path / "made").exists()
    with pytest.raises(
        InvalidArgumentError, match="local/own names the wrapper NormalizeObservation, which data must not choose"
    ):
        make_env(spec_of("Pendulum-v1", [("stateful_observation", "NormalizeObservation", {"epsilon": 1e-8})]))
    with pytest.raises(InvalidArgumentError, match=r"local/own states for FrameStackObservation stack_size=1000000000"):
        make_env(spec_of("Pendulum-v1", [("stateful_observation", "FrameStackObservation", {"stack_size": 10**9})]))
    with pytest.raises(InvalidArgumentError, match=r"names the wrapper FrameStackObservation with wrong arguments"):
        make_env(spec_of("Pendulum-v1", [("stateful_observation", "FrameStackObservation", {"wrong": 1})]))


def test_a_dataset_without_an_environment_says_where_one_is_stated():
    with pytest.raises(InvalidArgumentError, match="local/own does not name an environment") as caught:
        make_env(manifest())

    assert "dataset.toml" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("environment", "module", "extra"),
    [
        ("MiniGrid-FourRooms-v0", "minigrid", "minigrid"),
        ("AntMaze_UMaze-v4", "gymnasium_robotics", "robotics"),
        ("dm_control/cheetah-run-v0", "shimmy", "dm-control"),
        ("PongNoFrameskip-v7", "ale_py", "atari"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(environment, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingDependencyError) as caught:
        make_env(manifest(environment=environment))
    assert caught.value.extra == extra
    assert environment in str(caught.value)


def test_a_library_registers_its_environments():
    env = make_env(manifest(environment="PongNoFrameskip-v4"))

    assert env.observation_space.shape == (210, 160, 3)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_frames_of_atari_dqn_are_those_of_its_agent():
    pytest.importorskip("cv2", reason="pip install 'datasets-rl[atari]'")
    env = make_env(manifest("atari_dqn/Pong/1"))

    assert (env.spec.id, env.observation_space.shape, env.unwrapped._frameskip) == ("PongNoFrameskip-v0", (84, 84), 1)
    env.reset(seed=0)
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == 4


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_missing_opencv_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)

    with pytest.raises(
        MissingDependencyError, match="the wrapper AtariPreprocessing needs opencv-python-headless"
    ) as caught:
        make_env(manifest("atari_dqn/Pong/1"))
    assert caught.value.extra == "atari"


def test_an_environment_of_mujoco_py_has_a_successor():
    text = "names Hopper-v2, which needs mujoco-py: Hopper-v4 with a newer simulator is used instead"
    with pytest.warns(EnvironmentWarning, match=text) as warned:
        env = make_env(manifest("d4rl/hopper-medium-v2"))

    assert len(warned) == 1  # Gymnasium does not advise a newer version

    assert (env.spec.id, env.observation_space.shape, env.action_space.shape) == ("Hopper-v4", (11,), (3,))
