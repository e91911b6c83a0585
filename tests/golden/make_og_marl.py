"""Writes og_marl.zip, vaults by flashbax itself, and og_marl.npz, the values in them.

    pip install flashbax==0.1.3
    python tests/golden/make_og_marl.py

The files of a store have random names, so that another run writes other bytes of the same vaults.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from flashbax.vault import Vault

HERE = Path(__file__).parent
LENGTHS = (7, 3, 12, 1, 20)
"""The number of steps of each episode; the last one has no end."""


def starcraft(rng: np.random.Generator, *, truncations: bool) -> dict:
    """Return the rows of three agents with nine actions, of which some are legal."""
    rows = sum(LENGTHS)
    last = np.isin(np.arange(1, rows + 1), np.cumsum(LENGTHS[:-1]))
    by_time = np.isin(np.arange(1, rows + 1), np.cumsum(LENGTHS)[1:2]) & truncations  # the second episode
    made = {
        "observations": rng.normal(size=(rows, 3, 5)).astype(np.float32),
        "actions": rng.integers(0, 9, (rows, 3)).astype(np.int32),
        "rewards": rng.normal(size=(rows, 1)).astype(np.float32).repeat(3, axis=1),
        "terminals": (last & ~by_time)[:, None].repeat(3, axis=1),
        "infos": {
            "state": rng.normal(size=(rows, 11)).astype(np.float32),
            "legals": rng.random((rows, 3, 9)) < 0.7,
        },
    }
    made["terminals"][2] = [True, False, True]  # two agents have died; the episode goes on
    return made | ({"truncations": by_time[:, None].repeat(3, axis=1)} if truncations else {})


def particles(rng: np.random.Generator) -> dict:
    """Return the rows of two agents with continuous actions and different rewards, whose flags are floats."""
    rows = sum(LENGTHS)
    last = np.isin(np.arange(1, rows + 1), np.cumsum(LENGTHS[:-1]))
    observations = rng.normal(size=(rows, 2, 4)).astype(np.float32)
    observations[:, 1, 2:] = -np.inf  # padding of the agent with fewer sensors
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (rows, 2, 2)).astype(np.float32),
        "rewards": rng.normal(size=(rows, 2)).astype(np.float32),
        "terminals": last[:, None].repeat(2, axis=1).astype(np.float32),
    }


def write(folder: Path, scenario: str, uid: str, rows: dict) -> None:
    """Write rows as OG-MARL's recorder does: through a buffer that is smaller than the data."""
    buffer = flashbax.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=1,
        sample_sequence_length=2,
        period=1,
        min_length_time_axis=2,
        max_length_time_axis=32,
    )
    state = buffer.init(jax.tree.map(lambda values: jnp.zeros(values.shape[1:], values.dtype), rows))
    vault = Vault(f"{scenario}.vlt", state.experience, rel_dir=str(folder), vault_uid=uid)
    for start in range(0, len(rows["actions"]), 25):
        now = slice(start, start + 25)
        state = buffer.add(state, jax.tree.map(lambda values, now=now: values[None, now], rows))
        vault.write(state)


def main() -> None:
    """Write both files."""
    rng = np.random.default_rng(0)
    vaults = {
        ("3m", "Good"): starcraft(rng, truncations=True),
        ("3m", "Poor"): starcraft(rng, truncations=False),
        ("simple_spread", "Expert"): particles(rng),
    }
    values = {}
    with tempfile.TemporaryDirectory() as folder:
        for (scenario, uid), rows in vaults.items():
            write(Path(folder), scenario, uid, rows)
            for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
                values[f"{scenario}/{uid}/" + ".".join(one.key for one in path)] = leaf
        np.savez_compressed(HERE / "og_marl.npz", **values)
        with zipfile.ZipFile(HERE / "og_marl.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).rglob("*")):
                archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
