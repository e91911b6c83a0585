"""Mutations of tables: CSV, Parquet, Feather and JSON lines, a file or several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from layouts import ACTION, LAST, LENGTHS, NUMBERS, OBS, REWARD, STARTS, STEPS, TERMINATED, TRUNCATED
from mutants_oracle import FileMutant, Truth
from pyarrow import parquet

WITHIN = np.arange(STEPS) - STARTS[NUMBERS]
ROWS = np.arange(STEPS)
ELEMENTS = {
    **{f"obs_{number}": OBS[:, number] for number in range(3)},
    **{f"action_{number}": ACTION[:, number] for number in range(2)},
}
BASE = {"episode": NUMBERS, **ELEMENTS, "reward": REWARD}
"""Columns of a table with the number of the episode in each row."""
FLAGGED = {**ELEMENTS, "reward": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED}
"""Columns of a table with end flags."""
Columns = Mapping[str, Any]
Write = Callable[[Path, Columns], Path]


def csv(path: Path, columns: Columns, **options: Any) -> Path:
    """Write a CSV file."""
    pd.DataFrame(columns).to_csv(path.with_suffix(".csv"), index=False, **options)
    return path.with_suffix(".csv")


def frame_parquet(path: Path, columns: Columns) -> Path:
    """Write a Parquet file."""
    pd.DataFrame(columns).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def feather(path: Path, columns: Columns) -> Path:
    """Write a Feather file."""
    pd.DataFrame(columns).to_feather(path.with_suffix(".feather"))
    return path.with_suffix(".feather")


def jsonl(path: Path, columns: Columns) -> Path:
    """Write JSON lines. NaN is null."""
    frame = pd.DataFrame(columns)
    frame.to_json(path.with_suffix(".jsonl"), orient="records", lines=True, double_precision=15, date_format="iso")
    return path.with_suffix(".jsonl")


FORMATS: Mapping[str, Write] = {"CSV": csv, "Parquet": frame_parquet, "Feather": feather, "JSON lines": jsonl}


def truth(rows: Any = ROWS, lengths: Sequence[int] = tuple(LENGTHS.tolist()), **others: Any) -> Truth:
    """Return the values of some rows. `others` replaces values by the last name of their key."""
    values = {"observation": OBS[rows], "action": ACTION[rows], "next.reward": REWARD[rows]}
    names = {"reward": "next.reward", "terminated": "next.terminated", "truncated": "next.truncated"}
    return Truth(lengths, {**values, **{names.get(name, name): value for name, value in others.items()}})


RIGHT = (truth(),)


def ordered(columns: Columns, names: Sequence[str]) -> Columns:
    """Return columns in an order."""
    return {name: columns[name] for name in names}


def with_cell(columns: Columns, name: str, row: int, value: Any) -> Columns:
    """Return columns with another value in a cell."""
    values = [*np.asarray(columns[name]).tolist()]
    values[row] = value
    return {**columns, name: values}


def rows_of(columns: Columns, rows: Any) -> Columns:
    """Return some rows of columns."""
    return {name: np.asarray(values)[rows] for name, values in columns.items()}


def nan_at(values: np.ndarray, *place: int) -> np.ndarray:
    """Return floats with NaN at a place."""
    changed = np.array(values, np.float64)
    changed[place] = np.nan
    return changed


TWELVE = np.concatenate([OBS, OBS + 1, OBS + 2, OBS + 3], axis=1)
INTERLEAVED = np.array([0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11, 12])
SHUFFLED = np.random.default_rng(1).permutation(STEPS)
WITHIN_SHUFFLED = np.concatenate([ROWS[:4], ROWS[[6, 5, 8, 7, 4, 9]], ROWS[10:]])


def of_columns() -> Iterator[tuple[str, Columns, dict[str, Any]]]:
    """Yield the name of a mutation, the changed columns, and the arguments of the mutant."""
    right: dict[str, Any] = {"truths": RIGHT}
    flagged = {"truths": (truth(terminated=TERMINATED, truncated=TRUNCATED),)}
    yield "none", BASE, right
    yield "none, with flags", FLAGGED, flagged
    # Order of the columns.
    yield "columns in reversed order", ordered(BASE, [*BASE][::-1]), right
    twelve = {f"obs_{number}": TWELVE[:, number] for number in range(12)}
    others = {name: values for name, values in BASE.items() if not name.startswith("obs")}
    by_text = {name: twelve[name] for name in sorted(twelve)}
    yield "obs_10 before obs_2", {**by_text, **others}, {"truths": (truth(observation=TWELVE),)}
    # Index columns.
    yield "a column Unnamed: 0", {"Unnamed: 0": ROWS, **BASE}, right
    yield "a column index", {"index": ROWS, **BASE}, right
    yield "a column id with the number of the row", {"id": ROWS, **BASE}, right
    yield "a column step with resets", {**BASE, "step": WITHIN}, right
    yield "a column step without resets", {**BASE, "step": ROWS}, right
    yield "a column step that contradicts the episodes", {**BASE, "step": np.roll(WITHIN, 1)}, {}
    # Flags.
    for words in (("True", "False"), ("TRUE", "FALSE"), ("yes", "no"), ("Y", "N"), ("t", "f"), ("1", "0")):
        texts = {name: np.where(FLAGGED[name], *words) for name in ("terminated", "truncated")}
        yield f"flags {words[0]} and {words[1]}", {**FLAGGED, **texts}, flagged
    yield "flags 1.0 and 0.0", {**FLAGGED, "terminated": TERMINATED * 1.0, "truncated": TRUNCATED * 1.0}, flagged
    yield "an empty flag", with_cell(FLAGGED, "terminated", 2, None), {}
    yield "flags only where set", {**FLAGGED, "terminated": [True if one else None for one in TERMINATED]}, {}
    yield "flags 1 and -1", {**FLAGGED, "terminated": np.where(TERMINATED, 1, -1)}, {}
    yield "flags of the next rows", {**FLAGGED, "terminated": np.roll(LAST, 1), "truncated": np.zeros(STEPS, bool)}, {}
    # Empty and odd cells.
    for name, where in (("obs_1", 5), ("action_0", 5), ("reward", 5), ("obs_0", 0), ("reward", STEPS - 1)):
        spoiled = {
            "obs_1": {"observation": nan_at(OBS, where, 1)},
            "obs_0": {"observation": nan_at(OBS, where, 0)},
            "action_0": {"action": nan_at(ACTION, where, 0)},
            "reward": {"reward": nan_at(REWARD, where)},
        }[name]
        arguments = {"truths": (truth(**spoiled),), "counted": ("not-finite",)}
        yield f"an empty {name} in row {where}", with_cell(BASE, name, where, None), arguments
    yield "an empty episode number", with_cell(BASE, "episode", 5, None), {}
    yield "episode numbers only in first rows", {**BASE, "episode": np.where(WITHIN, None, NUMBERS)}, {}
    yield (
        "empty action in the last row of each episode",
        {
            **BASE,
            **{f"action_{n}": np.where(LAST, np.nan, ACTION[:, n]) for n in range(2)},
        },
        {"truths": (truth(action=np.where(LAST[:, None], np.nan, ACTION)),), "counted": ("not-finite",)},
    )
    texts = ["NA", "null", "None", "-", "#DIV/0!", "error", "n/a", ""]
    for text in texts:
        yield (
            f"the reward {text!r}",
            with_cell(BASE, "reward", 5, text),
            {
                "truths": (truth(reward=nan_at(REWARD, 5)),),
                "counted": ("not-finite",),
            },
        )
    infinite = REWARD.copy()
    infinite[5] = np.inf
    yield (
        "an infinite reward",
        {**BASE, "reward": infinite},
        {
            "truths": (truth(reward=infinite), truth(reward=nan_at(REWARD, 5))),
            "counted": ("not-finite",),
        },
    )
    yield "numbers as texts", {**BASE, "reward": [str(value) for value in REWARD]}, right
    yield "a number as text", with_cell(BASE, "reward", 5, str(REWARD[5])), right
    yield "numbers with units", {**BASE, "reward": [f"{value} m" for value in REWARD]}, {}
    yield "decimal commas in texts", {**BASE, "reward": [str(value).replace(".", ",") for value in REWARD]}, right
    yield (
        "thousands",
        {**BASE, "reward": [f"{value * 1e4:,.1f}" for value in REWARD]},
        {"truths": (truth(reward=(REWARD * 1e4).round(1)),)},
    )
    # Episodes.
    yield "episodes from 1", {**BASE, "episode": NUMBERS + 1}, right
    yield "episodes with gaps", {**BASE, "episode": np.array([3, 7, 20])[NUMBERS]}, right
    yield "episodes descend", {**BASE, "episode": 2 - NUMBERS}, right
    yield "episodes as floats", {**BASE, "episode": NUMBERS * 1.0}, right
    yield "episodes as texts", {**BASE, "episode": [f"run_{number}" for number in NUMBERS]}, right
    yield "episodes as texts of numbers", {**BASE, "episode": NUMBERS.astype(str)}, right
    yield "an episode number returns", {**BASE, "episode": np.array([0, 1, 0])[NUMBERS]}, {}
    yield "rows of two episodes alternate", rows_of(BASE, INTERLEAVED), right
    yield "rows of two episodes alternate, with step", rows_of({**BASE, "step": WITHIN}, INTERLEAVED), right
    yield "rows shuffled, with step", rows_of({**BASE, "step": WITHIN}, SHUFFLED), right
    yield "rows shuffled within an episode, with step", rows_of({**BASE, "step": WITHIN}, WITHIN_SHUFFLED), right
    yield "rows reversed, with step", rows_of({**BASE, "step": WITHIN}, ROWS[::-1]), right
    yield (
        "rows shuffled within an episode, with frame_index",
        (rows_of({**BASE, "frame_index": WITHIN}, WITHIN_SHUFFLED)),
        right,
    )
    yield (
        "rows shuffled within an episode, with timestamp",
        rows_of({**BASE, "timestamp": WITHIN * 0.1}, WITHIN_SHUFFLED),
        right,
    )
    yield "rows reversed, with timestamp", rows_of({**BASE, "timestamp": ROWS * 0.1}, ROWS[::-1]), right
    yield (
        "a step is missing",
        rows_of({**BASE, "step": WITHIN}, np.delete(ROWS, 6)),
        {
            "truths": (truth(np.delete(ROWS, 6), (4, 5, 3)),),
            "counted": ("missing-steps", "steps-from"),
        },
    )
    yield (
        "a row is doubled, with step",
        rows_of({**BASE, "step": WITHIN}, np.insert(ROWS, 6, 6)),
        {
            "truths": (truth(np.insert(ROWS, 6, 6), (4, 7, 3)),),
            "counted": ("equal-rows",),
        },
    )
    # Times.
    yield "timestamps in seconds", {**BASE, "timestamp": WITHIN * 0.1}, right
    yield (
        "timestamps in ns",
        {**BASE, "timestamp": 1_700_000_000_000_000_000 + ROWS * 100_000_000},
        {"truths": (truth(timestamp=1_700_000_000_000_000_000 + ROWS * 100_000_000),)},
    )
    yield "timestamps in ms", {**BASE, "timestamp": 1_700_000_000_000 + ROWS * 100}, right
    yield (
        "timestamps change from s to ms",
        {
            **BASE,
            "timestamp": np.where(NUMBERS == 1, WITHIN * 100, WITHIN * 0.1),
        },
        right,
    )
    yield "timestamps as ISO texts", {**BASE, "timestamp": [f"2026-01-01T00:00:{row:02}" for row in ROWS]}, right
    yield "timestamps as dates", {**BASE, "timestamp": pd.date_range("2026-01-01", periods=STEPS, freq="s")}, right
    flags_time = {**FLAGGED, "timestamp": WITHIN * 0.1}
    moved = np.isin(ROWS, [4, 9, 12])
    yield (
        "flags contradict the times",
        {
            **flags_time,
            "terminated": moved,
            "truncated": np.zeros(STEPS, bool),
        },
        {},
    )
    without = {name: values for name, values in BASE.items() if name != "episode"}
    yield "no ends, times with resets", {**without, "timestamp": WITHIN * 0.1}, right
    yield "no ends, step with resets", {**without, "step": WITHIN}, right
    yield "no ends, step from 1", {**without, "step": WITHIN + 1}, right
    yield "no ends, step counts by 5", {**without, "step": WITHIN * 5}, right
    # Lists.
    lists = {"episode": NUMBERS, "obs": OBS.tolist(), "action": ACTION.tolist(), "reward": REWARD}
    yield "lists", lists, right
    yield "a short list", with_cell(lists, "obs", 5, OBS[5, :2].tolist()), {}
    yield "a long list", with_cell(lists, "obs", 5, [*OBS[5], 1.0]), {}
    yield "an empty list", with_cell(lists, "obs", 5, []), {}
    yield "a list is null", with_cell(lists, "obs", 5, None), {}
    yield (
        "a null in a list",
        with_cell(lists, "obs", 5, [*OBS[5, :2], None]),
        {
            "truths": (truth(observation=nan_at(OBS, 5, 2)),),
            "counted": ("not-finite",),
        },
    )
    yield "shorter lists from row 4", {**lists, "obs": [*OBS[:4].tolist(), *OBS[4:, :2].tolist()]}, {}
    nested = np.stack([OBS, OBS + 1], axis=1)
    yield "nested lists", {**lists, "obs": nested.tolist()}, {"truths": (truth(observation=nested),)}
    ragged = [[[1.0, 2.0], [3.0]]] * STEPS
    yield "ragged nested lists", {**lists, "obs": ragged}, {}
    yield "lists as texts", {**lists, "obs": [json.dumps(row) for row in OBS.tolist()]}, right
    yield "numpy's lists as texts", {**lists, "obs": [str(row).replace(",", "") for row in OBS.tolist()]}, right
    yield "lists of texts", {**lists, "obs": [[str(one) for one in row] for row in OBS.tolist()]}, right
    yield (
        "objects",
        {**lists, "obs": [{"x": row[0], "y": row[1], "z": row[2]} for row in OBS.tolist()]},
        {
            "truths": (
                Truth(LENGTHS.tolist(), {"observation.x": OBS[:, 0], "observation.z": OBS[:, 2], "action": ACTION}),
            )
        },
    )
    yield (
        "an object lacks a name",
        {
            **lists,
            "obs": [{"x": row[0], **({"y": row[1]} if number != 5 else {})} for number, row in enumerate(OBS.tolist())],
        },
        {},
    )
    yield (
        "an episode in each row",
        {
            "obs": [OBS[number == NUMBERS].tolist() for number in range(3)],
            "action": [ACTION[number == NUMBERS].tolist() for number in range(3)],
            "reward": [REWARD[number == NUMBERS].tolist() for number in range(3)],
        },
        right,
    )
    # Names.
    yield "names in capitals", {name.upper(): values for name, values in BASE.items()}, right
    yield "names with spaces", {f" {name} ": values for name, values in BASE.items()}, right
    yield (
        "elements from 1",
        {
            "episode": NUMBERS,
            **{f"obs_{n + 1}": OBS[:, n] for n in range(3)},
            **{f"action_{n + 1}": ACTION[:, n] for n in range(2)},
            "reward": REWARD,
        },
        right,
    )
    yield "the first element of obs is missing", {k: v for k, v in BASE.items() if k != "obs_0"}, {}
    yield "the middle element of obs is missing", {k: v for k, v in BASE.items() if k != "obs_1"}, {}
    yield (
        "elements x, y, z",
        {
            "episode": NUMBERS,
            **{f"obs_{axis}": OBS[:, n] for n, axis in enumerate("xyz")},
            **{f"action_{n}": ACTION[:, n] for n in range(2)},
            "reward": REWARD,
        },
        right,
    )
    yield (
        "elements with padded numbers",
        {
            **{f"obs_{n:02}": TWELVE[:, n] for n in range(12)},
            **others,
        },
        {"truths": (truth(observation=TWELVE),)},
    )
    yield (
        "a target beside the elements",
        {**BASE, "obs_3": OBS[:, 0]},
        {"truths": (truth(observation=np.column_stack([OBS, OBS[:, 0]])),)},
    )
    following = {f"next_obs_{n}": np.roll(OBS, -1, axis=0)[:, n] for n in range(3)}
    yield "next_obs", {**FLAGGED, **following}, flagged
    yield "next_obs of the same row", {**FLAGGED, **{f"next_obs_{n}": OBS[:, n] for n in range(3)}}, {}
    # Numbers.
    big = np.array([2**60 + row for row in ROWS])
    yield "large integers in obs_0", {**BASE, "obs_0": big}, {}
    yield "integers above int64", {**BASE, "reward": [2**63 + row for row in range(STEPS)]}, {}
    whole = OBS.copy()
    whole[:, 0] = (OBS[:, 0] * 10).round()
    yield "an element of integers", {**BASE, "obs_0": whole[:, 0].astype(int)}, {"truths": (truth(observation=whole),)}
    yield (
        "integers with a fraction in the last row",
        {
            **BASE,
            "reward": [*range(STEPS - 1), 0.5],
        },
        {"truths": (truth(reward=[*range(STEPS - 1), 0.5]),)},
    )
    yield "booleans as rewards", {**BASE, "reward": LAST}, {"truths": (truth(reward=LAST * 1.0),)}
    yield (
        "a boolean element",
        {**BASE, "obs_0": LAST},
        {"truths": (truth(observation=np.column_stack([LAST * 1.0, OBS[:, 1:]])),)},
    )
    yield (
        "a discrete action",
        {**{k: v for k, v in BASE.items() if "action" not in k}, "action": NUMBERS},
        {"truths": (truth(action=NUMBERS),)},
    )
    yield (
        "a discrete action with an empty cell",
        with_cell({**{k: v for k, v in BASE.items() if "action" not in k}, "action": NUMBERS}, "action", 5, None),
        {"truths": (truth(action=nan_at(NUMBERS, 5)),), "counted": ("not-finite",)},
    )
    yield (
        "actions as words",
        {
            **{k: v for k, v in BASE.items() if "action" not in k},
            "action": np.array(["left", "right", "up"])[NUMBERS],
        },
        {"truths": (truth(action=np.array(["left", "right", "up"])[NUMBERS]),)},
    )
    yield (
        "rows equal the row before",
        rows_of(BASE, np.insert(ROWS, 6, 6)),
        {
            "truths": (truth(np.insert(ROWS, 6, 6), (4, 7, 3)),),
            "counted": ("equal-rows",),
        },
    )
    yield "a last row without values", {name: [*np.asarray(values).tolist(), None] for name, values in BASE.items()}, {}
    yield (
        "a reward for each episode",
        {**BASE, "reward": np.where(LAST, REWARD, np.nan)},
        {
            "truths": (truth(reward=np.where(LAST, REWARD, np.nan)),),
            "counted": ("not-finite",),
        },
    )


def in_formats() -> Iterator[FileMutant]:
    """Yield the changes of columns in each format that can hold the columns."""
    for name, write in FORMATS.items():
        for mutation, columns, arguments in of_columns():
            if name in {"Parquet", "Feather"} and any(map(_has_several_types, columns.values())):
                continue
            yield FileMutant(mutation, name, lambda folder, w=write, c=columns: w(folder / "data", c), **arguments)


PARTS = (range(6), range(6, 13))
"""Rows of two files: the second episode begins in the first file and ends in the second file."""
OWN = [ROWS[number == NUMBERS] for number in range(3)]
"""Rows of each episode."""
PLAIN = {name: values for name, values in BASE.items() if name != "episode"}


def folder_of(files: Mapping[str, Columns], write: Write = csv) -> Callable[[Path], Path]:
    """Return a writer of a folder with a table for each name."""

    def write_all(folder: Path) -> Path:
        for name, columns in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(folder / name, columns)
        return folder

    return write_all


def of_folders() -> Iterator[tuple[str, Mapping[str, Columns], dict[str, Any]]]:
    """Yield the name of a mutation, the tables of a folder, and the arguments of the mutant."""
    right: dict[str, Any] = {"truths": RIGHT}
    by_file = {f"ep_{number}": rows_of(PLAIN, rows) for number, rows in enumerate(OWN)}
    yield "a file for each episode", by_file, right
    names = ["ep_2", "ep_10", "ep_11"]
    yield (
        "numbers without zeros",
        dict(zip(names, by_file.values(), strict=True)),
        {**right, "counted": ("missing-numbers", "missing-files", "same-row")},
    )
    yield "numbers from 1", {f"ep_{n + 1}": one for n, one in enumerate(by_file.values())}, right
    yield (
        "a gap in the numbers",
        dict(zip(["ep_0", "ep_1", "ep_3"], by_file.values(), strict=True)),
        {
            **right,
            "counted": ("missing-files",),
        },
    )
    yield "folders for episodes", {f"ep_{n}/log": one for n, one in enumerate(by_file.values())}, right
    yield (
        "folders for episodes, with a gap and without zeros",
        {f"ep_{n}/log": one for n, one in zip((2, 9, 10), by_file.values(), strict=True)},
        right,
    )
    yield "hive partitions", {f"episode={n}/part-0": one for n, one in enumerate(by_file.values())}, right
    parts = {f"part_{n}": rows_of(BASE, rows) for n, rows in enumerate(PARTS)}
    yield "an episode in two parts", parts, right
    yield (
        "an episode in two parts, numbers without zeros",
        {
            "part_9": parts["part_0"],
            "part_10": parts["part_1"],
        },
        right,
    )
    stepped = {f"part_{n}": rows_of({**BASE, "step": WITHIN}, rows) for n, rows in enumerate(PARTS)}
    yield "an episode in two parts, with step", stepped, right
    plain_steps = {f"part_{n}": rows_of({**PLAIN, "step": WITHIN}, rows) for n, rows in enumerate(PARTS)}
    yield "an episode in two parts, with step alone", plain_steps, right
    flagged = {f"part_{n}": rows_of(FLAGGED, rows) for n, rows in enumerate(PARTS)}
    yield (
        "an episode in two parts, with flags",
        flagged,
        {
            "truths": (truth(), truth(lengths=(4, 2, 4, 3))),
            "counted": ("end-without-flag",),
        },
    )
    yield "parts without marks", {f"part_{n}": rows_of(PLAIN, rows) for n, rows in enumerate(PARTS)}, {}
    yield "chunks without marks", {f"chunk_{n}": rows_of(PLAIN, rows) for n, rows in enumerate(PARTS)}, {}
    yield "shards without marks", {f"data-{n:05}-of-00002": rows_of(PLAIN, rows) for n, rows in enumerate(PARTS)}, {}
    yield (
        "train and test without marks",
        {name: rows_of(PLAIN, rows) for name, rows in zip(("train", "test"), PARTS, strict=True)},
        {},
    )
    whole = {f"part_{n}": rows_of(BASE, rows) for n, rows in enumerate((range(4), range(4, 13)))}
    yield "episodes in parts", whole, right
    restarted = {
        f"part_{n}": {**one, "episode": np.asarray(one["episode"]) - min(one["episode"])}
        for n, one in enumerate(whole.values())
    }
    yield "episodes in parts, numbers restart", restarted, right
    run = {"a": rows_of(BASE, [*OWN[0], *OWN[1]]), "b": {**rows_of(BASE, OWN[2]), "episode": np.ones(3, int)}}
    yield "the last number of a file is the first of the next", run, {}
    # Other types and columns among the files.
    first, second, third = by_file.values()
    whole_rewards = {**second, "reward": np.arange(6)}
    changed = REWARD.copy()
    changed[4:10] = np.arange(6)
    yield (
        "rewards of integers in a file",
        {"ep_0": first, "ep_1": whole_rewards, "ep_2": third},
        {"truths": (truth(reward=changed),)},
    )
    yield (
        "rewards of integers in the first file",
        {"ep_0": whole_rewards, "ep_1": first, "ep_2": third},
        {"truths": (truth([*OWN[1], *OWN[0], *OWN[2]], (6, 4, 3), reward=[*range(6), *REWARD[:4], *REWARD[10:]]),)},
    )
    discrete = {k: v for k, v in first.items() if "action" not in k}
    yield "discrete actions in a file", {"ep_0": {**discrete, "action": np.zeros(4, int)}, "ep_1": second}, {}
    yield (
        "float32 in a file",
        {
            "ep_0": first,
            "ep_1": {name: np.asarray(values, np.float32) for name, values in second.items()},
            "ep_2": third,
        },
        {"truths": (Truth(LENGTHS.tolist(), truth().columns, loss=1e-5),)},
    )
    yield (
        "columns in another order in a file",
        {
            "ep_0": first,
            "ep_1": ordered(second, [*second][::-1]),
            "ep_2": third,
        },
        right,
    )
    yield (
        "a column is missing in a file",
        {
            "ep_0": first,
            "ep_1": {k: v for k, v in second.items() if k != "obs_2"},
            "ep_2": third,
        },
        {},
    )
    yield (
        "a column is missing in the first file",
        {
            "ep_0": {k: v for k, v in first.items() if k != "obs_2"},
            "ep_1": second,
            "ep_2": third,
        },
        {},
    )
    yield (
        "the reward is missing in a file",
        {
            "ep_0": first,
            "ep_1": {k: v for k, v in second.items() if k != "reward"},
            "ep_2": third,
        },
        {},
    )
    yield "another column in a file", {"ep_0": first, "ep_1": {**second, "obs_3": np.zeros(6)}, "ep_2": third}, {}
    yield (
        "an unknown column in a file",
        {"ep_0": first, "ep_1": {**second, "speed": np.zeros(6)}, "ep_2": third},
        {
            **right,
            "counted": ("left-out",),
        },
    )
    yield (
        "another name of an element in a file",
        {
            "ep_0": first,
            "ep_1": {{"obs_2": "obs_3"}.get(k, k): v for k, v in second.items()},
            "ep_2": third,
        },
        {},
    )
    yield (
        "a file without rows",
        {"ep_0": first, "ep_1": rows_of(second, []), "ep_2": second, "ep_3": third},
        {
            **right,
            "counted": ("no-transition",),
        },
    )
    yield (
        "an episode twice",
        {"ep_0": first, "ep_1": second, "ep_2": second, "ep_3": third},
        {
            "truths": (truth([*OWN[0], *OWN[1], *OWN[1], *OWN[2]], (4, 6, 6, 3)),),
            "counted": ("equal-episodes",),
        },
    )
    flags = {f"ep_{n}": rows_of(FLAGGED, rows) for n, rows in enumerate(OWN)}
    yield "flags in all files", flags, {"truths": (truth(terminated=TERMINATED, truncated=TRUNCATED),)}
    ends = {"terminated": TERMINATED & (NUMBERS == 1), "truncated": LAST & ~(TERMINATED & (NUMBERS == 1))}
    yield "flags in a file", {**by_file, "ep_1": flags["ep_1"]}, {"truths": (truth(**ends),), "counted": ("by-file",)}
    ends = {"terminated": TERMINATED & (NUMBERS != 1), "truncated": LAST & ~(TERMINATED & (NUMBERS != 1))}
    yield (
        "no flags in a file",
        {**flags, "ep_1": by_file["ep_1"]},
        {
            "truths": (truth(**ends),),
            "counted": ("end-without-flag",),
        },
    )
    several = {
        f"log_{n}": rows_of({**FLAGGED, "episode": NUMBERS}, rows) for n, rows in enumerate((ROWS[:10], ROWS[10:]))
    }
    unmarked = {name: {k: v for k, v in one.items() if k != "episode"} for name, one in several.items()}
    bare = {
        name: {k: v for k, v in one.items() if k not in {"terminated", "truncated"}} for name, one in several.items()
    }
    yield "files of several episodes", several, {"truths": (truth(terminated=TERMINATED, truncated=TRUNCATED),)}
    yield (
        "files of several episodes, the first without marks",
        {"log_0": rows_of(PLAIN, ROWS[:10]), "log_1": unmarked["log_1"]},
        {},
    )
    swapped = {"log_0": several["log_1"], "log_1": rows_of(PLAIN, ROWS[:10])}
    yield "files of several episodes, the last without marks", swapped, {}
    yield (
        "files of several episodes, one with numbers and one with flags",
        {
            "log_0": bare["log_0"],
            "log_1": unmarked["log_1"],
        },
        right,
    )
    # Further files.
    for name in (".ipynb_checkpoints/ep_1-checkpoint", "._ep_1", "backup/ep_1", "ep_1 (1)", "ep_1_copy", "old_ep_1"):
        # Rows that no other file has, as those of an earlier state of the file.
        older = {**second, "reward": np.asarray(second["reward"]) + 1}
        added = {**by_file, name: older}
        yield f"a further file {name.partition('/')[0]}", added, right
    yield "a further file of statistics", {**by_file, "stats": {"name": ["obs", "action"], "mean": [0.5, 0.1]}}, right
    yield "a further file of episodes", {**by_file, "episodes": {"episode": [0, 1, 2], "length": LENGTHS}}, right
    yield "a further file of metadata", {**by_file, "metadata": {"key": ["fps"], "value": [10]}}, right


def in_folders() -> Iterator[FileMutant]:
    """Yield the changes of folders of tables in each format."""
    for name in ("CSV", "Parquet", "JSON lines"):
        for mutation, files, arguments in of_folders():
            yield FileMutant(mutation, f"folder of {name}", folder_of(files, FORMATS[name]), **arguments)
    second = rows_of(PLAIN, OWN[1])

    def mixed(folder: Path) -> Path:
        folder_of({f"ep_{n}": rows_of(PLAIN, rows) for n, rows in enumerate(OWN)}, frame_parquet)(folder)
        csv(folder / "ep_3", second)
        return folder

    yield FileMutant(
        "a further CSV file",
        "folder of Parquet",
        mixed,
        (truth([*ROWS, *OWN[1]], (4, 6, 3, 6)),),
    )

    def twice(folder: Path) -> Path:
        csv(folder / "data", BASE)
        frame_parquet(folder / "data", BASE)
        return folder

    yield FileMutant("the same table as CSV", "folder of Parquet", twice, RIGHT)

    def and_archive(folder: Path) -> Path:
        path = csv(folder / "data", BASE)
        pd.DataFrame(BASE).to_csv(folder / "data.csv.gz", index=False)
        return path.parent

    yield FileMutant("the same table packed", "folder of CSV", and_archive, RIGHT, ("equal-episodes",))


def as_text(change: Callable[[str], str | bytes], columns: Columns = BASE, **options: Any) -> Callable[[Path], Path]:
    """Return a writer of the changed text of a CSV file."""

    def write(folder: Path) -> Path:
        text = change(pd.DataFrame(columns).to_csv(index=False, **options))
        (folder / "data.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder / "data.csv"

    return write


def of_texts() -> Iterator[FileMutant]:
    """Yield changes of the text of CSV files."""

    def lines(text: str) -> list[str]:
        return text.splitlines()

    def joined(kept: Sequence[str]) -> str:
        return "".join(f"{line}\n" for line in kept)

    changes: dict[str, tuple[Callable[[str], str | bytes], tuple[Truth, ...]]] = {
        "CRLF": (lambda text: text.replace("\n", "\r\n"), RIGHT),
        "CR": (lambda text: text.replace("\n", "\r"), RIGHT),
        "a byte-order mark": (lambda text: "\ufeff" + text, RIGHT),
        "UTF-16": (lambda text: text.encode("utf-16"), RIGHT),
        "a comment before the header": (lambda text: "# recorded today\n" + text, ()),
        "blank lines": (lambda text: text.replace("\n", "\n\n"), RIGHT),
        "a header in the middle": (lambda text: joined([*lines(text)[:7], lines(text)[0], *lines(text)[7:]]), ()),
        "units below the header": (lambda text: joined([lines(text)[0], ",".join("m" * 7), *lines(text)[1:]]), ()),
        "no header": (lambda text: text.partition("\n")[2], ()),
        "two columns of one name": (lambda text: text.replace("obs_1", "obs_0", 1), ()),
        "a last comma in each row": (lambda text: text.replace("\n", ",\n"), RIGHT),
        "a last comma in the rows, not in the header": (
            lambda text: text.partition("\n")[0] + "\n" + text.partition("\n")[2].replace("\n", ",\n"),
            (),
        ),
        "a cell less in a row": (lambda text: joined([*lines(text)[:5], lines(text)[5].rpartition(",")[0], *lines(text)[6:]]), ()),
        "a cell more in a row": (lambda text: joined([*lines(text)[:5], lines(text)[5] + ",1", *lines(text)[6:]]), ()),
        "the last line is cut": (lambda text: text[:-20], ()),
        "a line is cut and continued": (lambda text: text.replace("0", "0\n", 1), ()),
        "spaces after commas": (lambda text: text.replace(",", ", "), RIGHT),
        "spaces before commas": (lambda text: text.replace(",", " ,"), RIGHT),
        "tabs": (lambda text: text.replace(",", "\t"), RIGHT),
        "semicolons": (lambda text: text.replace(",", ";"), RIGHT),
        "semicolons and decimal commas": (lambda text: text.replace(",", ";").replace(".", ","), RIGHT),
        "semicolons, and decimal commas in a column": (
            lambda text: joined(
                [line.replace(",", ";").replace(".", ",", 1) if n else line.replace(",", ";") for n, line in enumerate(lines(text))]
            ),
            RIGHT,
        ),
        "vertical bars": (lambda text: text.replace(",", "|"), RIGHT),
        "single quotes": (lambda text: text.replace("0.", "'0."), ()),
        "a statement sep=": (lambda text: "sep=,\n" + text, RIGHT),
        "a sum in the last row": (lambda text: text + "sum,,,,,,1.5\n", ()),
        "a NUL byte": (lambda text: text.replace("reward", "rew\0ard"), ()),
        "full-width digits": (lambda text: text.replace("0.4", "\uff10.4"), RIGHT),
        "an exponent with D": (lambda text: text.replace(".", "D", 1), ()),
    }  # fmt: skip
    for mutation, (change, truths) in changes.items():
        yield FileMutant(mutation, "text of CSV", as_text(change), truths)
    cut = REWARD.copy()
    cut[-1] = float(str(REWARD[-1])[:-3])
    yield FileMutant(
        "the last line is cut within a number",
        "text of CSV",
        as_text(lambda text: text[:-4]),
        (truth(reward=cut),),
        ("unended-line",),
    )
    yield FileMutant("an index without a name", "text of CSV", _indexed, RIGHT)
    yield FileMutant(
        "numbers of two digits",
        "text of CSV",
        as_text(str, float_format="%.2f"),
        (Truth(LENGTHS.tolist(), truth().columns, loss=0.006),),
    )


def _indexed(folder: Path) -> Path:
    pd.DataFrame(BASE).to_csv(folder / "data.csv")
    return folder / "data.csv"


def of_json_lines() -> Iterator[FileMutant]:
    """Yield changes of the text of JSON lines."""
    rows = [
        {
            "episode": int(NUMBERS[row]),
            "obs": OBS[row].tolist(),
            "action": ACTION[row].tolist(),
            "reward": float(REWARD[row]),
        }
        for row in ROWS
    ]
    texts = [json.dumps(row) for row in rows]

    def changed(row: int, text: str) -> Callable[[Path], Path]:
        def write(folder: Path) -> Path:
            lines = [text if number == row else one for number, one in enumerate(texts)]
            (folder / "data.jsonl").write_text("".join(f"{line}\n" for line in lines))
            return folder / "data.jsonl"

        return write

    def without(name: str) -> str:
        return json.dumps({key: value for key, value in rows[5].items() if key != name})

    reward = json.dumps(rows[5]["reward"])
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "none": (texts[5], {"truths": RIGHT}),
        "a row has no reward": (without("reward"), {}),
        "a row has no episode": (without("episode"), {}),
        "a row has a further value": (json.dumps({**rows[5], "speed": 1.0}), {}),
        "values in another order": (json.dumps(dict([*rows[5].items()][::-1])), {"truths": RIGHT}),
        "a value twice": (texts[5].replace("{", '{"reward": 7.5, ', 1), {}),
        "NaN": (texts[5].replace(reward, "NaN"), {"truths": (truth(reward=nan_at(REWARD, 5)),), "counted": ("not-finite",)}),
        "null": (texts[5].replace(reward, "null"), {"truths": (truth(reward=nan_at(REWARD, 5)),), "counted": ("not-finite",)}),
        "a boolean": (texts[5].replace(reward, "true"), {}),
        "a text": (texts[5].replace(reward, '"1.5"'), {}),
        "a list": (texts[5].replace(reward, f"[{reward}]"), {}),
        "a number beyond float64": (texts[5].replace(reward, "1e999"), {
            "truths": (truth(reward=np.where(ROWS == 5, np.inf, REWARD)),), "counted": ("not-finite",)}),
        "a cut line": (texts[5][:-9], {}),
        "two rows in a line": (texts[5] + texts[6], {}),
        "a list in a line": (json.dumps([*rows[5].values()]), {}),
        "an empty object": ("{}", {}),
        "a comment": ("# " + texts[5], {}),
    }  # fmt: skip
    for mutation, (text, arguments) in cases.items():
        yield FileMutant(mutation, "text of JSON lines", changed(5, text), **arguments)


def arrow_table(change: Callable[[pa.Table], pa.Table], columns: Columns = BASE) -> Callable[[Path], Path]:
    """Return a writer of a changed table of Arrow as Parquet."""

    def write(folder: Path) -> Path:
        parquet.write_table(change(pa.table({k: pa.array(v) for k, v in columns.items()})), folder / "data.parquet")
        return folder / "data.parquet"

    return write


def cast(name: str, kind: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a change of the type of a column."""

    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        return table.set_column(place, name, table[name].cast(kind, safe=False))

    return change


