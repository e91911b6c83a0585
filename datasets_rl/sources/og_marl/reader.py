"""Reader of OG-MARL's vaults: a row for each step of all agents, of all episodes one after the other.

observations     o_0   o_1   o_2 | o_0'       [T, agents, ...]; the one after the last step is unknown
actions          a_0   a_1   a_2 | a_0'       [T, agents] or [T, agents, ...]
rewards          r_0   r_1   r_2 | r_0'       [T, agents], of the actions in the same row
terminals         0     0     1  |  0         [T, agents]; an episode ends where the flags of all agents are set
truncations       0     0     0  |  0         [T, agents]; missing in the oldest vaults
infos.state      s_0   s_1   s_2 | s_0'       [T, ...], of the environment
infos.legals     l_0   l_1   l_2 | l_0'       [T, agents, actions]: the actions that each agent may take
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.streams import first_problems
from datasets_rl.read.vault import Vault
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.rows import split_rows
from datasets_rl.sources.values import WIDENED, WIDENED_INTEGERS, as_column, count_not_finite, flag_problems
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

_BLOCK_BYTES = 16 << 20
_FLAG = np.dtype(np.bool_)
_FLOAT = np.dtype(np.float32)
_AGENTS = "agents"
_ACTION: Key = (_AGENTS, "action")
_REWARD: Key = (NEXT, _AGENTS, "reward")
_FLAGS: Mapping[str, Key] = {
    "terminals": (NEXT, _AGENTS, "terminated"),
    "truncations": (NEXT, _AGENTS, "truncated"),
}
_MASK = "infos.legals"
_BOOLEANS = (*_FLAGS, _MASK)
"""The leaves whose values are 0 and 1, whichever dtype their vault has."""
_KEYS: Mapping[str, Key] = {
    "observations": (_AGENTS, "observation"),
    "actions": _ACTION,
    "rewards": _REWARD,
    **_FLAGS,
    "infos.state": ("state",),
    _MASK: (_AGENTS, "action_mask"),
}
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_STORABLE = frozenset(np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8"))


class VaultReader(EpisodeReader):
    """Reader of a vault.

    Args:
        dataset_id: Id of the dataset, for messages.
        path: The zip file.
        vault: The name of the vault, ``Good``.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
        ConversionError: If the file has no such vault, the vault is damaged, or its arrays contradict each other; the
            error names every problem.
    """

    rules: Mapping[str, str] = {
        "same-row": "row i of the vault is transition i: rewards and flags belong to the actions in the same row",
        "team-reward": "next.reward is the mean of the rewards of all agents",
        "end-of-all-agents": "an episode ends where the flags of all agents are set: it is terminated if terminals of all "
        "are, else truncated",
        "end-without-flag": "the data ends without flags of all agents: its last row was marked truncated",
        "no-truncations": "the vault has no truncations: they are False",
        "final-observation-unknown": "the vault does not have the observation after the last step of an episode",
        "flags-cast": "flags or masks of actions are numbers, 0 or 1, which were converted to booleans",
        **WIDENED_INTEGERS,
        **NOT_FINITE,
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, path: Path, vault: str) -> None:
        self._dataset_id = dataset_id
        self._vault = Vault(path, vault)
        if problems := [*self._problems()]:
            raise ConversionError(dataset_id, first_problems([f"{self._vault.name}: {one}" for one in problems]))
        self._agents = self._vault.shapes["observations"][0]
        self._by_leaf = {leaf: self._column(leaf) for leaf in self._vault.leaves}
        self.columns = [
            *self._by_leaf.values(),
            Column(NEXT_REWARD, _FLOAT, (1,)),
            *END_COLUMNS,
        ]

    def __exit__(self, *details: object) -> None:
        self._vault.__exit__(*details)

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        del part
        vault = self._vault
        kept = [leaf for leaf, column in self._by_leaf.items() if column.key in self.kept]
        self.counts.clear()
        self.counts["no-transition"] = int(not vault.rows)
        self.counts["same-row"] = self.counts["team-reward"] = vault.rows
        self.counts["no-truncations"] = int("truncations" not in vault.leaves)
        cast = {leaf for leaf in (*_FLAGS, *kept) if leaf in _BOOLEANS and leaf in vault.leaves}
        self.counts["flags-cast"] = sum(vault.dtypes[leaf].kind != "b" for leaf in cast)
        self.counts["widened"] = sum(vault.dtypes[leaf] in WIDENED for leaf in {*kept} - cast) * vault.rows
        needed = [*dict.fromkeys([*kept, "rewards", *(leaf for leaf in _FLAGS if leaf in vault.leaves)])]
        row_bytes = sum(prod(vault.shapes[leaf]) * vault.dtypes[leaf].itemsize for leaf in needed)
        block = max(1, _BLOCK_BYTES // max(1, row_bytes))
        is_begun = False
        for start in range(0, vault.rows, block):
            stop = min(start + block, vault.rows)
            arrays = vault.read(needed, start, stop)
            terminated, truncated = self._find_ends(arrays, start)
            ends = terminated | truncated
            steps: dict[Key, NDArray[Any]] = {NEXT_REWARD: arrays["rewards"].mean(axis=1, dtype=np.float64)[:, None]}
            steps |= {NEXT_TERMINATED: terminated[:, None], NEXT_TRUNCATED: truncated[:, None]}
            steps[NEXT_REWARD] = steps[NEXT_REWARD].astype(np.float32)
            states: dict[Key, NDArray[Any]] = {}
            if _MASK in kept and (problems := flag_problems(f"{vault.name}: {_MASK}", arrays[_MASK], start)):
                raise ConversionError(self._dataset_id, problems)
            for leaf in kept:
                column = self._by_leaf[leaf]
                self.counts["not-finite"] += count_not_finite(arrays[leaf])
                (states if column.shared else steps)[column.key] = as_column(arrays[leaf], column)
            yield from split_rows(steps, states, ends, {}, {}, is_begun=is_begun)
            is_begun = not ends[-1]

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the names, shapes and dtypes of the leaves."""
        vault = self._vault
        if missing := [leaf for leaf in _REQUIRED if leaf not in vault.leaves]:
            yield f"it has no {', '.join(missing)}; it has {', '.join(vault.leaves) or 'nothing'}"
            return
        agents = vault.shapes["rewards"][:1]
        for leaf in vault.leaves:
            shape, dtype = vault.shapes[leaf], vault.dtypes[leaf]
            if WIDENED.get(dtype, dtype) not in _STORABLE:
                yield f"{leaf} has dtype {dtype}, which cannot be stored"
            elif leaf in {"rewards", *_FLAGS} and (len(shape) != 1 or shape != agents):
                yield f"{leaf} is [rows, {', '.join(map(str, shape))}]; expected [rows, agents]"
            elif leaf in {"observations", "actions", _MASK} and shape[:1] != agents:
                yield f"{leaf} is [rows, {', '.join(map(str, shape))}]; rewards are of {', '.join(map(str, agents))} agents"

    def _column(self, leaf: str) -> Column:
        dtype, shape = self._vault.dtypes[leaf], self._vault.shapes[leaf]
        dtype = WIDENED.get(dtype, dtype)
        key = _KEYS.get(leaf, ("info", *leaf.removeprefix("infos.").split(".")))
        if leaf in _FLAGS:
            return Column(key, _FLAG, (*shape, 1))
        if leaf == _MASK:
            return Column(key, _FLAG, shape, shared=True)
        if key == _REWARD:
            return Column(key, dtype if dtype == np.float64 else _FLOAT, (*shape, 1))
        return Column(key, dtype, shape or (1,), shared=key != _ACTION)

    def _find_ends(self, arrays: Mapping[str, NDArray[Any]], start: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the masks of the terminated and of the truncated rows of a block, [T] each, and count why.

        Raises:
            ConversionError: If flags have other values than 0 and 1.
        """
        problems: list[str] = []
        flags = [np.zeros_like(arrays["terminals"], np.bool_)] * 2
        for number, leaf in enumerate(_FLAGS):
            if leaf not in arrays:
                continue
            raw = arrays[leaf]
            problems += flag_problems(f"{self._vault.name}: {leaf}", raw, start)
            flags[number] = raw == 1
        if problems:
            raise ConversionError(self._dataset_id, problems)
        terminated, truncated = (np.asarray(one.all(axis=1)) for one in flags)
        truncated |= (flags[0] | flags[1]).all(axis=1) & ~terminated
        if start + len(terminated) == self._vault.rows and not (terminated[-1] or truncated[-1]):
            truncated[-1] = True
            self.counts["end-without-flag"] += 1
        ends = int((terminated | truncated).sum())
        self.counts["end-of-all-agents"] += ends
        self.counts["final-observation-unknown"] += ends
        return terminated, truncated
