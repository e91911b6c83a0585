"""Demonstrations as the writers of robomimic, MimicGen and LIBERO store them: an HDF5 group each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from raw.case import Case, Fault
from upstreams import hub

from datasets_rl.ted.episode import Episode, TextStates

__all__ = ["CASES", "LIFT", "Demo", "draw", "write_file", "write_libero", "write_robomimic"]

LIFT = "lift/ph/low_dim_v15"
SUITE = "libero/libero_spatial"
REGENERATED = "libero/libero_goal/turn_on_the_stove_demo"
STACK = "mimicgen/core/stack_d0"
REPOSITORIES = {
    "robomimic/robomimic_datasets": "v1.5",
    "amandlek/mimicgen_datasets": "core",
    "yifengzhu-hf/LIBERO-datasets": "libero_spatial",
}
ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}, "env_version": "1.5.1"}


@dataclass(frozen=True)
class Demo:
    """A demonstration of T actions and T + 1 states."""

    obs: Mapping[str, np.ndarray]
    """[T + 1, ...] each."""
    states: np.ndarray
    """The simulator: time, joints, and other numbers, [T + 1, D]."""
    actions: np.ndarray
    rewards: np.ndarray
    """The reward of each action, [T]."""
    dones: np.ndarray
    masks: tuple[str, ...] = ()
    """The filter keys that name it."""


def draw(
    rng: np.random.Generator,
    length: int,
    *,
    success: bool = True,
    images: int = 0,
    masks: tuple[str, ...] = (),
    joints: int = 7,
) -> Demo:
    """Generate a demonstration; `images` is the size of the images of its two cameras."""
    positions = rng.normal(size=(length + 1, joints)).cumsum(axis=0)
    states = np.hstack([np.arange(length + 1.0)[:, None], positions, rng.normal(size=(length + 1, 4))])
    obs: dict[str, np.ndarray] = {"joint_states": positions, "ee_states": rng.normal(size=(length + 1, 6))}
    if images:
        for name in ("agentview_rgb", "eye_in_hand_rgb"):
            small = rng.integers(0, 256, (length + 1, images // 8, images // 8, 3), np.uint8)
            obs[name] = small.repeat(8, axis=1).repeat(8, axis=2)
    rewards = np.zeros(length)
    rewards[-1] = success
    return Demo(obs, states, rng.uniform(-1, 1, (length, 7)), rewards, rewards.astype(np.int64), masks)


def of_libero(demo: Demo) -> Demo:
    """Return a demonstration with flags of the dtype of LIBERO's."""
    return replace(demo, dones=demo.dones.astype(np.uint8))


def renamed_keys(demo: Demo) -> Demo:
    """Return a demonstration with observations of the names of robosuite, and not of LIBERO."""
    names = {"agentview_rgb": "agentview_image", "ee_states": "object", "joint_states": "robot0_joint_pos"}
    return replace(demo, obs={new: demo.obs[old] for old, new in names.items() if old in demo.obs})


def write_file(
    path: Path, demos: Mapping[int, Demo], write: Callable[[h5py.Group, Demo], object], **attributes: Any
) -> None:
    """Write a file; the groups are in the order of their names, and not of their numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, demo in demos.items():
            write(file.create_group(f"data/demo_{number}"), demo)
        file["data"].attrs.update(attributes)
        names: dict[str, list[str]] = {}
        for number, demo in demos.items():
            for mask in demo.masks:
                names.setdefault(mask, []).append(f"demo_{number}")
        for mask, members in names.items():
            file[f"mask/{mask}"] = np.array(members, "S")


def write_robomimic(group: h5py.Group, demo: Demo) -> None:
    """Write a demonstration as ``dataset_states_to_obs.py`` does."""
    length = len(demo.actions)
    for name, values in demo.obs.items():
        group[f"obs/{name}"] = values[:length]
        group[f"next_obs/{name}"] = values[1:]
    group["actions"], group["rewards"], group["dones"] = demo.actions, demo.rewards, demo.dones
    group["states"] = demo.states[:length]
    group.attrs["num_samples"] = length
    group.attrs["model_file"] = "<mujoco/>" * 100


def write_without_next(group: h5py.Group, demo: Demo) -> None:
    """Write a demonstration as ``dataset_states_to_obs.py --compress --exclude-next-obs`` does for RoboCasa."""
    length = len(demo.actions)
    for name, values in demo.obs.items():
        group.create_dataset(f"obs/{name}", data=values[:length], compression="gzip")
    group["actions"], group["rewards"], group["dones"] = demo.actions, demo.rewards, demo.dones
    group["actions_abs"] = demo.actions * 2
    group["action_dict/rel_pos"] = demo.actions[:, :3]
    group["states"] = demo.states[:length]
    group["src_demo_inds"] = np.arange(2 * length)
    group.attrs["num_samples"] = length
    group.attrs["ep_meta"] = json.dumps({"lang": f"stack cube {length}", "layout_id": 3})


def write_libero(group: h5py.Group, demo: Demo) -> None:
    """Write a demonstration as LIBERO's ``create_dataset.py`` does: the observation is that after the action."""
    length = len(demo.actions)
    for name, values in demo.obs.items():
        group[f"obs/{name}"] = values[1:]
    group["actions"], group["states"] = demo.actions, demo.states[:length]
    group["robot_states"] = demo.obs["ee_states"][1:] + 1
    group["rewards"], group["dones"] = demo.rewards.astype(np.uint8), demo.dones
    group.attrs["num_samples"] = length
    group.attrs["init_state"] = demo.states[0]


