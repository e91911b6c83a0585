"""OG-MARL's zip files, with vaults that flashbax wrote: tests/golden/make_og_marl.py."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw.case import Case, Fault
from raw.damage import changed_bytes
from upstreams import hub

from datasets_rl.ted.episode import Episode

__all__ = ["CASES", "FILE", "write_vault"]

GOLDEN = Path(__file__).parents[1] / "golden" / "og_marl.zip"
FILE = "core/smac_v1/3m.zip"
PARTICLES = "prior_work/omar/mpe/simple_spread.zip"
LENGTHS = (7, 3, 12, 1, 20)
_KEYS = {
    "observations": ("agents", "observation"),
    "actions": ("agents", "action"),
    "infos.state": ("state",),
    "infos.legals": ("agents", "action_mask"),
}


def golden_rows(vault: str) -> dict[str, np.ndarray]:
    """Return the values of a vault, ``3m/Good``, by the names of its leaves."""
    with np.load(GOLDEN.with_suffix(".npz")) as file:
        return {name.removeprefix(f"{vault}/"): file[name] for name in file.files if name.startswith(f"{vault}/")}


def _copy(folder: Path, path: str, scenario: str) -> None:
    """Copy the vaults of a scenario to a zip file as on the hub; its bytes are always the same."""
    (folder / path).parent.mkdir(parents=True)
    with zipfile.ZipFile(GOLDEN) as source, zipfile.ZipFile(folder / path, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            if member.filename.startswith(f"{scenario}.vlt/"):
                target.writestr(member, source.read(member))


def _written(path: str, vault: str) -> Callable[[Path], list[Episode]]:
    def write(folder: Path) -> list[Episode]:
        pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")
        _copy(folder, path, vault.partition("/")[0])
        rows = golden_rows(vault)
        return [_episode(rows, stop - length, stop) for stop, length in zip(np.cumsum(LENGTHS), LENGTHS, strict=True)]

    return write


def _episode(rows: Mapping[str, np.ndarray], start: int, stop: int) -> Episode:
    now = slice(start, stop)
    flags = [
        rows.get(name, np.zeros_like(rows["terminals"]))[now].astype(bool) for name in ("terminals", "truncations")
    ]
    terminated = np.array([row.all() for row in flags[0]])[:, None]
    last = (np.arange(stop - start) == stop - start - 1)[:, None]
    steps: dict[Any, Any] = {
        ("next", "agents", "reward"): rows["rewards"][now, :, None],
        ("next", "agents", "terminated"): flags[0][:, :, None],
        ("next", "reward"): rows["rewards"][now].astype(float).mean(axis=1)[:, None].astype(np.float32),
        ("next", "terminated"): terminated,
        ("next", "truncated"): last & ~terminated,
    }
    if "truncations" in rows:
        steps["next", "agents", "truncated"] = flags[1][:, :, None]
    fields = {key: rows[name][now] for name, key in _KEYS.items() if name in rows}
    steps["agents", "action"] = fields.pop(("agents", "action"))
    return Episode(steps, fields)


@contextmanager
def _served(folder: Path) -> Iterator[Mapping[str, str]]:
    with hub({"InstaDeepAI/og-marl": folder}) as server:
        yield {"HF_ENDPOINT": server.url}


def write_vault(path: Path, vault: str, rows: Mapping[str, np.ndarray], block: int = 5000) -> None:
    """Write a zip file with a vault, ``3m.vlt/Good``, by TensorStore, with the specification of flashbax.

    Args:
        path: The zip file.
        vault: The folder of the vault.
        rows: The values of each leaf by its dotted name, [T, ...].
        block: The number of rows that are written at once.
    """
    tensorstore = pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")

    def opened(name: str, **options: Any) -> Any:
        kvstore = {"driver": "ocdbt", "base": f"file://{folder}/", "path": name}
        spec = {"driver": "zarr", "kvstore": kvstore, "metadata": {"compressor": {"id": "gzip", "level": 5}}}
        return tensorstore.open(spec, create=True, **options).result()

    folder = path.parent / "unpacked" / vault
    folder.mkdir(parents=True)
    structure: dict[str, Any] = {}
    count = len(next(iter(rows.values())))
    for name, values in rows.items():
        *groups, leaf = name.split(".")
        node = structure
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = str((1, 100, *values.shape[1:]))
        array = opened(f"{name}.", dtype=values.dtype.name, shape=(1, 10**13, *values.shape[1:]))
        for start in range(0, count, block):
            array[0, start : min(start + block, count)].write(values[start : start + block]).result()
    opened("vault_index", dtype="int32", shape=(1,)).write(np.array([count], np.int32)).result()
    (folder / "metadata.json").write_text(json.dumps({"version": 1.2, "structure_shape": structure}))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted((path.parent / "unpacked").rglob("*")):
            archive.write(file, file.relative_to(path.parent / "unpacked"))
    shutil.rmtree(path.parent / "unpacked")


def _rezipped(change: Callable[[str, bytes], bytes | None]) -> Callable[[Path], None]:
    """Return a function that changes the members of the file; those that become None are removed."""

    def corrupt(folder: Path) -> None:
        with zipfile.ZipFile(folder / FILE) as source:
            members = {member.filename: source.read(member) for member in source.infolist()}
        with zipfile.ZipFile(folder / FILE, "w", zipfile.ZIP_DEFLATED) as target:
            for name, data in members.items():
                changed = change(name, data)
                if changed is not None:
                    target.writestr(name, changed)

    return corrupt


def _described(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes the description of the vaults."""

    def edit(name: str, data: bytes) -> bytes:
        if not name.endswith("metadata.json"):
            return data
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return _rezipped(edit)


