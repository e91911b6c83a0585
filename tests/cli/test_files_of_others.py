"""Folders of others, in and beside a data folder, that have every name that this package uses: no command changes one.

A data folder may be shared with other projects or be the home folder of a user, who clones ``minari`` beside it, has a
folder ``build-20241101`` of that day, and links large trees into it. Only the place says what is of this package.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from stored_data import columns, store_dataset, trajectory

import datasets_rl
from datasets_rl import EpisodeWriter
from datasets_rl.cli.commands import command_names, subcommand_names
from datasets_rl.errors import DatasetsRLError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and signals")

ID = "demo/pendulum"
DIGITS = f"{0x20241101:032x}"
NAMES = [
    "build-20241101/results.csv",
    "build-20241101/journal.jsonl",
    "build-20241101/upstream.json",
    "build-20241101/image-forms.json",
    "build-20241101/version/manifest.json",
    "build-20241101/partials/commit.json",
    "build-0123abcd@node-9/thesis.tex",
    "build-of-the-thesis/main.pdf",
    "raw/a.csv",
    "raw/a.csv.fetched.json",
    "raw/b.part",
    "raw/b.part.json",
    "raw/.upstream.json",
    "raw@node-9/c.csv",
    "recorded/monday/video.mp4",
    f"recorded/{DIGITS}/recording.json",
    f"recorded/{DIGITS}/journal.jsonl",
    "recorded/empty/",
    f"trash-{DIGITS}/diary.txt",
    ".lock",
    "CURRENT",
    ".CURRENT@node-9.tmp",
    ".rlds-moved-from",
    "manifest.json",
    "state.json",
    "chunks.json",
    "rows.npy",
    "final.npy",
    "episodes.npy",
    "digests.npy",
    "20241101-0123abcd/manifest.json",
    "20241101-0123abcd/rows.npy",
    ".stream/x/0/raw/a.csv",
    ".stream/x/0/shards/y/manifest.json",
    ".stream/x/0.lock",
    ".git/refs/tags/",
    "empty/",
]
EMPTY = (".lock", "0.lock", ".tmp")
COMMANDS = {
    "append": [["append", "local/mine", ID], ["append", "local/linked", ID]],
    "audit": [["audit", ID], ["audit", "{theirs}"], ["audit", ID, "--remedies", "{theirs}/manifest.json"]],
    "bench": [["bench", ID, "--seconds", "0"]],
    "cache ls": [["cache", "ls"]],
    "cache move": [["cache", "move", "{out}/moved"]],
    "cache prune": [
        ["cache", "prune"],
        ["cache", "prune", "--versions", "--builds", "--raw", "--streams", "--yes"],
        ["cache", "prune", "--builds", "--raw", "local/linked", "--yes"],
        ["cache", "prune", "--builds", "--raw", "{theirs}", "--yes"],
    ],
    "cache verify": [["cache", "verify"]],
    "cite": [["cite", ID]],
    "completion install": [["completion", "install", "bash"]],
    "completion show": [["completion", "show", "bash"]],
    "completion uninstall": [["completion", "uninstall", "bash"]],
    "config": [["config"]],
    "config path": [["config", "path"]],
    "config set": [["config", "set", "jobs", "1"]],
    "config trust": [["config", "trust"]],
    "config unset": [["config", "unset", "jobs"]],
    "describe": [["describe", ID]],
    "diff": [["diff", ID, "local/mine"], ["diff", "{theirs}", ID], ["diff", ID, "{raw}"]],
    "digest": [["digest", ID]],
    "doctor": [["doctor"]],
    "download": [
        ["download", ID],
        ["download", ID, "--force"],
        ["download", "local/mine", "--from-local", "{raw}"],
        ["download", "local/mine", "--from-local", "{raw}", "--force", "--keep-raw"],
        ["download", "local/linked", "--from-local", "{raw}"],
        ["download", "local/linked", "--from-local", "{raw}", "--raw-only"],
    ],
    "export": [
        ["export", ID, "--to", "npz", "--out", "{theirs}"],
        ["export", ID, "--to", "npz", "--out", "{theirs}", "--force"],
    ],
    "help": [["help", "recipes"]],
    "identify": [["identify", ID], ["identify", "{theirs}"], ["identify", "{raw}"]],
    "info": [["info", ID], ["info", "local/mine"], ["info", "{theirs}"]],
    "init": [["init", "{theirs}", "--print"], ["init", "{theirs}", "--check"], ["init", "{theirs}"]],
    "list": [["list", "--downloaded"], ["list", "local"]],
    "lock": [["lock", ID, "-o", "{theirs}/manifest.json"], ["lock", ID, "-o", "{out}/rlds.lock"]],
    "mix": [["mix", ID, ID, "-o", "{theirs}/manifest.json"]],
    "path": [["path", ID], ["path", "local/mine"]],
    "preprocess": [
        ["preprocess", ID, "-t", "reward_scaling:scale=2", "--in-place"],
        ["preprocess", ID, "-t", "reward_scaling:scale=2", "--as", "theirs"],
        ["preprocess", ID, "-t", "reward_scaling:scale=2", "--as", "theirs", "--force"],
        ["preprocess", ID, "-t", "reward_scaling:scale=2", "--out", "{theirs}"],
        ["preprocess", ID, "-t", "reward_scaling:scale=2", "--out", "{theirs}", "--force"],
        ["preprocess", "{theirs}", "-t", "reward_scaling:scale=2", "--in-place"],
    ],
    "push": [["push", ID, "hf://somebody/pendulum"]],
    "remove": [
        ["remove", "local/mine", "--yes"],
        ["remove", "local/linked", "--yes"],
        ["remove", "local/everything", "--yes"],
        ["remove", f"{ID}@theirs", "--yes"],
        ["remove", ID, "--yes"],
    ],
    "sample": [["sample", ID, "-n", "2"]],
    "score": [["score", ID, "-600", "--low", "-1000", "--high", "0"]],
    "sync": [["sync", "{out}/rlds.lock"], ["sync", "{theirs}/manifest.json"]],
    "train": [
        ["train", "--copy", "bc", "--out", "{theirs}/manifest.json"],
        ["train", "bc", "--dataset", ID, "--steps", "1", "--out", "{theirs}", "--quiet"],
    ],
    "use": [["use", ID, "--undo"], ["use", "{theirs}", "1"], ["use", "local/linked", "--undo"]],
    "verify": [["verify", ID], ["verify", "{theirs}"]],
    "view": [
        ["view", ID, "--export", "{theirs}/manifest.json"],
        ["view", ID, "{raw}", "--diff", "--export", "{theirs}/manifest.json"],
    ],
}
"""The ways in which each command is run that could delete or write files; {theirs} is a folder of somebody else."""
OWN = re.compile(r"pendulum(@x)?/.*|pendulum(@x)?")
"""What is of this package below the folder ``demo``."""


def names_of_commands():
    for name in command_names():
        inner = subcommand_names(name)
        yield from (f"{name} {one}" for one in inner)
        if not inner or name == "config":
            yield name


def plant(folder):
    """Put a file or an empty folder of each name into a folder of somebody else."""
    for name in NAMES:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name.endswith(EMPTY) else b"mine")


def tree(folder):
    """Return the kind and the content of everything below a folder; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