def write_regenerated(group: h5py.Group, demo: Demo) -> None:
    """Write a demonstration as ``regenerate_libero_dataset.py`` does: observations before the actions, no attributes."""
    length = len(demo.actions)
    for name, values in demo.obs.items():
        group[f"obs/{name}"] = values[:length]
    first = demo.states[:1] + 7  # the state of the original file, before ten more steps of the simulation
    group["actions"], group["states"] = demo.actions, np.concatenate([first, demo.states[1:length]])
    group["robot_states"] = demo.obs["ee_states"][:length] + 1
    group["rewards"], group["dones"] = demo.rewards.astype(np.uint8), demo.dones


def libero_attributes(instruction: str, demos: Mapping[int, Demo]) -> dict[str, Any]:
    """Return the attributes of ``data`` in LIBERO's files."""
    return {
        "env_name": "Libero_Tabletop_Manipulation",
        "problem_info": json.dumps({"problem_name": "libero", "language_instruction": instruction}),
        "bddl_file_name": "libero/bddl_files/task.bddl",
        "env_args": json.dumps({**ENV_ARGS, "env_name": "Libero_Tabletop_Manipulation"}),
        "num_demos": len(demos),
        "total": sum(len(demo.actions) for demo in demos.values()),
    }


def episode(demo: Demo, rows: slice, final: int, number: int, file: int = 0, **states: np.ndarray) -> Episode:
    """Return the episode of the actions in `rows`, with the states until `final`."""
    length = rows.stop - rows.start
    ends = np.arange(length)[:, None] == length - 1
    success = bool(demo.dones[-1] and demo.rewards[-1] > 0)
    steps: dict[tuple[str, ...], Any] = {
        ("action",): demo.actions[rows],
        ("dones",): demo.dones[rows],
        ("next", "reward"): demo.rewards[rows, None],
        ("next", "terminated"): ends & success,
        ("next", "truncated"): ends & (not success),
    }
    values = {("observation", name): values[rows.start : final] for name, values in demo.obs.items()}
    more = {("info", name): array for name, array in states.items()}
    return Episode(steps, {**values, **more}, metadata={"demo": number, "file": file})


def with_steps(one: Episode, metadata: Mapping[str, Any] = {}, **steps: Any) -> Episode:
    """Return an episode with more fields of steps and more metadata."""
    more = {tuple(name.split("__")): values for name, values in steps.items()}
    return Episode({**one.steps, **more}, one.states, metadata={**one.metadata, **metadata})


def instruction(text: str, one: Episode) -> TextStates:
    """Return the column of an instruction."""
    return TextStates.from_texts([text] * len(one))


def written(folder: Path) -> list[Episode]:
    """Write a file of robomimic, with filter keys, several success states and a failure; demo_10 comes after demo_2."""
    rng = np.random.default_rng(3)
    demos = {
        0: draw(rng, 5, masks=("train", "20_percent")),
        2: draw(rng, 1, masks=("valid",)),
        10: draw(rng, 7, success=False, masks=("train",)),
        11: draw(rng, 4, masks=("train",)),
    }
    demos = {number: renamed_keys(demo) for number, demo in demos.items()}
    for number in (0, 11):  # done_mode 0: also in states of success before the last state
        demos[number].dones[-2:], demos[number].rewards[-2:] = 1, 1
    demos[10].dones[-1] = 1  # done_mode 2: at the end of every demonstration
    write_file(
        folder / f"{LIFT}.hdf5",
        dict(reversed(demos.items())),
        write_robomimic,
        total=sum(len(demo.actions) for demo in demos.values()),
        env_args=json.dumps(ENV_ARGS, indent=4),
    )
    names = ("train", "20_percent", "valid")
    episodes = []
    for number, demo in demos.items():
        length = len(demo.actions)
        one = episode(demo, slice(0, length), length + 1, number, states=demo.states[:length])
        episodes.append(with_steps(one, {f"mask.{name}": name in demo.masks for name in names}))
    return episodes


