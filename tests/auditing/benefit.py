"""Whether training gets better by the remedies of an audit: the table of docs/audit.md.

python tests/auditing/benefit.py            runs what benefit.json does not have yet, and writes the table
python tests/auditing/benefit.py --only-write
python docs/audit_tables.py                 writes the table of the checks, which names those that help

A fault is planted in a recording of a task (tasks.py), `rlds audit --remedies` and `rlds preprocess` correct it, and the
program of the task trains on four datasets, with three seeds each:

    faulty     the recording with the fault
    remedied   the faulty recording after the remedies of the check of the fault
    random     the faulty recording without random episodes, with as many steps as the remedy drops, or changes
    clean      the recording without the fault

A seed decides about the recording, the fault, the random episodes and the training. The return is the mean of 50 episodes
of the environment, which have the same seeds for all datasets.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import clean
import numpy as np
from planting import STRENGTHS, Plant, Planted, Strength, each_episode, load_faults
from tasks import TASKS, Task

from datasets_rl import Recipe
from datasets_rl.auditing import audit, benefits
from datasets_rl.auditing.finding import Level
from datasets_rl.cli.app import main as rlds
from datasets_rl.errors import InvalidArgumentError

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
RESULTS = Path(__file__).with_name("benefit.json")
START, END = "<!-- measured by tests/auditing/benefit.py -->", "<!-- end of the measured benefits -->"
ARMS = ("faulty", "remedied", "random")
SEEDS = 3
_EVALUATED = 50
_NOTHING, _MOST = "nothing found", "the remedy is for most episodes"
_OBSERVATION, _ACTION = ("observation",), ("action",)


def _wraps(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The heading is stored between -pi and pi, in all episodes."""
    changed = {}
    for number, one in enumerate(recording.episodes):
        states = one.array(_OBSERVATION)
        states[:, 2] = (states[:, 2] + np.pi) % (2 * np.pi) - np.pi
        changed[number] = one.with_arrays({_OBSERVATION: states})
    return Planted(recording.replaced(changed), frozenset())