class Shared:
    """A data folder with two datasets of this package, and folders of others in it, beside it and behind links."""

    def __init__(self, folder):
        self.home, self.outside, self.out, self.raw = (folder / name for name in ("home", "outside", "out", "raw"))
        for path in (self.out, self.raw):
            path.mkdir(parents=True)
        np.savez(self.raw / "0.npz", observations=np.zeros((4, 2)), actions=np.zeros((4, 1)), rewards=np.zeros(4))
        (self.raw / "dataset.toml").write_text('name = "Toy"\n[episodes]\nby = "file"\n')
        given = [trajectory(2 + number % 3, seed=number) for number in range(4)]
        for name in ("pendulum", "pendulum@x"):
            store_dataset(self.home / "demo" / name, given, columns(), id=ID)
        for inside in (
            "",
            "demo",
            "demo/work",
            "demo/pendulum@theirs",
            "local",
            "local/mine",
            "minari/my-fork",
            "imagenet",
        ):
            plant(self.home / inside)
        for inside in ("work", "work/deep/er"):
            plant(self.outside / inside)
        for name, target in (
            ("local/linked", self.outside / "work"),
            ("local/above", self.outside),
            ("local/everything", Path("/")),
            ("local/self", Path("/proc/self")),
            ("minari/up", self.home),
        ):
            (self.home / name).symlink_to(target)

    def theirs(self):
        """Return what is not of this package, with its content."""
        inside = {
            name: content
            for name, content in tree(self.home).items()
            if not (name.startswith("demo/") and OWN.fullmatch(name.removeprefix("demo/")))
        }
        return {"home": inside, "outside": tree(self.outside), "raw": tree(self.raw)}

    def words(self, command):
        places = {"{theirs}": self.outside / "work", "{out}": self.out, "{raw}": self.raw}
        for name, path in places.items():
            command = [word.replace(name, str(path)) for word in command]
        return command


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    Shared(folder)
    return folder