def written_libero(folder: Path) -> list[Episode]:
    """Write a suite of two tasks, with states of other sizes in their simulators; actions 1 to T - 1 become steps."""
    episodes = []
    for file, task in enumerate(("pick_up_the_bowl", "pick_up_the_plate")):
        rng = np.random.default_rng(file)
        demos = {number: of_libero(draw(rng, 3 + number, images=128)) for number in range(2)}
        text = task.replace("_", " ")
        if file:
            demos = {number: replace(demo, states=demo.states[:, :-1]) for number, demo in demos.items()}
        path = folder / "libero_spatial" / f"{task}_demo.hdf5"
        write_file(path, demos, write_libero, **libero_attributes(text, demos))
        for number, demo in demos.items():
            length = len(demo.actions)
            robot = demo.obs["ee_states"][1:] + 1
            one = episode(demo, slice(1, length), length + 1, number, file, robot_states=robot)
            episodes.append(with_steps(one, language_instruction=instruction(text, one)))
    return episodes


def written_regenerated(folder: Path) -> list[Episode]:
    """Write a task of LIBERO that was generated again; the instruction is that of the file's name."""
    rng = np.random.default_rng(5)
    demos = {number: of_libero(draw(rng, 3 + number, images=256)) for number in (0, 3)}
    write_file(folder / "libero_goal" / "turn_on_the_stove_demo.hdf5", demos, write_regenerated)
    episodes = []
    for number, demo in demos.items():
        length = len(demo.actions)
        states = np.concatenate([demo.states[:1] + 7, demo.states[1:length]])
        robot = demo.obs["ee_states"][:length] + 1
        one = episode(demo, slice(0, length), length, number, states=states, robot_states=robot)
        episodes.append(with_steps(one, language_instruction=instruction("turn on the stove", one)))
    return episodes


def written_without_next(folder: Path) -> list[Episode]:
    """Write a compressed file without next_obs, with more forms of the actions and an instruction for each demo."""
    rng = np.random.default_rng(7)
    demos = {number: renamed_keys(draw(rng, 3 + number, images=80, success=number > 0)) for number in range(3)}
    write_file(folder / "core" / "stack_d0.hdf5", demos, write_without_next, env_args=json.dumps(ENV_ARGS))
    episodes = []
    for number, demo in demos.items():
        length = len(demo.actions)
        one = episode(demo, slice(0, length), length, number, states=demo.states[:length])
        more = {"actions_abs": demo.actions * 2, "action_dict__rel_pos": demo.actions[:, :3]}
        episodes.append(with_steps(one, **more, language_instruction=instruction(f"stack cube {length}", one)))
    return episodes


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the files from the repositories of the hub; robomimic's are below the version of robosuite."""
    base = folder.parent / f"{folder.name}-hub"
    base.mkdir(exist_ok=True)
    if not (base / "v1.5").exists():
        (base / "v1.5").symlink_to(folder, target_is_directory=True)
    repositories = {name: base if below == "v1.5" else folder for name, below in REPOSITORIES.items()}
    with hub(repositories) as server:
        yield {"HF_ENDPOINT": server.url}


def file_of(folder: Path) -> Path:
    """Return the path of robomimic's file."""
    return folder / f"{LIFT}.hdf5"