def _flips(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """The quaternion changes its sign at a step, in all episodes. Strong: at five steps."""
    changed = {}
    for number, one in enumerate(recording.episodes):
        states = one.array(_OBSERVATION)
        for row in rng.choice(np.arange(1, len(one)), {"weak": 1, "medium": 1, "strong": 5}[strength], replace=False):
            states[row:, 2:6] *= -1
        changed[number] = one.with_arrays({_OBSERVATION: states})
    return Planted(recording.replaced(changed), frozenset())


def _late(recording: clean.Recording, strength: Strength, rng: np.random.Generator) -> Planted:
    """All actions are stored a step late. Strong: two steps."""
    steps, changed = 2 if strength == "strong" else 1, {}
    for number, one in enumerate(recording.episodes):
        actions = one.array(_ACTION)
        changed[number] = one.with_arrays({_ACTION: np.concatenate([actions[:1].repeat(steps, 0), actions[:-steps]])})
    return Planted(recording.replaced(changed), frozenset())


@each_episode
def _norms(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The quaternion is 0 in 25 steps, or 1.2 times as long."""
    states = episode.array(_OBSERVATION)
    states[rng.choice(len(episode), 25, replace=False), 2:6] *= 0.0 if strength == "strong" else 1.2
    return episode.with_arrays({_OBSERVATION: states})


@each_episode
def _waits(episode: clean.Recorded, strength: Strength, rng: np.random.Generator) -> clean.Recorded:
    """The driver waits for 15, 25 or 50 steps at the start: nothing moves, and the action is 0."""
    count = {"weak": 15, "medium": 25, "strong": 50}[strength]
    still = {key: np.repeat(value[:1], count, axis=0) for key, value in {**episode.states, **episode.steps}.items()}
    still[_ACTION] = np.zeros_like(still[_ACTION])
    joined = {key: np.concatenate([still[key], value]) for key, value in {**episode.states, **episode.steps}.items()}
    joined["timestamp",] = np.linspace(0, (len(joined["timestamp",]) - 1) / 10, len(joined["timestamp",]))[:, None]
    return replace(
        episode,
        states={key: joined[key] for key in episode.states},
        steps={key: joined[key] for key in episode.steps},
    )


OWN: dict[str, tuple[str, Plant]] = {
    "actions_late": ("action_shift", _late),
    "heading_wraps": ("angle_wraps", _wraps),
    "signs_flip": ("quaternions", _flips),
    "norms_off": ("quaternions", _norms),
    "driver_waits": ("idle_spans", _waits),
}
"""Faults of the fields of these tasks, by name: the check and the plant. The other faults are those of the other tables."""


@dataclass(frozen=True)
class Case:
    """A fault at a strength in a task."""

    fault: str
    strength: Strength
    task: str
    parts: int = 1
    """The fault is planted in each of so many parts of the recording: three episodes of each part, a tenth of all."""
    level: Level = "strong"
    """The remedies of findings that are at least as sure are applied."""

    @property
    def check(self) -> str:
        return OWN[self.fault][0] if self.fault in OWN else load_faults()[self.fault].check

    @property
    def plant(self) -> Plant:
        return OWN[self.fault][1] if self.fault in OWN else load_faults()[self.fault].plant

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.strength}, {self.task}"


CASES: tuple[Case, ...] = (
    Case("actions_late", "strong", "rover"),
    Case("actions_shifted", "strong", "rover", 2),
    Case("observations_after", "strong", "rover"),
    Case("part_in_degrees", "strong", "rover"),
    Case("actions_in_tenths", "strong", "rover", 2),
    Case("part_normalized", "strong", "rover"),
    Case("states_normalized", "strong", "rover", 2),
    Case("heading_wraps", "strong", "rover"),
    Case("signs_flip", "strong", "rover_quaternion"),
    Case("norms_off", "strong", "rover_quaternion", 2),
    Case("driver_waits", "strong", "rover", 2),
    Case("episodes_joined", "strong", "rover", 2),
    Case("episodes_twice", "strong", "rover", 2),
    Case("copies_changed", "medium", "rover", 2),
    Case("spikes_in_states", "strong", "rover", 2),
    Case("spikes_in_actions", "strong", "rover", 2),
    Case("nan_in_actions", "medium", "rover", 2),
    Case("infinite_states", "medium", "rover", 2),
    Case("sensor_sticks", "strong", "rover", 2),
    Case("actuator_sticks", "strong", "rover", 2),
    Case("actions_clipped", "strong", "rover", 2, "hint"),
    Case("frames_missing", "strong", "rover", 2),
    Case("time_goes_back", "strong", "rover", 2),
    Case("clock_jitters", "strong", "rover", 2),
    Case("seeds_again", "strong", "rover", 2, "hint"),
    Case("limits_are_terminal", "strong", "pendulum", 1, "hint"),
    Case("all_rewards_early", "strong", "pendulum"),
    Case("rewards_shifted", "strong", "pendulum", 2, "hint"),
)


def planted(case: Case, seed: int) -> clean.Recording:
    """Return the recording of the task with the fault, which is planted in each part of the recording alone."""
    recording = TASKS[case.task].recording(seed)
    rng = np.random.default_rng([STRENGTHS.index(case.strength), seed])
    episodes, size = [], len(recording.episodes) // case.parts
    for part in range(case.parts):
        of_part = replace(recording, episodes=recording.episodes[part * size : (part + 1) * size])
        episodes += case.plant(of_part, case.strength, rng).recording.episodes
    return replace(recording, episodes=tuple(episodes))


def measure(case: Case, seed: int, arms: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of the arms of a case that are not in `arms`, by the name of the arm."""
    faulty, file, remedied = folder / "faulty", folder / "remedies.toml", folder / "remedied"
    recording, task = planted(case, seed), TASKS[case.task]
    recording.store(faulty)
    lengths = np.array([len(one) for one in recording.episodes])
    if case.level == "hint":  # `rlds audit --remedies` writes the steps of surer findings only
        found = audit(faulty, checks=[case.check])
        if any(not isinstance(one.remedy, str) for one in found.findings):
            file.write_text(found.remedies("hint"), "utf-8")
    else:
        _run("audit", faulty, "--checks", case.check, "--remedies", file)
    if not file.exists():
        for arm in ARMS:
            yield arm, {"return": None, "reason": _NOTHING}
        return
    if "faulty" not in arms:
        yield "faulty", {**_trained(task, faulty, seed), "steps": int(lengths.sum())}
    steps = [step.to_json() for step in Recipe.of(str(file)).steps]
    _run("preprocess", faulty, "--recipe", file, "--out", remedied)
    left = _count(remedied)
    facts = {"steps": left, "remedies": sorted({step["use"] for step in steps})}
    if "remedied" not in arms:
        yield "remedied", {**_trained(task, remedied, seed), **facts}
    if "random" in arms:
        return
    removed = int(lengths.sum()) - left or sum(int(lengths[one].sum()) for one in {*_changed(steps, len(lengths))})
    if removed > 0.5 * lengths.sum():
        yield "random", {"return": None, "reason": _MOST}
        return
    chosen = np.random.default_rng([seed, 7]).permutation(len(lengths))
    count = int(np.searchsorted(np.cumsum(lengths[chosen]), removed)) + 1
    numbers = ",".join(map(str, sorted(chosen[:count].tolist())))
    _run("preprocess", faulty, "-t", f"drop_episodes:{numbers}", "--out", folder / "random")
    yield "random", {**_trained(task, folder / "random", seed), "steps": _count(folder / "random")}


def _changed(steps: list[dict[str, Any]], episodes: int) -> Iterator[int]:
    """Yield the episodes that the steps of a recipe name. A step that names none is for all."""
    for step in steps:
        places = step.get("numbers") or step.get("episodes") or step.get("places") or step.get("spans")
        for place in places or [f"0:{episodes}"]:
            first, _, stop = str(place).split("/")[0].partition(":")
            yield from range(int(first), int(stop or int(first) + 1))


def _count(folder: Path) -> int:
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.look.steps import StepReader

    return int(StepReader(StoredDataset(folder)).episodes.lengths.sum())


def _run(*words: object) -> None:
    text = [str(word) for word in words]
    with contextlib.redirect_stdout(io.StringIO()):
        code = rlds(text)
    if code:
        raise RuntimeError(f"rlds {' '.join(text)} ends with {code}, expected 0")


def _trained(task: Task, folder: Path, seed: int) -> dict[str, Any]:
    """Return the mean return of a policy of the program of a task, or None and the reason if the training stops."""
    import gymnasium
    import torch

    from datasets_rl import training

    program = importlib.import_module(f"datasets_rl.recipes.train.{task.program}")
    words = [*task.arguments.split(), "--no-eval", "--validation", "0", "--quiet"]
    with tempfile.TemporaryDirectory() as out:
        args = program.parse_arguments(["--dataset", str(folder), "--seed", str(seed), "--out", out, *words])
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                training.Run(task.program, args, program.open_dataset) as run,
            ):
                agent = program.Agent(run.dataset, run.action_space, args)
                run.train(agent)
        except InvalidArgumentError as error:
            return {"return": None, "reason": error.message}
    torch.set_num_threads(1)
    envs = gymnasium.vector.SyncVectorEnv([task.make] * _EVALUATED)
    episodes = training.play(envs, agent.start_policy(), list(range(_EVALUATED)))
    envs.close()
    return {"return": round(float(episodes.returns.mean()), 3)}


def missing(results: dict[str, Any], cases: tuple[Case, ...]) -> Iterator[Callable[[Path], None]]:
    """Yield what is to be run, seed by seed, so that each case has a result soon."""
    for seed in map(str, range(SEEDS)):
        for name in dict.fromkeys(case.task for case in cases):
            arm = results.setdefault(f"clean, {name}", {}).setdefault("clean", {})
            if seed not in arm:
                yield lambda folder, name=name, arm=arm, seed=seed: arm.update({seed: _clean(name, int(seed), folder)})
        for case in cases:
            arms = results.setdefault(case.name, {"check": case.check, **{arm: {} for arm in ARMS}})
            if any(seed not in arms[arm] for arm in ARMS):
                yield lambda folder, case=case, arms=arms, seed=seed: _fill(case, arms, seed, folder)


def _clean(name: str, seed: int, folder: Path) -> dict[str, Any]:
    TASKS[name].recording(seed).store(folder / "clean")
    return {**_trained(TASKS[name], folder / "clean", seed), "steps": _count(folder / "clean")}


def _fill(case: Case, arms: dict[str, Any], seed: str, folder: Path) -> None:
    known = {arm for arm in ARMS if seed in arms[arm]}
    for arm, result in measure(case, int(seed), dict.fromkeys(known), folder):
        arms[arm][seed] = result


def verdict(arms: Mapping[str, Any]) -> str:
    """Return "better", "worse", "the same", "nothing found", or "" if seeds are missing.

    The remedy is better if its lowest return is above the highest return of the faulty data, and above the highest return
    without random steps. A training that stops has the lowest return of all.
    """
    faulty, remedied, random = (_returns(arms[arm]) for arm in ARMS)
    if len(faulty) < SEEDS or len(remedied) < SEEDS:
        return ""
    if any(arms["remedied"][seed].get("reason") == _NOTHING for seed in arms["remedied"]):
        return _NOTHING
    others = [faulty, *([random] if any(one.get("reason") != _MOST for one in arms["random"].values()) else [])]
    if all(min(remedied) > max(other) for other in others):
        return "better"
    return "worse" if any(max(remedied) < min(other) for other in others) else "the same"


def helped(results: Mapping[str, Any]) -> set[str]:
    """Return the checks with a remedy that made training better, and none that made training worse."""
    found: dict[str, set[str]] = {}
    for arms in results.values():
        if "check" in arms:
            found.setdefault(arms["check"], set()).add(verdict(arms))
    return {check for check, verdicts in found.items() if "better" in verdicts and "worse" not in verdicts}


def _returns(arm: Mapping[str, Any]) -> list[float]:
    return [-np.inf if one["return"] is None else one["return"] for one in arm.values()]


def table_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the table as Markdown, in the order of the cases."""
    lines = ["| check | fault | task | remedy | faulty | remedied | random | clean | training |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    rows = []
    for case in CASES:
        arms = results.get(case.name)
        seeds = min((len(arms[arm]) for arm in ARMS), default=0) if arms else 0
        if not arms or not seeds:
            continue
        word = verdict(arms) or f"{seeds} of {SEEDS} seeds"
        remedies = {name for one in arms["remedied"].values() for name in one.get("remedies", ())}
        cells = [_cell(arms[arm]) for arm in ARMS] + [_cell(results[f"clean, {case.task}"]["clean"])]
        names = ", ".join(f"`{name}`" for name in sorted(remedies))
        what = f"`{case.check}` | {case.fault.replace('_', ' ')} | {case.task.replace('_', ', ')} | {names}"
        rows.append(f"| {what} | {' | '.join(cells)} | {word} |")
    return [*lines, *sorted(rows)]


def _cell(arm: Mapping[str, Any]) -> str:
    """Return the mean of the seeds, and the lowest and the highest return."""
    known = [one["return"] for one in arm.values() if one["return"] is not None]
    stopped = sum("diverged" in one.get("reason", "") for one in arm.values())
    if not known:
        return "stops" if stopped else ""
    text = f"{np.mean(known):.1f} ({min(known):.1f} to {max(known):.1f})"
    return f"{text}, {stopped} stop" if stopped else text


def write(results: Mapping[str, Any]) -> None:
    """Write the table into the page, and the names of the checks that help into the package."""
    text = PAGE.read_text("utf-8")
    before, rest = text.split(f"{START}\n", 1)
    lines = "\n".join(table_lines(results))
    PAGE.write_text(f"{before}{START}\n\n{lines}\n\n{END}{rest.split(END, 1)[1]}", "utf-8")
    names = "".join(f'        "{name}",\n' for name in sorted(helped(results)))
    module = Path(benefits.__file__)
    module.write_text(
        re.sub(r"\{\n.*?    \}", f"{{\n{names}    }}", module.read_text("utf-8"), count=1, flags=re.DOTALL), "utf-8"
    )


def read() -> dict[str, Any]:
    """Return what was measured so far."""
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only-write", action="store_true", help="run nothing")
    parser.add_argument("faults", nargs="*", help="names of faults, by default all")
    options = parser.parse_args()
    os.environ["RLDS_NO_PROGRESS"] = "1"
    results = read()
    cases = tuple(case for case in CASES if not options.faults or case.fault in options.faults)
    for run in () if options.only_write else missing(results, cases):
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))
        partial = RESULTS.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        partial.replace(RESULTS)
    write(results)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