FAULTS = {
    "no such vault": Fault(
        _rezipped(lambda name, data: None if "/Good/" in name else data), "it has no vault Good, only Poor"
    ),
    "no data": Fault(_rezipped(lambda name, data: None if "/Good/d/" in name else data), "3m.zip: Good"),
    "no store": Fault(_rezipped(lambda name, data: None if name.endswith("ocdbt") else data), "vault_index"),
    "a damaged store": Fault(
        _rezipped(lambda name, data: data[:-9] if name.endswith("ocdbt") else data), "vault_index: DATA_LOSS"
    ),
    "no rewards": Fault(_described(lambda one: one["structure_shape"].pop("rewards")), "it has no rewards"),
    "no flags": Fault(_described(lambda one: one["structure_shape"].pop("terminals")), "it has no terminals"),
    "an array that is not there": Fault(
        _described(lambda one: one["structure_shape"].update(x="(1, 2)")), "x: NOT_FOUND"
    ),
    "no structure": Fault(_described(lambda one: one.pop("structure_shape")), "does not describe a vault"),
    "another version": Fault(_described(lambda one: one.update(version=2.0)), "its version is 2.0, expected 1"),
    "a description that is not JSON": Fault(
        _rezipped(lambda name, data: b"{" if name.endswith(".json") else data), "does not describe a vault"
    ),
    "a truncated file": Fault(changed_bytes(FILE, lambda data: data[:-100]), "damaged or truncated"),
    "a web page": Fault(changed_bytes(FILE, lambda _: b"<!DOCTYPE html><html><title>Moved</title></html>"), "web page"),
}


def _many(folder: Path, size: int) -> None:
    """Write a vault of episodes of 60 steps of three agents."""
    rng = np.random.default_rng(0)
    rows = max(60, size // 700)
    ends = (np.arange(rows) % 60 == 59)[:, None].repeat(3, axis=1)
    (folder / FILE).parent.mkdir(parents=True)
    write_vault(
        folder / FILE,
        "3m.vlt/Good",
        {
            "observations": rng.normal(size=(rows, 3, 30)).astype(np.float32),
            "actions": rng.integers(0, 9, (rows, 3)).astype(np.int32),
            "rewards": rng.normal(size=(rows, 3)).astype(np.float32),
            "terminals": ends,
            "truncations": ends & False,
            "infos.state": rng.normal(size=(rows, 48)).astype(np.float32),
            "infos.legals": rng.random((rows, 3, 9)) < 0.5,
        },
        block=50_000,
    )


CASES: Sequence[Case] = [
    Case("og_marl/core/smac_v1/3m/Good", _written(FILE, "3m/Good"), _served, faults=FAULTS, many=_many),
    Case("og_marl/core/smac_v1/3m/Poor", _written(FILE, "3m/Poor"), _served),
    Case("og_marl/omar/mpe/simple_spread/Expert", _written(PARTICLES, "simple_spread/Expert"), _served),
]
