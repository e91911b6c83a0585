"""Any command can be killed before any change of the disk: no data is lost, mixed, left over or changed twice.

For each command and each of its changes, a child is killed before that change. Afterwards, each on a copy of the
folder,

* the same command ends with 0 and the files of an undisturbed run, including those that no reader sees;
* commands that read end as on an undisturbed folder, before or after the first command, and change nothing;
* another command that writes does so, too, and once the data folder is pruned, the files are those of undisturbed runs.

What a command does depends only on the files that it finds, and on locks. What follows a kill is run once for the kills
that leave the same bytes under the same names, up to the number of the dead process and the random name of what it was
deleting. With locks that lie, it is run only for what no kill with locks leaves: a command that runs alone gets every
lock, so that it does the same with both. Two processes at once are in `test_two_processes.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from command_server import Server
from stored_data import columns, store_dataset, trajectory

from datasets_rl.format.current import VERSION_NAME

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

ID = "demo/pendulum"
SCALE = ["-t", "reward_scaling:scale=3"]
KEEP = ["-t", "keep_lengths:3"]


@dataclass(frozen=True)
class Scenario:
    """A command, and the commands before it."""

    argv: list[str]
    before: list[list[str]] = field(default_factory=list)
    stored: bool = True
    """Whether the dataset is stored before the command."""
    again: tuple[int, ...] = (0,)
    """The codes with which the same command may end after a kill."""
    first: list[str] = field(default_factory=list)
    """The first part of a command that publishes twice, as a command. The state after this part is as good as the two others."""
    half: tuple[int, ...] = ()
    """The codes with which another command may end besides, because some of the versions are deleted."""


IN_PLACE = ["preprocess", ID, *SCALE, "--in-place"]
AGAIN = [*IN_PLACE, "--force"]
LOCK = ["lock", ID, "-o", "{home}/out/rlds.lock"]
LOCK_DERIVED = ["lock", f"{ID}@x", "-o", "{home}/out/rlds.lock"]
SYNC = ["sync", "{home}/out/rlds.lock"]
SCENARIOS = {
    "download": Scenario(["download", "local/toy", "--from-local", "{raw}"], stored=False),
    "download and keep": Scenario(["download", "local/toy", "--from-local", "{raw}", "--keep-raw"], stored=False),
    "download from a package": Scenario(["download", ID], stored=False),
    "download --force": Scenario(["download", ID, "--force"], [["download", ID]], stored=False),
    "download --force over a version made in place": Scenario(
        ["download", ID, "--force"], [["download", ID], IN_PLACE], stored=False
    ),
    "append": Scenario(["append", "local/mine", ID]),
    "append to another": Scenario(
        ["append", "local/mine", f"{ID}@x"],
        [["preprocess", ID, *SCALE, "--as", "x"], ["append", "local/mine", ID]],
    ),
    "append two": Scenario(
        ["append", "local/mine", ID, f"{ID}@x"],
        [["preprocess", ID, *SCALE, "--as", "x"]],
        first=["append", "local/mine", ID],
    ),
    "preprocess": Scenario(["preprocess", ID, *SCALE, *KEEP, "--as", "long"]),
    "preprocess --force": Scenario(
        ["preprocess", ID, *SCALE, "--as", "x", "--force"], [["preprocess", ID, *KEEP, "--as", "x"]]
    ),
    "preprocess --in-place": Scenario(IN_PLACE),
    "preprocess --in-place --force": Scenario(AGAIN, [IN_PLACE]),
    "preprocess --out": Scenario(["preprocess", ID, *SCALE, "--out", "{home}/out/mine"]),
    "preprocess --out --force": Scenario(
        ["preprocess", ID, *SCALE, "--out", "{home}/out/mine", "--force"],
        [["preprocess", ID, *KEEP, "--out", "{home}/out/mine"]],
    ),
    "preprocess a folder in place": Scenario(
        ["preprocess", "{home}/out/mine", *SCALE, "--in-place"],
        [["preprocess", ID, *KEEP, "--out", "{home}/out/mine"]],
    ),
    "merge": Scenario(
        ["preprocess", ID, f"{ID}@x", "--out", "{home}/out/both"], [["preprocess", ID, *SCALE, "--as", "x"]]
    ),
    "undo": Scenario(["use", ID, "--undo"], [IN_PLACE, AGAIN], again=(0, 2)),
    "use": Scenario(["use", ID, "1"], [IN_PLACE, ["preprocess", ID, *KEEP, "--in-place"]]),
    "remove": Scenario(["remove", ID, "--yes"], [IN_PLACE, ["preprocess", ID, *KEEP, "--as", "x"]], half=(2,)),
    "lock": Scenario(["lock", f"{ID}@x", "-o", "{home}/out/rlds.lock"], [["preprocess", ID, *SCALE, "--as", "x"]]),
    "sync a version": Scenario(SYNC, [LOCK, IN_PLACE]),
    "sync a recipe": Scenario(
        SYNC, [["preprocess", ID, *SCALE, "--as", "x"], LOCK_DERIVED, ["remove", f"{ID}@x", "--yes"]]
    ),
    "sync a folder of others": Scenario(
        [*SYNC, "--from", "{home}/out/mine"],
        [
            ["preprocess", ID, *SCALE, "--as", "x"],
            ["preprocess", ID, *SCALE, "--out", "{home}/out/mine"],
            LOCK_DERIVED,
            ["remove", f"{ID}@x", "--yes"],
        ],
    ),
    "sync a download": Scenario(SYNC, [["download", ID], LOCK, ["remove", ID, "--yes"]], stored=False),
    "sync over another dataset": Scenario(
        SYNC, [["download", ID], LOCK, ["remove", ID, "--yes"], ["download", ID, "--keys", "observation"]], stored=False
    ),
    "mix": Scenario(["mix", ID, f"{ID}@x", "-o", "{home}/out/mix.toml"], [["preprocess", ID, *SCALE, "--as", "x"]]),
    "cache prune": Scenario(["cache", "prune", "--versions", "--yes"], [IN_PLACE, AGAIN]),
}
TYPICAL = [
    "download --force over a version made in place",
    "append two",
    "preprocess --in-place",
    "remove",
]
"""The scenarios of the default run; the slow run has all scenarios."""
READING = [
    ["info", ID],
    ["list", "--downloaded"],
    ["verify", ID],
    ["sample", ID, "-n", "2"],
    ["path", ID],
]
OTHERS = [
    *READING,
    ["use", ID, "--undo"],
    ["preprocess", ID, "-t", "reward_scaling:scale=5", "--as", "five"],
    ["remove", ID, "--yes"],
    ["cache", "prune", "--builds", "--yes"],
    ["use", ID, "1"],
    ["download", ID],
    ["download", ID, "--force"],
    ["append", "local/mine", ID],
    ["preprocess", ID, "-t", "reward_scaling:scale=7", "--in-place"],
    ["cache", "prune", "--versions", "--yes"],
    ["cache", "move", "{moved}"],
]


@pytest.fixture(scope="module")
def tried():
    """The states after which the commands of a scenario were run, with any locks."""
    return set()


@pytest.fixture(scope="module")
def pruned():
    """The files that `cache prune` leaves of a state."""
    return {}


@pytest.fixture(scope="module", params=["locks", "locks that lie"])
def server(request, warm_executable):
    made = Server(warm_executable, lying=request.param == "locks that lie")

    yield made
    made.close()


def tree(home):
    """Return the digest of every file and the path of every folder.

    A version is named by its place among those of its dataset, because a command that is repeated may publish another
    one, whose manifest states another parent.
    """
    ranks = {}
    for folder in {path.parent for path in home.rglob("*") if VERSION_NAME.fullmatch(path.name)}:
        names = sorted(path.name for path in folder.iterdir() if VERSION_NAME.fullmatch(path.name))
        ranks |= {
            f"{folder.relative_to(home)}/{name}": f"{folder.relative_to(home)}/v{n}" for n, name in enumerate(names)
        }
    files = {}
    for path in home.rglob("*"):
        name = path.relative_to(home).as_posix()
        version = next((long for long in ranks if f"{name}/".startswith(f"{long}/")), "")
        shown = f"{ranks[version]}{name[len(version) :]}" if version else name
        files[shown] = digest(path, ranks, name.rpartition("/")[0]) if path.is_file() else ""
    return files


def digest(path, ranks, folder):
    """Return the digest of a file; of a pointer the version that it names, and of a manifest what does not vary."""
    if path.name == "CURRENT":
        return ranks.get(f"{folder}/{path.read_text().strip()}", "nothing")
    if path.name == "manifest.json":
        document = {name: value for name, value in json.loads(path.read_text()).items() if name not in VARYING}
        return json.dumps(document, sort_keys=True)
    return hashlib.sha256(path.read_bytes()).hexdigest()


VARYING = {"digest", "parent"}


def state(home):
    """Return what a command can find: every path, without process numbers and random names, and the bytes of files."""
    return tuple(
        sorted(
            (
                re.sub(
                    r"(?<=trash-)[0-9a-f]{32}|(?<=@)[A-Za-z0-9_]+-[0-9]+(t[0-9]+)?",
                    "",
                    path.relative_to(home).as_posix(),
                ),
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and path.name != ".lock" else "",
            )
            for path in home.rglob("*")
        )
    )


def public(files):
    """Return the files of the current versions, and those that belong to no dataset."""
    current = {
        path.removesuffix("CURRENT"): f"{version}/" for path, version in files.items() if path.endswith("/CURRENT")
    }
    shown = {
        f"{folder}{path.removeprefix(version)}": digest
        for folder, version in current.items()
        for path, digest in files.items()
        if digest and path.startswith(version)
    }
    # Only the same command knows the temporary file beside a file that the user named.
    return shown | {
        path: digest
        for path, digest in files.items()
        if digest and path.startswith("out/") and path.count("/") == 1 and not path.endswith(".tmp")
    }


def rubbish(files):
    """Return the files that `cache prune` must delete: trash, locks, temporary files."""
    return [
        path
        for path in files
        if any(mark in path for mark in ("trash-", ".lock", ".tmp")) and not path.startswith("out/")
    ]


class Trial:
    """A command in a separate home folder, which is restored before each kill."""

    def __init__(self, server, folder, name, tried, pruned):
        self.server, self.name, self.scenario, self.tried, self.pruned = server, name, SCENARIOS[name], tried, pruned
        scenario = self.scenario
        self.home, self.start, self.moved = folder / "home", folder / "start", folder / "moved"
        self.start.mkdir(parents=True)
        raw = folder / "raw" / "toy"
        raw.mkdir(parents=True)
        for number in range(3):
            draw = np.random.default_rng(number)
            np.savez(
                raw / f"{number}.npz",
                observations=draw.normal(size=(6, 3)).astype("f4"),
                actions=draw.normal(size=(6, 1)).astype("f4"),
                rewards=draw.normal(size=6).astype("f4"),
                terminals=np.array([0, 0, 1, 0, 0, 1], bool),
            )
        (raw / "dataset.toml").write_text('name = "Toy"\n')
        (self.start / "out").mkdir()
        self.put_back()
        if scenario.stored:
            given = [trajectory(2 + number % 5, seed=number) for number in range(8)]
            store_dataset(self.home / "demo" / "pendulum", given, columns(), id=ID)
        for argv in scenario.before:
            self.ends(argv)
        shutil.rmtree(self.start)
        shutil.copytree(self.home, self.start)
        self.before = tree(self.home)
        self.changes = self.ends(scenario.argv)["changes"]
        self.after = tree(self.home)
        self.done = folder / "after"
        shutil.copytree(self.home, self.done)
        self.between = []
        if scenario.first:
            self.put_back()
            self.ends(scenario.first)
            self.between.append(folder / "between")
            shutil.copytree(self.home, self.between[0])
        self.expected = {}

    def ends_of(self, other):
        """Return the results of another command on an undisturbed folder, before and after this command."""
        if tuple(other) not in self.expected:
            ends = self.expected[tuple(other)] = []
            for origin in (self.start, self.done, *self.between):
                self.put_back(origin)
                answer = self.run(other)
                ends.append((answer["code"], public(tree(self.home))))
        return self.expected[tuple(other)]

    def words(self, argv):
        places = {"home": self.home, "raw": self.home.parent / "raw", "moved": self.moved}
        return [word.format_map(places) for word in argv]

    def run(self, argv, fatal=0):
        return self.server.run(self.words(argv), self.home, fatal)

    def put_back(self, origin=None):
        for folder in (self.home, self.moved):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(origin or self.start, self.home, symlinks=True)

    def ends(self, argv):
        answer = self.run(argv)
        assert answer["code"] == 0, (argv, answer)
        return answer

    def kill(self, fatal, others):
        """Kill the command before each of its changes, and yield a sentence for each error."""
        self.put_back()
        if not self.run(self.scenario.argv, fatal)["died"]:
            yield f"{fatal}: it was not killed"
            return
        if (left := (self.name, state(self.home))) in self.tried:
            return
        self.tried.add(left)
        dead = self.home.with_name("dead")
        shutil.rmtree(dead, ignore_errors=True)
        shutil.copytree(self.home, dead, symlinks=True)
        answer = self.run(self.scenario.argv)
        if answer["code"] not in self.scenario.again:
            yield f"{fatal}: the same command ends with {answer['code']}: {answer['text']}"
        elif tree(self.home) != self.after:
            yield f"{fatal}: the same command leaves {difference(tree(self.home), self.after)}"
        reading = [other for other in others if other in READING]
        expected = [{code for code, _ in self.ends_of(other)} for other in reading]
        self.put_back(dead)
        yield from (f"{fatal}: {problem}" for problem in self.read(reading, expected, fatal))
        for other in others:
            if other not in READING:
                ends = self.ends_of(other)
                self.put_back(dead)
                yield from (f"{fatal}: {' '.join(other)} {problem}" for problem in self.change(other, ends))

    def read(self, others, expected, first):
        """Run other commands that read, in a single process, beginning with any of them. Yield a sentence for each error."""
        left = tree(self.home)
        order = [(first + place) % len(others) for place in range(len(others))]
        answers = self.server.run_in_turn([self.words(others[place]) for place in order], self.home)
        for place, answer in zip(order, answers, strict=True):
            if answer["code"] not in expected[place]:
                yield f"{' '.join(others[place])} ends with {answer['code']}: {answer['text']}"
        if tree(self.home) != left:
            yield f"the commands that read change {difference(tree(self.home), left)}"

    def change(self, other, ends):
        """Run another command that writes, and yield a sentence for each error."""
        answer = self.run(other)
        if other[:2] == ["cache", "move"]:
            left = tree(self.home)  # before the prune, which may delete a version that was not published
            whole = {
                path: digest
                for path, digest in left.items()
                # A folder that is not yet the folder of a dataset is empty.
                if (digest or path.count("/") > 1)
                and path.partition("/")[0] != "out"
                and "/build-" not in path
                and path not in rubbish(left)
            }
            if not whole.items() <= tree(self.moved).items():
                yield f"copies {difference(tree(self.moved), whole)}"
        if (left := state(self.home)) not in self.pruned:
            self.ends(["cache", "prune"])
            self.pruned[left] = tree(self.home)
        found = self.pruned[left]
        is_half = answer["code"] in self.scenario.half and public(found) in [files for _, files in ends]
        if (answer["code"], public(found)) not in ends and not is_half:
            near = difference(public(found), ends[0][1]), difference(public(found), ends[1][1])
            yield f"ends with {answer['code']} and {near}: {answer['text']}"
        if left := rubbish(found):
            yield f"and a prune leave {left}"


def difference(found, wanted):
    """Describe the paths that are unexpected, missing or have other bytes."""
    return {
        "more": sorted(found.keys() - wanted.keys()),
        "missing": sorted(wanted.keys() - found.keys()),
        "other": sorted(path for path in found.keys() & wanted.keys() if found[path] != wanted[path]),
    }


@pytest.fixture(scope="module")
def memory():
    """A folder in memory, where available, because the test syncs hundreds of thousands of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture
def folder(memory):
    """A folder that has the same path in every test, so that files that state their path have the same bytes."""
    folder = memory / "trial"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def counts(server, tried):
    made, before = Counter(), len(tried)
    yield made
    print(f"\nkills by command with {server.locks}:", dict(made), "in all", sum(made.values()))
    print("of different states, after which other commands ran:", len(tried) - before)


@pytest.mark.first(1, of="name")
@pytest.mark.parametrize("name", TYPICAL)
def test_a_killed_command_loses_nothing_and_is_completed_by_the_same_command(server, counts, folder, name, pruned):
    trial = Trial(server, folder, name, set(), pruned)
    draw = random.Random(name)
    fatal = draw.sample(range(1, trial.changes + 1), 1)

    wrong = [one for number in fatal for one in trial.kill(number, [*READING[:1], *draw.sample(OTHERS[5:], 1)])]
    counts[name] += len(fatal)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_command_killed_anywhere_loses_nothing_and_is_completed_by_the_same_command(
    server, counts, folder, name, tried, pruned
):
    trial = Trial(server, folder, name, tried, pruned)

    wrong = [one for number in range(1, trial.changes + 1) for one in trial.kill(number, OTHERS)]
    counts[name] += trial.changes
    assert wrong == []