def of_types() -> Iterator[FileMutant]:
    """Yield changes of the types of Parquet files."""
    half = REWARD.astype(np.float16)
    lists = {"episode": NUMBERS, "obs": OBS.tolist(), "action": ACTION.tolist(), "reward": REWARD}
    changes: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "float16": (cast("reward", pa.float16()), BASE, {"truths": (truth(reward=half.astype(float)),)}),
        "float32": (cast("reward", pa.float32()), BASE, {"truths": (Truth(LENGTHS.tolist(), truth().columns, loss=1e-5),)}),
        "an element of float32": (cast("obs_0", pa.float32()), BASE, {"truths": (Truth(LENGTHS.tolist(), truth().columns, loss=1e-5),)}),
        "decimals": (cast("reward", pa.decimal128(12, 6)), BASE, {"truths": RIGHT}),
        "episodes of uint64": (cast("episode", pa.uint64()), BASE, {"truths": RIGHT}),
        "episodes of int8": (cast("episode", pa.int8()), BASE, {"truths": RIGHT}),
        "episodes as a dictionary": (
            lambda table: table.set_column(0, "episode", table["episode"].cast(pa.string()).dictionary_encode()), BASE, {"truths": RIGHT}),
        "a dictionary of numbers": (
            lambda table: table.set_column(6, "reward", table["reward"].dictionary_encode()), BASE, {"truths": RIGHT}),
        "large strings": (lambda table: cast("episode", pa.large_string())(cast("episode", pa.string())(table)), BASE, {"truths": RIGHT}),
        "timestamps of ns": (
            lambda table: table.append_column("timestamp", pa.array(ROWS * 10**9).cast(pa.timestamp("ns"))), BASE, {"truths": RIGHT}),
        "durations": (
            lambda table: table.append_column("timestamp", pa.array(ROWS * 10**9).cast(pa.duration("ns"))), BASE, {"truths": RIGHT}),
        "fixed lists": (cast("obs", pa.list_(pa.float64(), 3)), lists, {"truths": RIGHT}),
        "large lists": (cast("obs", pa.large_list(pa.float64())), lists, {"truths": RIGHT}),
        "lists of float16": (cast("obs", pa.list_(pa.float16())), lists, {"truths": (Truth(LENGTHS.tolist(), {"observation": OBS}, loss=0.01),)}),
        "groups of 5 rows": (lambda table: table, lists, {"truths": RIGHT}),
        "actions as bytes": (
            lambda table: table.set_column(2, "action", pa.array([row.tobytes() for row in ACTION])), lists, {}),
        "actions as lists of bytes": (
            lambda table: table.set_column(2, "action", pa.array([[b"1", b"2"]] * STEPS)), lists, {}),
        "an observation of maps": (
            lambda table: table.set_column(1, "obs", pa.array([[("x", 1.0)]] * STEPS, pa.map_(pa.string(), pa.float64()))), lists, {}),
        "a column of nulls": (lambda table: table.append_column("cost", pa.nulls(STEPS)), BASE, {"truths": RIGHT}),
        "rewards of nulls": (lambda table: table.set_column(6, "reward", pa.nulls(STEPS, pa.float64())), BASE, {}),
        "an index of pandas": (lambda table: table.append_column("__index_level_0__", pa.array(ROWS)), BASE, {"truths": RIGHT}),
    }  # fmt: skip
    for mutation, (change, columns, arguments) in changes.items():
        yield FileMutant(mutation, "types of Parquet", arrow_table(change, columns), **arguments)

    def in_groups(folder: Path) -> Path:
        table = pa.table({k: pa.array(v) for k, v in lists.items()})
        parquet.write_table(table, folder / "data.parquet", row_group_size=5)
        return folder / "data.parquet"

    yield FileMutant("row groups of 5", "types of Parquet", in_groups, RIGHT)

    def in_pandas(folder: Path) -> Path:
        pd.DataFrame(BASE).set_index("episode").to_parquet(folder / "data.parquet")
        return folder / "data.parquet"

    yield FileMutant("the episodes are the index of pandas", "types of Parquet", in_pandas, RIGHT)

    def sliced(folder: Path) -> Path:
        pd.DataFrame(BASE).iloc[4:].to_parquet(folder / "data.parquet")
        return folder / "data.parquet"

    yield FileMutant("rows of a larger frame", "types of Parquet", sliced, (truth(ROWS[4:], (6, 3)),))


def mutants() -> Iterator[FileMutant]:
    """Yield all mutants of tables."""
    yield from in_formats()
    yield from in_folders()
    yield from of_texts()
    yield from of_json_lines()
    yield from of_types()


def _has_several_types(values: Any) -> bool:
    """Return whether a column has texts and numbers, which columns with a type do not hold."""
    texts = [isinstance(value, str) for value in values if value is not None]
    return any(texts) and not all(texts)
