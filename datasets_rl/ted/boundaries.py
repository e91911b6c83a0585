"""Bounds of the trajectories in a tensor of ids or end flags that has the order of a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from datasets_rl.errors import InvalidArgumentError, WrongTypeError

DEFAULT_DONE_KEYS: tuple[str, ...] = ("done", "truncated", "terminated")
"""Names of the flags that end a trajectory. A trajectory ends where any flag is True."""


def find_start_stop_traj(
    *,
    trajectory: Tensor | None = None,
    end: Tensor | None = None,
    at_capacity: bool,
    cursor: int | Tensor | range | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and the last row of every trajectory, and its length.

    The rows are rows of a storage: if the storage is full, row 0 follows the last row, and the row that was written
    last, the cursor, is an end, because the rows that followed it are overwritten.

        full, cursor 4      row      0  1  2  3  4  5  6  7  8  9
                            end            x              x
                            found    0  0  0  1  1  2  2  2  0  0       start 8, 3, 5   stop 2, 4, 7

    Slice samplers do not use this function: `Storage.trajectories` follows the writes without a scan.

        >>> import torch
        >>> from datasets_rl import find_start_stop_traj
        >>> end = torch.tensor([False, False, True, False, True])
        >>> starts, stops, lengths = find_start_stop_traj(end=end, at_capacity=False)
        >>> lengths
        tensor([3, 2])

    Args:
        trajectory: Ids of trajectories, [T, ...]: time first, then the axes of parallel environments, of which there
            may be none. A trajectory ends where the id of the next row differs.
        end: Instead of ids, whether each row is the last of its trajectory, bool [T, ...].
        at_capacity: Whether row 0 follows the last row. If False, the last row is an end.
        cursor: The row that was written last, or all rows that were written last, of which the last row counts. Ignored
            if `at_capacity` is False. Without a cursor, environments without an end get an end at the last row.
        device: Device to compute on. The results are on the device of the input.

    Returns:
        The first rows and the last rows, int64 [E, 1 + number of environment axes] each: row, then environment. And the
        numbers of steps, int64 [E]. Trajectories are sorted by environment, then by the last row.

    Raises:
        InvalidArgumentError: If both or neither of `trajectory` and `end` are given, they have no rows, or the cursor
            is empty.
    """
    if (trajectory is None) == (end is None):
        amount = "both" if end is not None else "neither"
        raise WrongTypeError(f"{amount} of trajectory and end are given, expected exactly one")
    values = end if trajectory is None else trajectory
    if values is None or not values.ndim or not len(values):
        raise InvalidArgumentError(
            f"the input is empty: its shape is {[*values.shape] if values is not None else []}, expected [T, ...], T >= 1"
        )
    ends = _ends(values.to(device), is_id=trajectory is not None, at_capacity=at_capacity, cursor=cursor)
    # The order of environments in TorchRL: of several axes, the last axis is the slowest.
    place = ends.transpose(0, -1).nonzero()
    stop = place if ends.ndim == 1 else place[:, [-1, *range(1, ends.ndim - 1), 0]]
    opens = torch.ones_like(stop[:, 0], dtype=torch.bool)
    opens[1:] = (stop[1:, 1:] != stop[:-1, 1:]).any(-1)
    # The row after the previous end of the same environment, and for the first end the last row.
    previous = stop[:, 0].roll(1)
    previous[opens] = stop[opens.roll(-1), 0]
    start = stop.clone()
    start[:, 0] = (previous + 1) % len(ends)
    lengths = (stop[:, 0] - start[:, 0]) % len(ends) + 1
    return start.to(values.device), stop.to(values.device), lengths.to(values.device)


def _ends(values: Tensor, *, is_id: bool, at_capacity: bool, cursor: int | Tensor | range | None) -> Tensor:
    """Return whether each row is the last of its trajectory, with at least one end in every environment."""
    ends = values != values.roll(-1, 0) if is_id else values.bool().clone()
    if not at_capacity:
        ends[-1] = True
        return ends
    if cursor is not None:
        rows = [*cursor] if isinstance(cursor, range) else torch.as_tensor(cursor).reshape(-1).tolist()
        if not rows:
            raise InvalidArgumentError(
                f"cursor is {cursor!r}, where no row is stored, expected the index of the row that was written last"
            )
        ends[int(rows[-1])] = True
    ends[-1] |= ~ends.any(0)
    return ends
