"""Checkpoints of a training run: files of torch that are whole or absent, and end with a digest of the content.

    <out>/checkpoint.pt             the latest checkpoint
    <out>/checkpoint.previous.pt    the previous checkpoint
    <out>/best.pt                   the checkpoint with the lowest validation loss, if the program names a loss

A file of `torch.save` is a ZIP archive. The SHA-256 of the archive is the ZIP comment, so that `torch.load` reads the
file, and a single changed bit is detected.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from datasets_rl import disk
from datasets_rl.errors import IntegrityError, InvalidArgumentError, Remedy

CHECKPOINT, PREVIOUS, BEST = "checkpoint.pt", "checkpoint.previous.pt", "best.pt"
_PREFIX = b"sha256:"
_COMMENT_BYTES = len(_PREFIX) + 64


def write_checkpoint(path: Path, state: dict[str, Any], *, previous: Path | None = None) -> None:
    """Write a checkpoint atomically: a failure leaves the former file at `path`.

    Args:
        path: The file.
        state: Tensors, numbers and texts in dicts, lists and tuples.
        previous: The new path of the former file, which is deleted by default.

    Raises:
        DiskFullError: If the disk is full.
    """
    stream = io.BytesIO()
    torch.save(state, stream)
    disk.write_bytes(path, _sealed(stream.getvalue()), keep=previous, hint=FULL)


FULL = "free space, and run the same command again to continue from the last checkpoint"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, with tensors in main memory.

    Raises:
        IntegrityError: If the bytes of the file differ from the written bytes.
        InvalidArgumentError: If the file is not a checkpoint of a training program.
    """
    content = path.read_bytes()
    archive = content[: -_COMMENT_BYTES - 2] + bytes(2)
    if content[-_COMMENT_BYTES:].startswith(_PREFIX) and _sealed(archive) == content:
        try:
            state = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError):
            state = None
        if isinstance(state, dict) and {"settings", "networks", "step"} <= state.keys():
            return state
        raise InvalidArgumentError(f"{path} is not a checkpoint of a training program")
    before = path.with_name(PREVIOUS)
    undo = "delete the file, and the same command resumes at the previous checkpoint, {}"
    hint = Remedy(undo, before) if path.name == CHECKPOINT and before.exists() else "delete the file, and train again"
    raise IntegrityError(str(path), ["the file is damaged: the content does not match the SHA-256"], hint=hint)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the path of the last checkpoint in a folder, or None without a checkpoint."""
    # A process that is killed between the two renames of a commit leaves only the former file.
    return next((path for path in (folder / CHECKPOINT, folder / PREVIOUS) if path.exists()), None)


def _sealed(archive: bytes) -> bytes:
    """Return a ZIP archive with the SHA-256 of `archive`, which has no comment, as the comment.

    The last two bytes of a ZIP archive without a comment are the length of the comment.
    """
    comment = _PREFIX + hashlib.sha256(archive).hexdigest().encode()
    return archive[:-2] + len(comment).to_bytes(2, "little") + comment
