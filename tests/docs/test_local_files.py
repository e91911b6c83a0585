"""Each documented ``rlds download ... --from-local`` runs on files as it expects them, and can be verified afterwards.

The commands are found in the pages, the docstrings and the help. `FILES` has the function that writes what a command
reads. Placeholders, such as ID and FOLDER, are not run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from raw import (
    atari_dqn,
    exorl,
    gen_dgrl,
    lerobot,
    local,
    minari,
    og_marl,
    openml,
    openx,
    robomimic,
    roboset,
    torchrl,
    vd4rl,
)

import datasets_rl
from datasets_rl.cli.app import main
from datasets_rl.errors import UnknownIdError
from datasets_rl.sources import find, get_source

ROOT = Path(datasets_rl.__file__).parents[1]
PLACES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "cli").rglob("*.py")),
    *sorted((ROOT / "datasets_rl").rglob("*.py")),
)
COMMAND = re.compile(r"rlds download [^`#|\n]*(?:\n--[^`#|\n]*)?")
PLACEHOLDER = re.compile(r"\b(?:ID|NAME|FILE|FOLDER|PATH)\b")
ELSEWHERE = {"arm/reach": "tests/sources/test_third_party.py, which installs the source first"}
"""Ids whose commands another module runs."""
Writer = Callable[[Path], object]


def documented() -> Iterator[str]:
    """Yield each command without placeholders, on one line."""
    for place in PLACES:
        for found in COMMAND.findall(place.read_text(encoding="utf-8")):
            command = " ".join(found.split())
            if " --from-local " not in command or PLACEHOLDER.search(command):
                continue
            if shlex.split(command)[2] not in ELSEWHERE:
                yield command


def tree(write: Writer, below: str = "") -> Writer:
    """Return a function that moves the files of a case, or those below a folder of it, to the path of a command."""

    def act(path: Path) -> None:
        aside = path.parent / "aside"
        aside.mkdir()
        write(aside)
        shutil.move(aside / below, path)
        shutil.rmtree(aside, ignore_errors=True)

    return act


def case(module: object, dataset_id: str, below: str = "") -> Writer:
    """Return a function that writes the files of a `Case`."""
    return tree(next(one for one in module.CASES if one.id == dataset_id).write, below)


def hdf5_rows(states: int, actions: int) -> Writer:
    """Return a function that writes a file of D4RL with states and actions of these sizes."""

    def act(path: Path) -> None:
        rng, rows = np.random.default_rng(0), 30
        with h5py.File(path, "w") as file:
            file["observations"] = rng.normal(size=(rows, states)).astype(np.float32)
            file["actions"] = rng.uniform(-1, 1, (rows, actions)).astype(np.float32)
            file["rewards"] = rng.normal(size=rows).astype(np.float32)
            file["terminals"] = np.zeros(rows, bool)
            file["timeouts"] = np.arange(rows) % 10 == 9

    return act


def arm(path: Path) -> None:
    lerobot.write_new(path, [lerobot.draw(length, seed) for seed, length in enumerate(lerobot.LENGTHS)])


def arm_archive(path: Path) -> None:
    folder = path.with_name("unpacked")
    arm(folder)
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "lerobot")


def minari_dataset(name: str) -> Writer:
    def write(folder: Path) -> None:
        space = minari.SPACES["text"]
        minari.write(folder, name, minari.episodes(space, (4, 2, 3), seeds=range(3)), space=space)

    return tree(write, name)


def demonstrations(path: Path) -> None:
    rng = np.random.default_rng(0)
    demos = {number: robomimic.draw(rng, 4 + number, images=84) for number in range(2)}
    robomimic.write_file(path, demos, robomimic.write_robomimic)


def exported(to: str) -> Writer:
    def act(path: Path) -> None:
        assert main(["download", "demo/pendulum", "--quiet"]) == 0
        assert main(["export", "demo/pendulum", "--to", to, "--out", str(path), "--lossy", "--quiet"]) == 0

    return act


def vault(path: Path) -> None:
    rows = og_marl.golden_rows("3m/Good")
    path.mkdir()
    og_marl.write_vault(path / "3m.zip", "3m.vlt/Medium", rows)


def run_of_urlb(path: Path) -> None:
    """Write the files of a buffer with the description on the page."""
    case(exorl, "exorl/walker/rnd")(path.with_name("exorl"))
    shutil.unpack_archive(path.with_name("exorl") / "walker" / "rnd.zip", path.with_name("unpacked"))
    (files,) = {one.parent for one in path.with_name("unpacked").rglob("*.npz")}
    shutil.copytree(files, path)
    page = (ROOT / "docs" / "sources" / "exorl.md").read_text(encoding="utf-8")
    (path / "dataset.toml").write_text(re.search(r"--from-local buffer`:\n\n```toml\n(.*?)```", page, re.DOTALL)[1])


gripper = case(local, "local/lab/gripper", local.FOLDER)
FILES: dict[str, Writer] = {
    "atari_dqn/Pong/1 ~/dqn": case(atari_dqn, "atari_dqn/Pong/1", "dqn"),
    "atari_dqn/Pong/1 ~/dqn/Pong/1": case(atari_dqn, "atari_dqn/Pong/1", "dqn/Pong/1"),
    "d4rl/door-human-v1 ~/Downloads/door-human-v1.hdf5": hdf5_rows(39, 28),
    "d4rl/hopper-medium-v2 hopper_medium-v2.hdf5": hdf5_rows(11, 3),
    "exorl/walker/rnd ~/exorl/datasets": case(exorl, "exorl/walker/rnd"),
    "gen_dgrl/bigfish-1M_E ~/DGRL": case(gen_dgrl, "gen_dgrl/bigfish-1M_E"),
    "lerobot/me/arm ~/recordings/arm": arm,
    "lerobot/robocasa/PickPlaceCounterToCabinet lerobot": arm,
    "lerobot/robocasa/PickPlaceCounterToCabinet lerobot.tar": arm_archive,
    "local/gripper ~/data/gripper": gripper,
    "local/heater logs": gripper,
    "local/heater-copy heater-hdf5": exported("hdf5"),
    "local/my_run buffer": run_of_urlb,
    "local/pendulum pendulum-hdf5": exported("hdf5"),
    "minari/D4RL/door/human-v2 ~/.minari/datasets/D4RL/door/human-v2": minari_dataset("D4RL/door/human-v2"),
    "minari/demo/pendulum-v0 pendulum-minari": exported("minari"),
    "minari/my/pendulum-v0 ~/.minari/datasets/my/pendulum-v0": minari_dataset("my/pendulum-v0"),
    "og_marl/core/smac_v1/3m/Medium ~/vaults": vault,
    "openml/covertype ~/openml": case(openml, "openml/covertype"),
    "openx/cmu_stretch ~/tensorflow_datasets": case(openx, "openx/cmu_stretch"),
    "openx/pendulum pendulum-rlds": exported("rlds"),
    "robomimic/lift-images ~/robomimic/lift/ph/image_v15.hdf5": demonstrations,
    "robomimic/libero/libero_goal ~/libero/datasets": case(robomimic, f"robomimic/{robomimic.REGENERATED}"),
    "roboset/DAPG(human)/door_v2d-v1 ~/RoboSet_Sim": case(roboset, "roboset/DAPG(human)/door_v2d-v1"),
    "torchrl/door ~/runs/buffer": case(torchrl, f"torchrl/{torchrl.RING}", torchrl.RING),
    "vd4rl/main/walker_walk/random/64px ~/vd4rl_data": case(vd4rl, "vd4rl/main/walker_walk/random/64px"),
}
"""The writer of the files of a command, by its id and its path."""


def key_of(command: str) -> str:
    words = shlex.split(command)
    return f"{words[2]} {words[words.index('--from-local') + 1]}"


COMMANDS = sorted({*documented()})


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A function that runs ``rlds``, in an empty folder and with an empty home of the user."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "me"))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "stored"))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    return main


def test_each_documented_command_has_files():
    missing = sorted({key_of(command) for command in COMMANDS} - FILES.keys())
    unused = sorted(FILES.keys() - {key_of(command) for command in COMMANDS})

    assert len(COMMANDS) > 25
    assert not missing, f"add a function that writes the files of {missing[0]!r} to FILES of {__name__}"
    assert not unused, f"no page has a command with {unused[0]!r}: remove it from FILES of {__name__}"


@pytest.mark.first(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_reads_local_files_which_verify_converts_again(shell, capsys, command):
    if key_of(command) not in FILES:
        pytest.skip(f"FILES of {__name__} has no writer of its files, which fails another test")
    words = shlex.split(command)[1:]
    at = words.index("--from-local") + 1
    path = Path(words[at]).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    FILES[key_of(command)](path)
    words = [str(Path(word).expanduser()) if word.startswith("~") else word for word in words]
    root = words[words.index("--root") : words.index("--root") + 2] if "--root" in words else []
    capsys.readouterr()

    # The files in an archive are copied, and deleted once they are converted.
    more = [*_without_digests(words[1]), *["--keep-raw"] * (path.suffix == ".tar")]
    assert shell([*words, *more]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert shell(["verify", words[1], *root, "--deep"]) == 0, capsys.readouterr()
    verified = capsys.readouterr()
    assert shell(["info", words[1], *root]) == 0
    dataset = datasets_rl.load(
        words[1], batch_size=2, download=False, root=Path(root[1]) / words[1].partition("/")[0] if root else None
    )

    assert "every converted value against" in verified.out
    assert "not compared" not in verified.out
    assert "no dataset" not in verified.out + verified.err
    assert len(dataset) > 0
    assert dataset.sample().shape == (2,)


def _without_digests(dataset_id: str) -> list[str]:
    """Return the option that accepts drawn values where the catalog states the digest of the real file."""
    source, _, name = dataset_id.partition("/")
    try:
        find(dataset_id)
        assets = get_source(source).assets(name)
    except (NotImplementedError, KeyError, UnknownIdError):
        return []
    return ["--no-hash-check"] if any(asset.size or asset.sha256 or asset.md5 for asset in assets) else []
