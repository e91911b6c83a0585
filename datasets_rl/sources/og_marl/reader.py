"""Reader of OG-MARL's vaults: a row for each step of all agents, of all episodes in order.

observations     o_0   o_1   o_2 | o_0'       [T, agents, ...]. The observation after the last step is unknown
actions          a_0   a_1   a_2 | a_0'       [T, agents] or [T, agents, ...]
rewards          r_0   r_1   r_2 | r_0'       [T, agents], of the actions in the same row
terminals         0     0     1  |  0         [T, agents]. An episode ends where the flags of all agents are set
truncations       0     0     0  |  0         [T, agents], missing in the oldest vaults
infos.state      s_0   s_1   s_2 | s_0'       [T, ...], of the environment
infos.legals     l_0   l_1   l_2 | l_0'       [T, agents, actions]: the actions that each agent may take
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.streams import refuse
from datasets_rl.read.vault import Vault
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE
from datasets_rl.sources.flat.arrays import Array, ArrayFile
from datasets_rl.sources.flat.ends import BLOCK_ROWS, Ends, find_ends
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.plan import SUPPORTED, ColumnSlice, Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.values import WIDENED, WIDENED_INTEGERS, OtherFlags
from datasets_rl.ted.keys import NEXT, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

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
"""The leaves of zeros and ones, in any dtype."""
_KEYS: Mapping[str, Key] = {
    "observations": (_AGENTS, "observation"),
    "actions": _ACTION,
    "rewards": _REWARD,
    **_FLAGS,
    "infos.state": ("state",),
    _MASK: (_AGENTS, "action_mask"),
}
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_LAYOUT = Layout(alignment="same-row", by="flags")


class VaultReader(FlatReader):
    """Reader of a vault.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The zip file, by path.
        facts: The name of the ``vault``, such as ``Good``.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
        ConversionError: If the file has no such vault, the vault is damaged, or the arrays contradict each other. The
            error names every problem.
    """

    rules: Mapping[str, str] = {
        "same-row": "row i of the vault is transition i: rewards and flags belong to the actions in the same row",
        "team-reward": "next.reward is the mean of the rewards of all agents",
        "end-of-all-agents": "an episode ends where the flags of all agents are set: it is terminated if terminals of all "
        "are, else truncated",
        "end-without-flag": "the data ends without flags of all agents: the last row was marked truncated",
        "no-truncations": "the vault has no truncations: all truncations are False",
        "final-observation-unknown": "the vault does not have the observation after the last step of an episode",
        "flags-cast": "flags or masks of actions are numbers, 0 or 1, which were converted to booleans",
        **WIDENED_INTEGERS,
        **NOT_FINITE,
        **NO_TRANSITION,
    }

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._vault = facts["vault"]
        super().__init__(dataset_id, _LAYOUT, "vault", files, facts)

    @property
    @override
    def needed(self) -> set[Key]:
        return {*self.kept, _REWARD}

    @override
    def open_file(self, name: str) -> ArrayFile:
        return _VaultArrays(self._paths[name], self._vault)

    @override
    def plan(self, file: ArrayFile) -> Plan:
        refuse(file.name, _problems(file.arrays))
        parts = [_column_slice(leaf, array) for leaf, array in file.arrays.items()]
        team = ColumnSlice("", Column(NEXT_REWARD, _FLOAT, (1,)), constant=0.0)  # `before` has the values
        wide = [leaf for leaf, array in file.arrays.items() if array.dtype in WIDENED and leaf not in _BOOLEANS]
        return Plan(_LAYOUT, (*parts, team), {}, {}, {}, "flags", widened=len(wide))

    @override
    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        flags: dict[Key, list[NDArray[np.int64]]] = {NEXT_TERMINATED: [], NEXT_TRUNCATED: []}
        start = 0
        leaves = [file.blocks(leaf, BLOCK_ROWS) for leaf in _FLAGS if leaf in file.arrays]
        for blocks in zip(*leaves, strict=True):
            agents = [np.asarray(block) == 1 for block in blocks]
            terminated = agents[0].all(axis=1)
            truncated = agents[-1].all(axis=1) if len(agents) > 1 else np.zeros_like(terminated)
            truncated |= np.logical_or.reduce(agents).all(axis=1) & ~terminated
            for key, mask in ((NEXT_TERMINATED, terminated), (NEXT_TRUNCATED, truncated)):
                flags[key].append(start + np.flatnonzero(mask))
            start += len(terminated)
        ends = find_ends(file, plan, {key: np.concatenate(rows) for key, rows in flags.items()})
        self.counts["end-of-all-agents"] += len(ends.lengths)
        return ends

    @override
    def count_file(self, file: ArrayFile, plan: Plan, ends: Ends) -> None:
        super().count_file(file, plan, ends)
        self.counts["team-reward"] += ends.steps
        self.counts["no-truncations"] += int("truncations" not in file.arrays)
        cast = [leaf for leaf in _BOOLEANS if leaf in file.arrays and (leaf in _FLAGS or _KEYS[leaf] in self.kept)]
        self.counts["flags-cast"] += sum(file.arrays[leaf].dtype.kind != "b" for leaf in cast)

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        rewards = block.steps[_REWARD][..., 0].mean(axis=1, dtype=np.float64)
        block.steps[NEXT_REWARD] = rewards[:, None].astype(_FLOAT)
        return {}


class _VaultArrays(ArrayFile):
    """The leaves of a vault as arrays. Flags and masks are checked."""

    def __init__(self, path: Path, vault: str) -> None:
        self._vault = Vault(path, vault)
        self.name = self._vault.name
        shapes, dtypes = self._vault.shapes, self._vault.dtypes
        self.arrays = {leaf: Array(self._vault.rows, shapes[leaf], dtypes[leaf]) for leaf in self._vault.leaves}

    @override
    def blocks(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self._vault.rows, rows):
            values = self._vault.read([name], start, min(start + rows, self._vault.rows))[name]
            others = OtherFlags(name)
            others.count(values, start)
            if name in _BOOLEANS and (problems := others.problems()):
                raise ConversionError(self.name, problems)
            yield values

    def __exit__(self, *details: object) -> None:
        self._vault.__exit__(*details)


def _problems(arrays: Mapping[str, Array]) -> Iterator[str]:
    """Yield what is wrong with the names, shapes and dtypes of the leaves."""
    if missing := [leaf for leaf in _REQUIRED if leaf not in arrays]:
        yield f"it has no {', '.join(missing)}, only {', '.join(arrays) or 'nothing'}"
        return
    agents = arrays["rewards"].shape[:1]
    for leaf, array in arrays.items():
        if array.dtype not in SUPPORTED:
            yield f"{leaf} has dtype {array.dtype}, which cannot be stored"
        elif leaf in {"rewards", *_FLAGS} and (len(array.shape) != 1 or array.shape != agents):
            yield f"{leaf} is [rows, {', '.join(map(str, array.shape))}], expected [rows, agents]"
        elif leaf in {"observations", "actions", _MASK} and array.shape[:1] != agents:
            shape, wanted = (", ".join(map(str, axes)) for axes in (array.shape, agents))
            yield f"{leaf} is [rows, {shape}], but rewards are of {wanted} agents"


def _column_slice(leaf: str, array: Array) -> ColumnSlice:
    dtype, shape = WIDENED.get(array.dtype, array.dtype), array.shape
    key = _KEYS.get(leaf, ("info", *leaf.removeprefix("infos.").split(".")))
    if leaf in _FLAGS:
        column = Column(key, np.dtype(np.bool_), (*shape, 1))
    elif leaf == _MASK:
        column = Column(key, np.dtype(np.bool_), shape, shared=True)
    elif key == _REWARD:
        column = Column(key, dtype if dtype == np.float64 else _FLOAT, (*shape, 1))
    else:
        column = Column(key, dtype, shape or (1,), shared=key != _ACTION)
    return ColumnSlice(leaf, column)
