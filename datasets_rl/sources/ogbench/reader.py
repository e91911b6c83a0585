"""Reader of OGBench's files: flat arrays of all episodes, in order.

observations, qpos, ...   s_0  s_1  ...  s_T      T + 1 rows for T steps
actions                   a_0  a_1  ...  a_T      a_T was applied, but the result is not in the file: a_T is left out
terminals                  0    0   ...   1       the last row of a recording, which is never the end of a task

The reward and the mask of a task at step t belong to s_t, as in OGBench's own loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.schema import Column
from datasets_rl.read.streams import refuse
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE
from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.layout import Field, Layout
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.ogbench.tasks import Task
from datasets_rl.ted.keys import ACTION, NEXT_MASK, NEXT_REWARD, OBSERVATION, Key

_ORACLE: Key = ("info", "oracle_reps")
_FLOAT = np.dtype(np.float32)
_INFO = ("qpos", "qvel", "button_states")
_LAYOUT = Layout(
    (
        Field(OBSERVATION, "observations", floats="float32"),
        Field(ACTION, "actions", floats="float32"),
        *(Field(("info", name), name, optional=True) for name in _INFO),
        Field(NEXT_REWARD, "", constant=0.0),
    ),
    alignment="one-more",
    by="last-rows",
    marks="terminals",
    vectors=True,
)


class OGBenchReader(FlatReader):
    """Reader of the files of a shard.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local file of each path. The first file defines the columns.
        facts: ``tasks`` of the environment, the number of the ``task`` that gives the rewards, or None, and whether to add
            the representations of goals instead of the rewards, ``oracle``.
    """

    rules: Mapping[str, str] = {
        "last-action-left-out": "the action of the last row of an episode has no result in the file and was left out, and "
        "the last observation is the final observation",
        "no-rewards": "the files have no rewards: next.reward is 0. Take a single-task id or a sampler of goals",
        "task-rewards": "rewards and masks were computed from the state before each step, as OGBench's loader does. A "
        "solved task ends no episode",
        "never-solved": "no state of a file solves the task: the mask of the task is 1 everywhere",
        "floats-narrowed": "observations and actions of doubles were converted to float32, as by OGBench's loader",
        **NOT_FINITE,
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._oracle = bool(facts.get("oracle"))
        has_task = self._oracle or facts.get("task") is not None
        self._task = Task.of(facts["tasks"], facts.get("task")) if has_task else None
        super().__init__(dataset_id, _LAYOUT, "npz", files, facts)
        if self._task is not None and self._oracle:
            example = {name: np.zeros((1, width)) for name, width in self._task.widths.items()}
            shape = self._task.oracle_reps(example).shape[1:]
            self.columns = [*self.columns, Column(_ORACLE, _FLOAT, shape, shared=True)]
        elif self._task is not None:
            self.columns = [*self.columns, Column(NEXT_MASK, _FLOAT, (1,))]

    @property
    @override
    def needed(self) -> set[Key]:
        return {*self.kept, *(("info", name) for name in (self._task.widths if self._task else ()))}

    @override
    def plan(self, file: ArrayFile) -> Plan:
        problems = []
        if "observations" in file.arrays and not file.arrays["observations"].shape:
            problems.append(f"observations is {file.arrays['observations']}, expected several numbers in each row")
        for name, width in (self._task.widths if self._task else {}).items():
            if name not in file.arrays:
                problems.append(f"it has no array {name}, from which the rewards of a task are computed")
            elif file.arrays[name].shape != (width,):
                problems.append(f"{name} is {file.arrays[name]}, but the task needs {width} elements in each row")
        refuse(file.name, problems)
        return super().plan(file)

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        read = [part for part in plan.parts if part.array and part.column.key in self.needed]
        self.counts["floats-narrowed"] += sum(file.arrays[part.array].dtype != part.column.dtype for part in read)
        self.counts["last-action-left-out"] += int((ends.lengths > 0).sum())
        steps = ends.steps
        self.counts["no-rewards" if self._task is None or self._oracle else "task-rewards"] += steps
        self._unsolved_steps = 0

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        if self._task is not None and self._oracle:
            block.states[_ORACLE], block.finals[_ORACLE] = (
                self._task.oracle_reps({name: rows["info", name] for name in self._task.widths})
                for rows in (block.states, block.finals)
            )
        elif self._task is not None:
            rewards, masks = self._task.rewards({name: block.states["info", name] for name in self._task.widths})
            block.steps |= {NEXT_REWARD: rewards[:, None], NEXT_MASK: masks[:, None]}
            self._unsolved_steps += int(masks.sum())
            is_unsolved = block.stop == self._unsolved_steps == ends.steps
            self.counts["never-solved"] += is_unsolved and NEXT_MASK in self.kept
        return {"file": np.full(len(block.episodes), number)}
