"""The table of docs/audit.md of other auditors: planted faults in datasets of LeRobot 3.0, and the episodes that each auditor names.

python -m venv peers && peers/bin/pip install lerobot-doctor "robot-data-audit[parquet,video]"
python tests/auditing/peers.py FOLDER peers/bin [--write]

Each recording is exported with lossy video. All three auditors read the files of the export: `rlds audit` after `rlds download`.
What names half of the episodes of a recording, or more, says nothing of an episode, and does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import clean
import numpy as np
from lossy import converted, exported
from planting import load_faults
from table import write

from datasets_rl import audit

START, END = "<!-- measured by tests/auditing/peers.py -->", "<!-- end of the measured auditors -->"
_EPISODES = 20
_SEED = 3
PLANTED = {
    "teleop": ("episodes_joined", "episodes_twice", "camera_freezes", "camera_goes_black", "nan_in_actions"),
    "arm": ("red_is_blue", "upside_down", "cameras_exchanged", "camera_is_blinded", "lens_out_of_focus"),
}


@dataclass(frozen=True)
class Name:
    """What names an episode: a check, or a kind of message."""

    what: str
    is_sure: bool


Named: TypeAlias = Mapping[Name, set[int]]


def planted(kind: str, faults: Sequence[str]) -> tuple[clean.Recording, dict[str, list[int]]]:
    """Return a recording of 20 episodes with faults, none of them in an episode of another, and the episodes of each."""
    recording, episodes = clean.record(kind, _EPISODES, _SEED), {}
    for name in faults:
        used = {one for several in episodes.values() for one in several}
        for seed in range(1_000):
            rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
            found = load_faults()[name].plant(recording, "medium", rng)
            if not found.episodes & used:
                break
        recording, episodes[name] = found.recording, sorted(found.episodes)
    return recording, episodes


def _ours(dataset: Path) -> tuple[str, Named]:
    named: dict[Name, set[int]] = {}
    for one in audit(converted(dataset)).findings:
        named.setdefault(Name(one.check, one.level != "hint"), set()).update(one.episodes)
    return "`rlds audit`", named


def _doctor(dataset: Path, programs: Path) -> tuple[str, Named]:
    report = json.loads(_printed(programs / "lerobot-doctor", "check", dataset, "--json"))
    named: dict[Name, set[int]] = {}
    for check in report["checks"]:
        for one in check["messages"]:
            text = one["message"]
            of_one = re.fullmatch(r"Episode (\d+): (.*)", text)
            if one["severity"] == "PASS":
                continue
            if of_one:
                named.setdefault(Name(of_one[2], True), set()).add(int(of_one[1]))
            elif "duplicate" in text:
                named.setdefault(Name("duplicate", True), set()).update(
                    map(int, re.findall(r"\d+", text.split("[")[1]))
                )
    return f"lerobot-doctor {report['version']}", named


def _robot_data_audit(dataset: Path, programs: Path) -> tuple[str, Named]:
    file = dataset.with_suffix(".rda.json")
    _printed(programs / "rda", "audit", dataset, "--full", "--format", "json", "--output", file)
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    named: dict[Name, set[int]] = {}
    for episode in report["episodes"]:
        for metric, one in episode["metrics"].items():
            spikes = re.search(r"(\d+) spike", one["message"])
            if one["has_finding"] or (spikes and int(spikes[1])):
                named.setdefault(Name(metric, one["has_finding"]), set()).add(episode["episode_index"])
    return f"Robot Data Audit {report['tool_version']}", named


def _printed(*words: object) -> str:
    return subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, check=False).stdout


def found_cell(named: Named, episodes: set[int]) -> str:
    """Return how many of some episodes are named, by what names most of them, and no more others than of them."""
    of_fault = {name: found & episodes for name, found in named.items() if 2 * len(found & episodes) >= len(found)}
    sure, hinted = (
        max((len(found) for name, found in of_fault.items() if name.is_sure is is_sure), default=0)
        for is_sure in (True, False)
    )
    return f"{hinted}, hints" if hinted > sure else str(sure)


def others_cell(named: Named, faulty: set[int]) -> str:
    """Return how many of the episodes without a fault are named."""
    sure = {one for name, found in named.items() if name.is_sure for one in found} - faulty
    hinted = {one for found in named.values() for one in found} - faulty - sure
    return f"{len(sure)}, and {len(hinted)} as hints" if hinted else str(len(sure))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="a new folder for the recordings and their exports")
    parser.add_argument("programs", type=Path, help="folder of the programs lerobot-doctor and rda")
    parser.add_argument("--write", action="store_true", help="write the table into docs/audit.md")
    options = parser.parse_args()
    folder, rows, heads = options.folder.resolve(), [], []
    recordings = [(kind, kind, faults) for kind, faults in PLANTED.items()]
    recordings += [(f"clean {kind}", kind, ()) for kind in PLANTED]
    auditors: list[Callable[[Path], tuple[str, Named]]] = [
        _ours,
        lambda dataset: _doctor(dataset, options.programs),
        lambda dataset: _robot_data_audit(dataset, options.programs),
    ]
    for name, kind, faults in recordings:
        recording, episodes = planted(kind, faults)
        dataset = exported(recording, folder / name.replace(" ", "-"))
        reports = []
        for auditor in auditors:
            head, named = auditor(dataset)
            for one, found in sorted(named.items(), key=str):
                print(f"{name}: {head}: {one.what}{'' if one.is_sure else ' (hint)'}: {sorted(found)}")
            count = len(recording.episodes)
            reports.append((head, {one: found for one, found in named.items() if 2 * len(found) < count}))
        heads = [head for head, _ in reports]
        for fault, numbers in episodes.items():
            cells = [found_cell(named, set(numbers)) for _, named in reports]
            rows.append(f"| {name} | {fault.replace('_', ' ')} | {len(numbers)} | {' | '.join(cells)} |")
        faulty = {one for numbers in episodes.values() for one in numbers}
        cells = [others_cell(named, faulty) for _, named in reports]
        rows.append(f"| {name} | nothing | {len(recording.episodes) - len(faulty)} | {' | '.join(cells)} |")
    lines = [
        f"| recording | planted | episodes | {' | '.join(heads)} |",
        "| --- | --- | ---: | --- | --- | --- |",
        *rows,
    ]
    print("\n".join(lines))
    if options.write:
        write(lines, START, END)


if __name__ == "__main__":
    main()
