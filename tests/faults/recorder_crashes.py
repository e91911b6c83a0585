"""Kill a program that records episodes at its file-system events, and report what the next command that appends finds.

argument    JSON: folder, first and steps (the first event, and the distance between events)
output      a line of JSON per child: event, finished (episodes that the program saw end), found (episodes of the
            dataset), values (whether these hold the recorded values), problems (of a deep verification), left (leftovers)
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from crash import events_below, run_killed_at

import datasets_rl
from datasets_rl import Settings, store
from datasets_rl.errors import NotADatasetError
from datasets_rl.recording.episode_writer import EpisodeWriter

torch.set_num_threads(1)  # threads do not survive a fork

task = json.loads(sys.argv[1])
home = Path(task["folder"]) / "home"
seen = Path(task["folder"]) / "seen"
ID = "local/toy"
EPISODES = 7
SETTINGS = Settings(home=home, progress=False)


def work():
    """Record episodes of 1, 2, 3, ... steps, with a commit after every third episode."""
    with EpisodeWriter(ID, root=home / "local", commit_every=3) as writer:
        for episode in range(EPISODES):
            writer.start(np.full(2, episode * 100.0))
            for step in range(episode + 1):
                ends = step == episode
                writer.step(step, np.full(2, episode * 100.0 + step + 1), float(step), terminated=ends)
            seen.write_text(str(episode + 1))


def found():
    """Return the number of episodes of the dataset, whether their values are right, and what is wrong with it."""
    try:
        datasets_rl.append_episodes(ID, root=home / "local")
        dataset = datasets_rl.load(ID, root=home / "local", download=False)
    except NotADatasetError:
        return 0, True, []
    lengths = dataset.episodes.lengths.tolist()
    rows = dataset[:]
    episode = rows["episode"]
    step = torch.cat([torch.arange(length) for length in lengths])
    values = (
        lengths == [number + 1 for number in range(len(lengths))]
        and torch.equal(rows["observation"][:, 0], episode * 100.0 + step)
        and torch.equal(rows["next", "observation"][:, 1], episode * 100.0 + step + 1)
        and torch.equal(rows["action"], step)
    )
    verification = datasets_rl.verify(ID, deep=True, root=home / "local", settings=SETTINGS)
    return len(lengths), values, list(verification.problems)


def left():
    """Return the files that are neither the dataset's nor expected."""
    folder = home / "local" / "toy"
    kept = {folder / "CURRENT", store.version_folder(folder)} if (folder / "CURRENT").exists() else set()
    return sorted(str(path) for path in home.rglob("*") if path.is_file() and not kept & {path, path.parent})


counts = events_below(home)
total = run_killed_at(0, work, counts)
for fatal in range(task["first"], total + 1, task["steps"]):
    shutil.rmtree(home, ignore_errors=True)
    seen.write_text("0")
    assert run_killed_at(fatal, work, counts) is None
    episodes, values, problems = found()
    for paths in store.dataset_places(home / "local"):
        store.sweep_dataset(paths)
    print(
        json.dumps(
            {
                "event": fatal,
                "finished": int(seen.read_text()),
                "found": episodes,
                "values": values,
                "problems": problems,
                "left": left(),
            }
        )
    )
