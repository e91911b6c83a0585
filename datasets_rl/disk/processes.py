"""Names of files and folders that end with the name of a process, and whether the process is alive."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

_IDLE_SECONDS = 600.0
"""Seconds after which a claim of another host that has not grown is abandoned."""
_PROCESS = r"(?P<host>[A-Za-z0-9_]+)-(?P<pid>\d+)(t(?P<start>\d+))?(\.\d+)?"
"""The pattern of the name of a process after an ``@``, see `process_name`. A number distinguishes several claims of a
process."""
CLAIM = re.compile(rf".*@{_PROCESS}")
CLAIMED: set[str] = set()
"""The real paths of the folders that this process has claimed."""


def _forget_claims() -> None:
    CLAIMED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_claims)


def process_name() -> str:
    """Return the name of this process in names of files: the host, the PID and, on Linux, the start.

    The start, in clock ticks since the boot of the system, distinguishes the process from another process that gets the
    PID later.
    """
    pid = os.getpid()
    start = _own_start(pid)
    return f"{_host()}-{pid}t{start}" if start else f"{_host()}-{pid}"


@cache
def _own_start(pid: int) -> str:
    """Return when this process, which has the PID, started. Empty if unknown."""
    fields = _process_fields("self") if pid else []
    return fields[_START - 1] if len(fields) >= _START else ""


def _process_fields(pid: int | str) -> list[str]:
    """Return the state of a process of Linux and the fields after the state. Empty without /proc."""
    with suppress(FileNotFoundError, PermissionError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


_START = 20
"""The place of the start of a process after its state: field 22 of /proc/PID/stat, of which the state is field 3."""
_INITIAL_SPACE = 0xEFFFFFFC
"""The number of the PID namespace of processes outside of containers."""


@cache
def _host() -> str:
    """Return the name of the host, in a container with the PID namespace: containers may share the host's name."""
    name = re.sub("[^A-Za-z0-9_]", "_", socket.gethostname())[:64] or "host"
    try:
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a link to what is not a path
    except OSError:
        space = _INITIAL_SPACE
    return name if space == _INITIAL_SPACE else f"{name}_{space:x}"


def unclaimed_name(path: Path) -> str:
    """Return the name of a folder without the name of the process that claimed it."""
    name, mark, process = path.name.rpartition("@")
    return name if mark and CLAIM.fullmatch(f"@{process}") else path.name


def is_abandoned(path: Path, name: str = "") -> bool:
    """Return whether no process uses what is named after a process, or whether no process is named.

    A process of this host is looked up. A process of another host cannot be: the file or folder is abandoned if the
    size has not grown for ten minutes.

    Args:
        path: The file or folder.
        name: The name that ends with the name of the process. By default the name of the path.
    """
    claimed = CLAIM.fullmatch(name or path.name)
    if claimed is None:
        return True
    if claimed["host"] == _host() and os.name != "nt":
        pid, start = int(claimed["pid"]), claimed["start"] or ""
        if pid == os.getpid() and start in {"", _own_start(pid)}:
            return os.path.realpath(path) not in CLAIMED
        return not _is_running(pid, start)
    return time.time() - _last_change(path) > _IDLE_SECONDS


def _last_change(path: Path) -> float:
    try:
        return max(item.lstat().st_mtime for item in (path, *path.rglob("*")))
    except FileNotFoundError:  # something was deleted in the meantime
        return time.time()


def _is_running(pid: int, start: str) -> bool:
    """Return whether a process of this host is running, which a dead process without a waiting parent is not.

    Args:
        pid: The PID.
        start: The start, or empty if unknown. Another process with the PID started later.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    fields = _process_fields(pid)
    if len(fields) < _START:  # the system has no /proc
        return True
    return fields[0] not in "ZX" and start in {"", fields[_START - 1]}