@pytest.fixture
def shared(planted, tmp_path, rlds, monkeypatch):
    """A copy of the planted folders, the ``rlds`` command of which is limited in time and reaches no network."""
    place = Shared.__new__(Shared)
    place.home, place.outside, place.out, place.raw = (tmp_path / name for name in ("home", "outside", "out", "raw"))
    for name in ("home", "outside", "out", "raw"):
        shutil.copytree(planted / name, tmp_path / name, symlinks=True)
    for link in ("linked", "above"):
        path = place.home / "local" / link
        target = tmp_path / path.readlink().relative_to(planted)
        path.unlink()
        path.symlink_to(target)
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")

    def run(command):
        with limit(60):
            return rlds(*place.words(command))

    place.run = run
    return place


class limit:  # noqa: N801 - used as a function
    """Raise `TimeoutError` in the block after some seconds, also out of a call of the system."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def stop(*_):
            raise TimeoutError

        self.before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(self.seconds)

    def __exit__(self, *_):
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)


def test_every_command_is_run():
    assert sorted(COMMANDS) == sorted(names_of_commands())


def test_every_name_of_a_file_of_this_package_is_planted():
    """The literals of the rooms that write and delete; a new one has to be planted, too."""
    rooms = ["disk", "store", "build", "recording", "fetch", "downloading", "datasets", "format"]
    package = Path(datasets_rl.__file__).parent
    files = [file for room in rooms for file in (package / room).rglob("*.py")]
    literal = re.compile(r'"(\.?[a-z][a-z-]*(?:\.[a-z]+)*\.(?:json|jsonl|lock|tmp|part|npy))"')
    used = {name for file in files for name in literal.findall(file.read_text("utf-8"))}

    assert {"journal.jsonl", "manifest.json", "rows.npy"} <= used
    planted = {name.rpartition("/")[2] for name in NAMES}
    endings = (".fetched.json", ".part.json", ".texts.json", ".videos.json")
    temporary = {"owner.lock"}  # in a folder that the system's temporary folder gets for each process
    assert sorted(used - planted - {*endings} - temporary) == []


# The policy has the one action of Pendulum, and the dataset of that name here has actions of two elements.
@pytest.mark.first(20)
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_changes_a_file_of_others(shared, name):
    before = shared.theirs()

    for command in COMMANDS[name]:
        ran = shared.run(command)
        after = shared.theirs()
        assert "fault of rlds" not in ran.err, command
        for place, content in before.items():
            changed = {path for path in content if after[place].get(path) != content[path]}
            assert changed == set(), (command, ran)
        # New files of others are where the command says. Those of identify are its index.
        if name not in {"train", "config set", "lock", "identify"}:
            assert {place: found.keys() - before[place].keys() for place, found in after.items()} == {
                "home": set(),
                "outside": set(),
                "raw": set(),
            }, (command, ran)


def record(dataset):
    with EpisodeWriter(dataset) as writer:
        writer.start([0.0])
        writer.step([0.0], [1.0], 1.0, terminated=True)


def test_a_recording_does_not_begin_in_a_folder_of_others(shared):
    before = shared.theirs()

    for dataset in ("local/mine", "local/linked"):
        with pytest.raises(DatasetsRLError, match=r"CURRENT: the name is 'mine'"):
            record(dataset)
        for name in ("CURRENT", "manifest.json"):
            (shared.home / dataset / name).unlink()
        with pytest.raises(DatasetsRLError, match="the folder holds files that are not a dataset"):
            record(dataset)
        for name in ("CURRENT", "manifest.json"):
            (shared.home / dataset / name).write_bytes(b"mine")
    assert shared.theirs() == before


@pytest.mark.parametrize("words", [["list", "--downloaded"], ["cache", "ls"], ["cache", "verify"], ["cache", "prune"]])
def test_links_to_large_trees_and_cycles_do_not_stop_a_command_on_all_datasets(shared, words):
    with limit(20):
        ran = shared.run([*words, "--json"])

    assert ran.code == 0
    if words[0] == "list" or words[1] == "ls":
        assert [one["id"] for one in ran.json["datasets"]] == [ID, f"{ID}@x"]


def test_a_source_that_is_a_link_to_a_large_tree_is_searched_from_the_top_with_a_warning(shared):
    for path in [*(shared.home / "local").iterdir()]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (shared.home / "local").rmdir()
    (shared.home / "local").symlink_to("/")

    ran = shared.run(["list", "--downloaded", "--json"])
    assert f"{shared.home / 'local'} has more than 5,000 folders without a dataset" in ran.err
    assert [one["id"] for one in ran.json["datasets"] if one["id"].startswith("demo")] == [ID, f"{ID}@x"]


@pytest.mark.parametrize("target", ["a dataset", "a version"])
def test_a_link_to_a_single_dataset_or_version_elsewhere_is_found(shared, target):
    elsewhere = shared.outside / "disk" / "pendulum"
    shutil.copytree(shared.home / "demo" / "pendulum", elsewhere)
    if target == "a version":
        elsewhere = next(elsewhere.glob("0001-*"))
    (shared.home / "local" / "found").symlink_to(elsewhere)

    ids = [one["id"] for one in shared.run(["list", "--downloaded", "--json"]).json["datasets"]]
    assert ids == [ID, f"{ID}@x", "local/found"]
    assert shared.run(["verify", "local/found"]).code == 0
    assert shared.run(["cache", "verify"]).code == 0


def test_prune_takes_what_killed_commands_left_in_a_folder_that_never_had_a_version(shared):
    """The mark of a folder is written before anything else, so that its files are certainly of this package."""
    from datasets_rl.store.layout import mark_folder

    place = shared.home / "local" / "begun"
    mark_folder(place)
    for name in ("build-20241101/results.csv", f"trash-{DIGITS}/rows.npy", ".lock"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("")
    before = shared.theirs()

    would = shared.run(["cache", "prune", "--builds", "--dry-run", "--json"]).json["items"]
    assert shared.theirs() == before
    refused = shared.run(["cache", "prune", "--builds"])
    done = shared.run(["cache", "prune", "--builds", "--yes", "--json"]).json["items"]

    listed = {str(place / name) for name in ("build-20241101", f"trash-{DIGITS}", ".lock")}
    for items in (would, done):
        assert {one["path"] for one in items if one["id"]} == listed
    assert refused.code == 10
    assert [path for path in listed if path not in refused.err] == []
    assert not place.exists()
