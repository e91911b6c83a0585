"""Comparison of converted values with OG-MARL's vaults, using tensorstore but none of the code that converted them."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_KEYS = {
    "observations": ("agents", "observation"),
    "actions": ("agents", "action"),
    "rewards": ("next", "agents", "reward"),
    "terminals": ("next", "agents", "terminated"),
    "truncations": ("next", "agents", "truncated"),
    "infos.state": ("state",),
    "infos.legals": ("agents", "action_mask"),
}
_STATES = ("observations", "infos.state", "infos.legals")


def compare(dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Unpack the vault as OG-MARL does, and compare every row of every array."""
    (path,) = files.values()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        (vault,) = Path(folder).glob(f"*.vlt/{dataset_id.rpartition('/')[2]}")
        rows = read_vault(vault)
    terminals = rows["terminals"].astype(bool)
    limits = rows.get("truncations", np.zeros_like(terminals)).astype(bool)
    ends = (terminals | limits).all(axis=1)
    ends[-1] = True
    chosen = np.isin(np.cumsum(ends) - ends, episodes["source"])
    differences = Differences(column)
    for name, key in _KEYS.items():
        if name not in rows:
            continue
        differences.compare(key, 0, rows[name][chosen])
        if name in _STATES:
            following = np.zeros_like(rows[name])
            following[:-1] = rows[name][1:]
            following[ends] = 0  # what is not known reads as zeros
            differences.compare(("next", *key), 0, following[chosen])
    terminated = terminals.all(axis=1)
    differences.compare(("next", "terminated"), 0, terminated[chosen])
    differences.compare(("next", "truncated"), 0, (ends & ~terminated)[chosen])
    differences.compare(("next", "final_known"), 0, ~ends[chosen])
    mean = rows["rewards"].astype(np.float64).mean(axis=1).astype(np.float32)
    differences.compare(("next", "reward"), 0, mean[chosen])
    if chosen.sum() != episodes.steps:
        differences.add("steps", f"there are {episodes.steps:,} steps; the vault has {chosen.sum():,}")
    return differences.texts()


def read_vault(vault: Path) -> dict[str, Any]:
    """Return the rows of every leaf, as `Vault.read` of flashbax does."""
    import tensorstore

    def read(name: str, rows: int) -> Any:
        kvstore = {"driver": "ocdbt", "base": f"file://{vault}", "path": name}
        array = tensorstore.open({"driver": "zarr", "kvstore": kvstore}).result()
        return array[:rows].read().result() if name == "vault_index" else array[0, :rows].read().result()

    def names(structure: Mapping[str, Any], prefix: str = "") -> list[str]:
        return [
            leaf
            for name, value in structure.items()
            for leaf in (names(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"])
        ]

    rows = int(read("vault_index", 1)[0])
    structure = json.loads((vault / "metadata.json").read_text())["structure_shape"]
    return {name: np.asarray(read(f"{name}.", rows)) for name in names(structure)}
