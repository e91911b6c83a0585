"""``rlds cache ls``: what the data folder holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ...options import Shell
from ...output import Facts, Result, Table, size_text

if TYPE_CHECKING:
    from datasets_rl.store.usage import Inventory, Kept

_HEADER = ("id", "total", "dataset", "versions", "raw", "unfinished")


def run(shell: Shell) -> Result:
    """List the sizes of each dataset on disk: its current and other versions, raw files and unfinished files.

    \b
    Examples:
      rlds cache ls
      rlds cache ls --json
      rlds --root /mnt/disk2/rl cache ls
    """
    from datasets_rl.store.usage import take_inventory

    found = take_inventory(shell.settings.home)
    rows = [_row(one) for one in found.datasets]
    return Result(
        {
            "home": str(found.home),
            "datasets": [{**asdict(one), "bytes": one.bytes} for one in found.datasets],
            "stream_bytes": found.streams,
            "audit_bytes": found.audits,
            "index_bytes": found.index,
            "trash_bytes": found.trash,
            "other_bytes": found.other,
            "bytes": found.bytes,
            "free_bytes": found.free,
        },
        [Table(_HEADER, tuple(rows), listing=True, numbers=True)] if rows else [],
        quiet=[one.id for one in found.datasets],
        asides=[Facts(_summary(found), title=str(found.home))],
    )


def _row(one: Kept) -> tuple[str, ...]:
    versions = f"{_cell(one.versions)} ({one.others})" if one.others else "-"
    return (one.id, size_text(one.bytes), _cell(one.dataset), versions, _cell(one.raw), _cell(one.unfinished))


def _cell(size: int) -> str:
    return size_text(size) if size else "-"


def _summary(found: Inventory) -> tuple[tuple[str, str], ...]:
    return (
        ("datasets", f"{sum(one.dataset > 0 for one in found.datasets):,}"),
        ("in all", size_text(found.bytes)),
        ("shards of streams", size_text(found.streams) if found.streams else ""),
        ("unfinished audits", size_text(found.audits) if found.audits else ""),
        ("index of fingerprints", size_text(found.index) if found.index else ""),
        ("being deleted", size_text(found.trash) if found.trash else ""),
        ("other files", size_text(found.other) if found.other else ""),
        ("free", size_text(found.free)),
    )
