"""Layouts of tables of text, of JSON, of RLlib and of pickles, with the three episodes of `layouts`."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from layouts import (
    ACTION,
    ACTIONS,
    CSV,
    ELEMENTS,
    EPISODES,
    FLAT,
    LAST,
    NEXT_OBS,
    NUMBERS,
    OBS,
    REWARD,
    REWARDS,
    STARTS,
    STATES,
    STEPS,
    TERMINATED,
    TRUNCATED,
    Layout,
    dump,
    frame,
    hdf5,
    npz,
    text,
)
from layouts import LAYOUTS as OTHERS

COLUMNS = {**ELEMENTS, "reward": REWARD, "terminated": TERMINATED.astype(int), "truncated": TRUNCATED.astype(int)}
ROWS = [
    {
        "obs": OBS[row].tolist(),
        "action": ACTION[row].tolist(),
        "reward": float(REWARD[row]),
        "terminated": bool(TERMINATED[row]),
        "truncated": bool(TRUNCATED[row]),
    }
    for row in range(STEPS)
]
TUPLES = [(OBS[row], ACTION[row], REWARD[row], NEXT_OBS[row], bool(LAST[row])) for row in range(STEPS)]
OF_EPISODE = [np.flatnonzero(number == NUMBERS) for number in range(3)]
ALTERNATING = np.array([0, 4, 1, 5, 2, 6, 3, 7, 10, 8, 11, 9, 12])
"""The rows of the first two episodes in turn, and those of the third from the end of the first."""


def csv_text(delimiter: str = ",", end: str = "\n", *, header: bool = True, quote: str = "", point: str = ".") -> str:
    """Return the rows of `COLUMNS` as CSV."""
    rows = [[str(value).replace(".", point) for value in row] for row in zip(*COLUMNS.values(), strict=True)]
    lines = [[*COLUMNS], *rows] if header else rows
    return "".join(delimiter.join(f"{quote}{cell}{quote}" for cell in line) + end for line in lines)


def json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as lines of JSON."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def pack(values: Any) -> str:
    """Return an array as RLlib packs arrays."""
    return base64.b64encode(pa.compress(pickle.dumps(values), "lz4", asbytes=True)).decode()


def batches(
    order: Sequence[int] = range(STEPS), size: int = 4, *, packed: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Return RLlib's batches of some rows."""
    columns = {
        "obs": OBS,
        "new_obs": NEXT_OBS,
        "actions": ACTION,
        "rewards": REWARD,
        "terminateds": TERMINATED,
        "truncateds": TRUNCATED,
        "eps_id": NUMBERS + 7,
        "t": np.arange(STEPS) - STARTS[NUMBERS],
        "unroll_id": np.zeros(STEPS, int),
        "agent_index": np.zeros(STEPS, int),
        "action_logp": REWARD,
        **more,
    }
    rows = [np.array(order)[start : start + size] for start in range(0, len(order), size)]
    packs = {"obs", "new_obs"} if packed else {}
    return [
        {
            "type": "SampleBatch",
            **{name: pack(values[own]) if name in packs else values[own].tolist() for name, values in columns.items()},
            "infos": [{} for _ in own],
        }
        for own in rows
    ]


def ray_columns(path: Path) -> Path:
    """Write the columns of RLlib's episodes, with a packed array in each row."""
    pd.DataFrame(
        {
            "eps_id": [f"episode {'bac'[number]}" for number in NUMBERS],
            "agent_id": [None] * STEPS,
            "obs": [*map(pack, OBS)],
            "new_obs": [*map(pack, NEXT_OBS)],
            "actions": ACTION.tolist(),
            "rewards": REWARD,
            "terminateds": TERMINATED,
            "truncateds": TRUNCATED,
        }
    ).to_parquet(path / "data.parquet")
    return path / "data.parquet"


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return an array of objects."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


TABLES: Mapping[str, Layout] = {
    "CSV without a header": Layout(
        text("data.csv", lambda: csv_text(header=False)),
        'columns = ["obs_0", "obs_1", "obs_2", "action_0", "action_1", "reward", "terminated", "truncated"]',
    ),
    "CSV of a European Excel, with semicolons and decimal commas": Layout(
        text("data.csv", lambda: csv_text(";", "\r\n", point=","))
    ),
    "CSV of a spreadsheet, quoted, with a byte-order mark": Layout(
        text("data.csv", lambda: "\ufeff" + csv_text(end="\r\n", quote='"'))
    ),
    "CSV with JSON in cells": Layout(
        frame(
            CSV,
            "data.csv",
            obs=[json.dumps({"state": row.tolist()}) for row in OBS],
            action=ACTION.tolist(),
            reward=REWARD,
            done=LAST,
        )
    ),
    "CSV with the name of the trial in each row": Layout(
        frame(CSV, "data.csv", trial=[f"run {'bac'[number]}" for number in NUMBERS], **ELEMENTS, reward=REWARD),
        terminated=False,
    ),
    "packed JSON lines": Layout(text("data.jsonl.gz", lambda: json_lines(ROWS))),
    "JSON lines with an episode in each line": Layout(
        text(
            "data.jsonl",
            lambda: json_lines([{name: values.tolist() for name, values in episode.items()} for episode in EPISODES]),
        )
    ),
    "a JSON file with a list of steps": Layout(text("data.json", lambda: json.dumps(ROWS))),
    "a JSON file with a list of numbers for each field": Layout(
        text("data.json", lambda: json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}))
    ),
    "RLlib's batches": Layout(text("output-2026-11-28_worker-0_0.json", lambda: json_lines(batches())), finals=True),
    "RLlib's batches of several environments": Layout(
        text("data.jsonl", lambda: json_lines(batches(ALTERNATING, packed=False))), finals=True
    ),
    "RLlib's columns in Parquet": Layout(ray_columns, finals=True),
    "a pickle of a dict of episodes": Layout(dump({f"ep_{number}": one for number, one in enumerate(EPISODES)})),
    "a pickle of a list of tuples for each episode": Layout(
        dump([[TUPLES[row] for row in rows] for rows in OF_EPISODE]), finals=True
    ),
    "a pickle of a list of dicts for each episode": Layout(dump([[ROWS[row] for row in rows] for rows in OF_EPISODE])),
    "a pickle of a list of arrays for each field": Layout(
        dump({"observations": [states[:-1] for states in STATES], "actions": ACTIONS, "rewards": REWARDS}),
        terminated=False,
    ),
    "baselines' expert file with arrays of objects": Layout(
        npz(
            obs=objects([states[:-1] for states in STATES]),
            acs=objects(ACTIONS),
            rews=objects(REWARDS),
            ep_rets=np.array([rewards.sum() for rewards in REWARDS]),
        ),
        terminated=False,
    ),
    "d3rlpy's dataset of version 1": Layout(
        hdf5(
            {
                **FLAT,
                "terminals": TERMINATED.astype(np.float32),
                "episode_terminals": LAST.astype(np.float32),
                "discrete_action": False,
                "version": "1.0",
            },
            "data.h5",
        )
    ),
}
LAYOUTS: Mapping[str, Layout] = {**OTHERS, **TABLES}