def corrupted(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    """Return a function that changes the file."""

    def corrupt(folder: Path) -> None:
        with h5py.File(file_of(folder), "r+") as file:
            change(file)

    return corrupt


def put(name: str, values: Any) -> Callable[[h5py.File], None]:
    """Return a function that replaces an array of the file."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = values

    return change


def raw_only(file: h5py.File) -> None:
    """Leave the simulator states and the actions only, as in ``demo_v15.hdf5``."""
    for demo in file["data"].values():
        for name in ("obs", "next_obs", "rewards", "dones"):
            del demo[name]


def cut(folder: Path) -> None:
    """Truncate the file to half its length."""
    data = file_of(folder).read_bytes()
    file_of(folder).write_bytes(data[: len(data) // 2])


def renamed(old: str, new: str) -> Callable[[h5py.File], None]:
    """Return a function that renames a group."""
    return lambda file: file.move(old, new)


def attribute(path: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    """Return a function that sets an attribute."""
    return lambda file: file[path].attrs.__setitem__(name, value)


def elsewhere(file: h5py.File) -> None:
    """Replace an array by an external link."""
    del file["data/demo_2/actions"]
    file["data/demo_2"]["actions"] = h5py.ExternalLink("/etc/passwd", "/x")


def bomb(file: h5py.File) -> None:
    """Replace an array by an array that declares 8 TiB and stores no data."""
    del file["data/demo_2/rewards"]
    file.create_dataset("data/demo_2/rewards", (1 << 40,), "f8", chunks=(1 << 16,))


def content(data: bytes) -> Callable[[Path], object]:
    """Return a function that replaces the bytes of the file."""
    return lambda folder: file_of(folder).write_bytes(data)


FAULTS = {
    "a name without a number": Fault(
        corrupted(renamed("data/demo_2", "data/demo_last")), "data/demo_last has no number"
    ),
    "two names with one number": Fault(
        corrupted(renamed("data/demo_2", "data/demo_010")), "demo_010 have the same number"
    ),
    "another number of samples": Fault(
        corrupted(attribute("data/demo_10", "num_samples", 6)), "demo_10: num_samples is 6, but there are 7 actions"
    ),
    "a shorter observation": Fault(
        corrupted(put("data/demo_10/obs/object", np.zeros((6, 6)))), "obs/object has 6 rows, but the actions have 7"
    ),
    "a filter key with an absent name": Fault(
        corrupted(put("mask/train", np.array([b"demo_0", b"demo_7"]))), "mask/train names 'demo_7'"
    ),
    "simulator states only": Fault(corrupted(raw_only), "this file holds simulator states only: take low_dim"),
    "next_obs of another state": Fault(
        corrupted(lambda file: file["data/demo_10/next_obs/object"].__setitem__((2, 0), 99.0)),
        "demo_10: data/demo_10/next_obs/object in row 2 differs from data/demo_10/obs/object in row 3",
    ),
    "next_obs of other keys": Fault(
        corrupted(lambda file: file.pop("data/demo_10/next_obs/object")), "obs and next_obs have different keys"
    ),
    "a demonstration without next_obs": Fault(
        corrupted(lambda file: file.pop("data/demo_10/next_obs")), "demo_10: it has no next_obs, unlike the first"
    ),
    "a demonstration without a field": Fault(
        corrupted(lambda file: file.pop("data/demo_10/rewards")), "demo_10: it has no next.reward, unlike the first"
    ),
    "a demonstration with another field": Fault(
        corrupted(put("data/demo_10/actions_abs", np.zeros((7, 2)))), "demo_10: it has actions_abs, unlike the first"
    ),
    "an observation of another width": Fault(
        corrupted(
            lambda file: [put(f"data/demo_10/{name}/object", np.zeros((7, 5)))(file) for name in ("obs", "next_obs")]
        ),
        "obs/object is float64 [5] per row, in the first demonstration float64 [6]",
    ),
    "dones of two": Fault(corrupted(put("data/demo_10/dones", np.full(7, 2))), "numbers other than 0 and 1"),
    "text for actions": Fault(corrupted(put("data/demo_10/actions", ["a"] * 7)), "data/demo_10/actions is"),
    "an array among the demonstrations": Fault(
        corrupted(put("data/demo_3", np.zeros(3))), "data/demo_3 is not a group"
    ),
    "no demonstration": Fault(corrupted(lambda file: file.pop("data")), "it has no group data"),
    "a link to another file": Fault(corrupted(elsewhere), "link"),
    "data that was never written": Fault(corrupted(bomb), "declares"),
    "a truncated file": Fault(cut, "HDF5"),
    "a web page": Fault(content(b"<!DOCTYPE html><html><title>Sign in</title></html>"), "web page"),
    "a git-LFS pointer": Fault(content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git-LFS"),
}


def many(folder: Path, size: int) -> None:
    """Write demonstrations with the arrays of robomimic's low-dimensional files."""
    rng = np.random.default_rng(0)
    demos = {number: renamed_keys(draw(rng, 60)) for number in range(max(1, size // (60 * 8 * 45)))}
    write_file(folder / f"{LIFT}.hdf5", demos, write_robomimic)


def many_images(folder: Path, size: int) -> None:
    """Write demonstrations with the images of LIBERO."""
    rng = np.random.default_rng(0)
    one = {number: draw(rng, 100, images=128) for number in range(2)}
    demos = {number: one[number % 2] for number in range(max(1, size // (100 * 2 * 128 * 128 * 3)))}
    path = folder / "libero_spatial" / "pick_up_the_bowl_demo.hdf5"
    write_file(path, demos, write_libero, **libero_attributes("pick up the bowl", demos))


SMALL, LARGER = ({"datasets_rl.sources.robomimic._SHARD_BYTES": size} for size in (20_000, 500_000))
CASES: Sequence[Case] = [
    Case(f"robomimic/{LIFT}", written, served, faults=FAULTS, many=many, small=SMALL),
    Case(f"robomimic/{SUITE}", written_libero, served, many=many_images, small=LARGER),
    Case(f"robomimic/{REGENERATED}", written_regenerated, served, small=LARGER),
    Case(f"robomimic/{STACK}", written_without_next, served, small=SMALL),
]
