"""Trust in project files: whether their home and mirrors count.

A project may come from other people. Its file could direct downloads to other addresses, and data to any folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import PROJECT_FILE, project_file, trust_key, trusted_file, trusted_files

__all__ = ["revoke_trust", "trust_project"]


def trust_project(path: Path | str | None = None) -> Path:
    """Trust a project file with its present content; once that changes, the file has to be trusted again.

    Args:
        path: The file, or the folder of the project; by default that of the working directory.

    Returns:
        The path of the file.

    Raises:
        InvalidArgumentError: If there is no such file.
    """
    file = _file(path)
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidArgumentError(
            f"{file} cannot be read: {error.strerror}", hint="name a file of settings"
        ) from error
    _write(trusted_files() | {trust_key(file): digest})
    return file


def revoke_trust(path: Path | str | None = None) -> Path:
    """Trust a project file no longer; the file need not exist.

    Args:
        path: The file, or the folder of the project; by default that of the working directory.

    Returns:
        The path of the file.
    """
    file = _file(path)
    _write({name: digest for name, digest in trusted_files().items() if name != trust_key(file)})
    return file


def _file(path: Path | str | None) -> Path:
    if path is None:
        return project_file()
    path = Path(path).expanduser().absolute()
    return path / PROJECT_FILE if path.is_dir() else path


def _write(trusted: dict[str, str]) -> None:
    trusted_file().parent.mkdir(parents=True, exist_ok=True)
    disk.write_json(trusted_file(), trusted)
