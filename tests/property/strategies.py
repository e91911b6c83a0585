"""Hypothesis strategies for random schemas, trajectories and indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from stored_data import FLAGS, Trajectory

from datasets_rl.format.schema import WIDE_BYTES, Column

__all__ = ["Data", "datasets", "indices"]

DTYPES = [np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")]
SHAPES = [(), (1,), (3,), (2, 3)]
WIDE = [(WIDE_BYTES,), (WIDE_BYTES // 32, 33)]


@dataclass(frozen=True)
class Data:
    """A schema and its trajectories, before they are written."""

    columns: list[Column]
    trajectories: list[Trajectory]


def _numbers(generator: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], *, odd: bool) -> np.ndarray:
    """Return random values of a dtype; `odd` adds NaN, infinities and extreme values."""
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    numbers = generator.normal(size=shape).astype(dtype)
    if odd:
        strange = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)
        where = generator.random(shape) < 0.2
        numbers = np.where(where, generator.choice(strange, shape), numbers)
    return numbers


@st.composite
def _fields(draw: st.DrawFn, key: tuple[str, ...], *, shared: bool) -> Column:
    """A column of a random dtype and shape."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([*SHAPES, *SHAPES, *WIDE]))
    return Column(key, dtype, shape, shared=shared)


@st.composite
def schemas(draw: st.DrawFn) -> list[Column]:
    """Columns of all dtypes and shapes, nested and flat, narrow and wide."""
    shared = draw(
        st.sampled_from(
            [
                [("observation",)],
                [("observation", "state"), ("observation", "image")],
                [("observation",), ("info", "qpos")],
                [("observation",), ("info", "deep", "er"), ("state",)],
                [("observation", "only")],
            ]
        )
    )
    own = draw(st.lists(st.sampled_from([("action",), ("mark", "a"), ("mark", "b"), ("next", "cost")]), unique=True))
    fields = [draw(_fields(key, shared=True)) for key in shared]
    fields += [draw(_fields(key, shared=False)) for key in own]
    reward = Column(("next", "reward"), np.dtype(draw(st.sampled_from(["f4", "f8", "f2", "i4"]))), (1,))
    return draw(st.permutations([*fields, reward, *FLAGS]))


@st.composite
def _trajectories(draw: st.DrawFn, columns: list[Column], number: int) -> Trajectory:
    """A trajectory of 1 to 7 steps with random values, flags and cuts."""
    steps = draw(st.integers(1, 7))
    known = draw(st.booleans())
    odd = draw(st.booleans())
    generator = np.random.default_rng([draw(st.integers(0, 1 << 16)), number])
    flags = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    last = (np.arange(steps) == steps - 1)[:, None]
    own, states = {}, {}
    for column in columns:
        if column.shared:
            # The final state of an observation is known for all of its fields or for none; infos vary independently.
            more = known if column.key[0] == "observation" else draw(st.booleans())
            states[column.key] = _numbers(generator, column.dtype, (steps + more, *column.shape), odd=odd)
        elif column.key == ("next", "reward"):
            # Integers, because their sums are exact in any order.
            own[column.key] = generator.integers(-9, 9, (steps, 1)).astype(column.dtype)
        elif column.key in {("next", "terminated"), ("next", "truncated")}:
            own[column.key] = last & flags[column.key == ("next", "truncated")]
        else:
            own[column.key] = _numbers(generator, column.dtype, (steps, *column.shape), odd=odd)
    cuts = draw(st.lists(st.integers(1, steps - 1), unique=True)) if steps > 1 else []
    return Trajectory(own, states, tuple(sorted(cuts)), {"seed": draw(st.integers(0, 99)), "source": 10 - number})


@st.composite
def datasets(draw: st.DrawFn) -> Data:
    """A schema and up to five trajectories."""
    columns = draw(schemas())
    count = draw(st.integers(1, 5))
    return Data(columns, [draw(_trajectories(columns, number)) for number in range(count)])


def indices(count: int) -> st.SearchStrategy[Any]:
    """An index of `count` rows that has the same meaning in NumPy."""
    row = st.integers(-count, count - 1)
    rows = st.lists(row, max_size=9)
    edge = st.none() | st.integers(-count - 3, count + 3)
    grids = st.integers(0, 3).flatmap(
        lambda height: st.lists(row, min_size=3 * height, max_size=3 * height).map(
            lambda flat: np.array(flat, np.int64).reshape(height, 3)
        )
    )
    masks = st.lists(st.booleans(), min_size=count, max_size=count)
    return st.one_of(
        row,
        row.map(np.int32),
        row.map(torch.tensor),
        st.builds(slice, edge, edge, st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])),
        st.builds(range, st.integers(0, count - 1), st.integers(0, count), st.integers(1, 3)),
        rows,
        rows.map(lambda listed: np.array(listed, np.int16)[::-1]),
        rows.map(lambda listed: torch.tensor(listed, dtype=torch.int32)),
        rows.map(lambda listed: torch.tensor(listed, dtype=torch.int64)),
        grids,
        grids.map(torch.from_numpy),
        masks,
        masks.map(np.array),
        masks.map(torch.tensor),
        st.just(Ellipsis),
    )
