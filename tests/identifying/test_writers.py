"""Files that other projects' own writers make are recognized: every episode is an exact copy of a recorded episode.

`python tests/identifying/test_writers.py` runs every writer that can be imported for every kind, and prints the table of docs/identity.md.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from identifying.recordings import KINDS, LENGTHS, record, recordings
from identifying.writers import WRITERS, NoPlaceError

from datasets_rl.errors import ConversionError
from datasets_rl.identifying import Identity, identify
from datasets_rl.settings import Settings

QUICK = ("D4RL", "npz", "TorchRL", "robomimic", "OGBench")
PACKAGES = {
    "Minari": "minari",
    "Minari without JPEG": "minari",
    "LeRobot": "lerobot.datasets",
    "d3rlpy": "d3rlpy.dataset",
}
NOT_READ = {("d3rlpy", "maze"), ("d3rlpy", "arm"), ("d3rlpy", "teleoperation")}
"""Buffers with several observations, a file of which rlds asks which arrays are which."""


def settings(home: Path) -> Settings:
    return Settings(home=home, progress=False, jobs=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a recorded dataset of each kind, made when it is asked for."""
    return tmp_path_factory.mktemp("home")


def recorded(home: Path, kind: str) -> None:
    if not (home / "local" / kind).exists():
        record(kind, home)


def looked_up(writer: str, kind: str, home: Path, folder: Path) -> Identity:
    """Write the episodes of a kind in another order, and look them up."""
    recorded(home, kind)
    return identify(WRITERS[writer](recordings(kind)[::-1], folder), settings=settings(home))


def check(identity: Identity, kind: str, *, images: bool = True) -> None:
    (match,) = identity.matches
    counts = (match.id, match.exact, match.partial + match.near, identity.unknown, identity.uninformative)
    count = len(LENGTHS)
    assert counts == (f"local/{kind}", *((count, 0) if images else (0, count)), 0, 0), match


def skip_without(writer: str) -> None:
    if writer in PACKAGES:
        pytest.importorskip(PACKAGES[writer], reason=f"pip install {PACKAGES[writer].partition('.')[0]}")
    if writer == "RLDS" and not has_tfds():
        pytest.skip("pip install tensorflow-cpu tensorflow-datasets, or name the Python with both by RLDS_TFDS_PYTHON")


def has_tfds() -> bool:
    python = os.environ.get("RLDS_TFDS_PYTHON")
    return bool(python) or importlib.util.find_spec("tensorflow_datasets") is not None


QUICK_CASES = [
    ("D4RL", "locomotion"),
    ("npz", "texts"),
    ("TorchRL", "agents"),
    ("robomimic", "agents"),
    ("OGBench", "maze"),
    ("robomimic", "maze"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("writer", "kind"),
    [
        pytest.param(writer, kind, marks=[] if (writer, kind) in QUICK_CASES else pytest.mark.slow)
        for writer in WRITERS
        for kind in KINDS
    ],
)
def test_every_episode_of_a_foreign_writer_is_an_exact_copy(home, tmp_path, writer, kind):
    skip_without(writer)
    try:
        if (writer, kind) in NOT_READ:
            with pytest.raises(ConversionError, match="which array is the observation"):
                looked_up(writer, kind, home, tmp_path)
            return
        identity = looked_up(writer, kind, home, tmp_path)
    except NoPlaceError:
        assert kind in {"texts", "agents"}
        return
    # Minari's JPEG changes the pixels, so that the other fields are equal and the images are not.
    check(identity, kind, images=not (writer == "Minari" and kind in {"atari", "arm", "teleoperation"}))


def test_a_file_with_a_part_of_the_fields_and_other_exact_dtypes_is_recognized(home, tmp_path):
    """Actions and observations alone, as float64, int16 and Fortran arrays, under other names, in a pickle of a dict."""
    recorded(home, "maze")
    episodes = recordings("maze")[:3]
    with h5py.File(tmp_path / "mine.hdf5", "w") as file:
        for number, one in enumerate(episodes):
            group = file.create_group(f"trajectory_{number}")
            group["obs"] = np.asfortranarray(one.steps()["observation"].astype(np.float64))
            group["acts"] = one.actions[""].astype(">f8")

    (match,) = identify(tmp_path / "mine.hdf5", settings=settings(home)).matches

    assert (match.exact, match.partial) == (3, 0)


def test_a_file_that_asks_is_recognized_with_the_answer_beside_it(tmp_path):
    """Equally long episodes in numbered arrays may be sensors. `dataset.toml` answers, and the folder is named."""
    home, folder, lengths = tmp_path / "home", tmp_path / "files", (30, 30, 30)
    record("locomotion", home, lengths)
    folder.mkdir()
    with h5py.File(folder / "buffer.h5", "w") as file:  # as `ReplayBuffer.dump` of d3rlpy
        for number, one in enumerate(recordings("locomotion", lengths)):
            file[f"observations_{number}"] = one.steps()[""]
            file[f"actions_{number}"] = one.actions[""]
            file[f"rewards_{number}"] = one.rewards[:, None]
            file[f"terminated_{number}"] = one.terminated
    with pytest.raises(ConversionError, match="episodes, agents or sensors"):
        identify(folder / "buffer.h5", settings=settings(home))
    (folder / "dataset.toml").write_text('[episodes]\nby = "suffix"\n')

    (match,) = identify(folder, settings=settings(home)).matches

    assert (match.id, match.exact) == ("local/locomotion", 3)


def table() -> str:
    """Return the table: the exact copies that are found, of the episodes that are written."""
    warnings.simplefilter("ignore")
    lines = [f"| writer | {' | '.join(KINDS)} |", f"| --- |{' ---: |' * len(KINDS)}"]
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "home"
        for writer in WRITERS:
            cells = []
            for kind in KINDS:
                folder = Path(temporary) / writer / kind
                folder.mkdir(parents=True)
                try:
                    identity = looked_up(writer, kind, home, folder)
                except NoPlaceError:
                    cells.append("no place")
                except ConversionError:
                    cells.append("asked about")
                except (ImportError, OSError, subprocess.CalledProcessError) as error:
                    cells.append(type(error).__name__)
                else:
                    matches = {match.id: match for match in identity.matches}
                    match = matches.get(f"local/{kind}")
                    exact, others = (match.exact, match.partial + match.near) if match else (0, 0)
                    cells.append(
                        f"{exact} of {identity.episodes}" if exact or not others else f"{others} without images"
                    )
            lines.append(f"| {writer} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
