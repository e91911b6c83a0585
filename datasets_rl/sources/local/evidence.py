"""What the arrays of a file say about the ends of the episodes: certain evidence is used, doubtful evidence is refused.

An array with a name that speaks of episodes marks the episodes in a way of `MARKED`. Evidence is certain if a single
way fits the name, the numbers and the rows, and if all such arrays of a file agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arranged import (
    BatchedFile,
    ElementsFile,
    JoinedFile,
    Member,
    elements_of_arrays,
    members_by_suffix,
    members_in_groups,
    padded_steps,
)
from datasets_rl.sources.flat.arrays import ArrayFile, Hdf5Arrays
from datasets_rl.sources.flat.attributes import GroupsFile
from datasets_rl.sources.flat.ends import (
    arranged_lengths,
    check_flags_of_most_rows,
    find_ends,
    marked_episodes,
    read_flags,
    union,
)
from datasets_rl.sources.flat.layout import ARRANGED, MARKED, Layout
from datasets_rl.sources.flat.names import (
    COUNTS_EPISODES,
    COUNTS_STEPS,
    IMAGE,
    NAMES,
    OF_EPISODES,
    RETURNS,
    last_name,
    speaks_of_episodes,
)
from datasets_rl.sources.flat.nan_padding import NAN_PADDING, steps_before_nan
from datasets_rl.sources.flat.packages import of_package
from datasets_rl.sources.flat.plan import Plan
from datasets_rl.sources.flat.rings import of_buffer
from datasets_rl.sources.flat.videos import VideosFile
from datasets_rl.sources.local.doubts import check_episodes, check_first_elements
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_SUCCESS,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    is_observation,
)

_Index = NDArray[np.int64]
_FLAGS = (NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
_SPEAKS_FOR_ROWS = re.compile(r"episode|(^|_)eps?(_|$)|traj|rollout|demo|segment|(^|_)seq(uence)?(_|$)", re.IGNORECASE)
_NUMBERS_ROWS = re.compile(
    rf"{COUNTS_STEPS.pattern}|^(global_)?(index|idx|id)$|^row(_id|_index)?$|^unnamed: \d+$", re.IGNORECASE
)
_PADDING = re.compile(r"length|(^|_)lens?(_|$)|mask|valid", re.IGNORECASE)
_DISCOUNT: Key = ("discount",)
_SPLITS = "indices"
"""Name of the rows at which imitation's arrays are split, without row 0."""
_VALUES = re.compile(r"return|(^|_)rets?(_|$)|reward|score|success|seed|info|name|goal|task|cost|count", re.IGNORECASE)
"""Names of values of episodes, which do not mark rows."""
_BLOCK_EPISODES = 256
_D3RLPY_0 = {"create_mask", "mask_size"}
_WAYS: Mapping[str, tuple[str, ...]] = {
    r"start|first": ("starts",),
    r"reset": ("starts", "last-rows"),
    r"terminal|done": ("last-rows",),
    r"length|(^|_)lens?($|_)": ("lengths",),
    r"step|frame": ("steps",),
    r"(^|_)ends?($|_)|last": ("ends", "last-rows"),
    r"indices": ("starts", "ends", "last-rows"),
    r"(^|_)(id|index|idx|number|num|no)s?$": ("column", "ends"),
    r"^episodes?$": ("column", "ends"),
}
"""Ways that a name allows. The first pattern in the name decides. Any other name allows every way."""
_EPISODES = re.compile(r"(^|/|_)(demo|episode|ep|traj|trajectory|rollout|run|trial)[_-]?\d+", re.IGNORECASE)
_HINT = "state in dataset.toml how the file marks the episodes, [episodes] by = ..., see docs/sources/local.md"


def arranged(file: ArrayFile, layout: Layout) -> ArrayFile:
    """Return a file as a file of flat rows, if the structure of the file separates the episodes.

    Raises:
        ConversionError: If the structure is not the stated structure, or the evidence for a structure is doubtful.
    """
    package, is_table = of_package(file, layout), file.is_table
    file = of_buffer(file, layout) if package is file else package
    if file.way:
        return file
    if is_table:
        stated = {field.array: field.columns for field in layout.fields if field.columns}
        _check_columns(file, stated)
        taken = {layout.marks, *(name for field in layout.fields for name in (field.array, *field.columns))}
        elements = {**elements_of_arrays(file, taken), **stated}
        check_first_elements(file, layout, elements)
        file = ElementsFile(file, elements) if elements else file
    if layout.by == "axis" or (_is_inferred(layout) and _is_axis(file, layout)):
        return _batched(file, layout)
    if is_table:
        return file
    names = [*file.arrays, *file.scalars]
    groups = members_in_groups(names, layout.marks if layout.by == "group" else "")
    for way, members in (("group", groups), ("suffix", members_by_suffix(names))):
        if layout.by == way and not members:
            lack = f"no group {layout.marks}" if layout.marks else f"no {way} with a number"
            raise ConversionError(file.name, [f"the file has {lack}, expected a {way} for each episode"])
        if layout.by == way or (_is_inferred(layout) and _separates(file, layout, members, way)):
            joined = _joined(file, members, way)
            return GroupsFile(joined, file, layout) if way == "group" and isinstance(file, Hdf5Arrays) else joined
    return file


def unnamed_episodes(file: ArrayFile) -> tuple[JoinedFile, bool] | None:
    """Return a file with numbered groups or arrays of unknown names as a file of flat rows, or None for other files.

    The second value is whether the numbers are certainly those of episodes. Otherwise they may count agents or sensors.

    Raises:
        ConversionError: If an episode lacks an array, or has another array than the other episodes.
    """
    names = [*file.arrays, *file.scalars]
    for way, members in (("group", members_in_groups(names)), ("suffix", members_by_suffix(names))):
        rows: dict[str, set[int]] = {}
        for member in members:
            if member.array in file.arrays:
                rows.setdefault(member.episode, set()).add(file.arrays[member.array].rows)
        if len(rows) < 2 or {*file.arrays} - {member.array for member in members}:
            continue
        differ = len(set(map(frozenset, rows.values()))) > 1
        if way == "group" or (differ and all(max(counts) - min(counts) <= 1 for counts in rows.values())):
            joined = JoinedFile(file, members)
            joined.way = way
            return joined, differ or all(_EPISODES.search(member.array) for member in members)
    return None


def _check_columns(file: ArrayFile, stated: Mapping[str, Sequence[str]]) -> None:
    """Check that the columns that are the elements of an array are columns of numbers.

    Raises:
        ConversionError: If a table lacks a column, or a column has lists or texts. The error names every such column.
    """
    problems = []
    for column in dict.fromkeys(column for columns in stated.values() for column in columns):
        array = file.arrays.get(column)
        if array is None:
            known = join_names([f"{name} {one}" for name, one in file.arrays.items()], ITEMS_MAX)
            problems.append(f"it has no column {column}, only {known}")
        elif array.text or array.shape or array.dtype.kind not in "biuf":
            problems.append(f"{column} is {array}, expected a number for each row")
    if problems:
        raise ConversionError(file.name, problems)


def check_files_beside(file: VideosFile, layout: Layout) -> None:
    """Check the images and videos that are fields of a file.

    Raises:
        ConversionError: If paths or files are wrong, see `VideosFile.check`, or if numbers, or texts that are not names of
            such files, have the name of images.
    """
    fields = layout.fields_of(file.readable)
    file.check([field.array for field in fields])
    inferred = {
        field.array: file.arrays[field.array]
        for field in fields
        if field not in layout.fields and field.key[:2] == IMAGE
    }
    problems = [
        f"{name} has texts that are not names of PNG or JPEG images, or of videos, in all rows"
        for name, array in inferred.items()
        if array.text
    ]
    problems += [
        f"{name} has a number for each row, expected images, or names of images or videos"
        for name, array in inferred.items()
        if not array.text and not array.encoded and array.shape in {(), (1,)}
    ]
    if problems:
        hint = "correct the names, or state in dataset.toml, [fields], which field the array is"
        raise ConversionError(file.name, problems, hint=hint)


def _is_inferred(layout: Layout) -> bool:
    return layout.inferred and not layout.by


def _joined(file: ArrayFile, members: Sequence[Member], way: str) -> ArrayFile:
    joined = JoinedFile(file, members)
    joined.way = way
    return joined


def _batched(file: ArrayFile, layout: Layout) -> ArrayFile:
    fields = _arrays_of_fields(file, layout)
    rows = {file.arrays[name].shape[:1] for key, name in fields.items() if key[:1] == ACTION}
    names = [
        name
        for key, name in fields.items()
        if file.arrays[name].shape and (key not in OF_EPISODES or file.arrays[name].shape[:1] in rows)
    ]
    if not names:
        raise ConversionError(file.name, ["no field is an array of [E, T, ...], expected by the axis of episodes"])
    episodes = file.arrays[names[0]].rows
    if layout.marks and layout.marks not in file.arrays:
        raise ConversionError(
            file.name, [f"the file has no array {layout.marks}, which states the lengths of the episodes"]
        )
    marks = [layout.marks] if layout.marks else _padding_arrays(file, names, episodes)
    lengths = [padded_steps(file, name) for name in marks]
    if any(len(steps) != len(lengths[0]) or (steps != lengths[0]).any() for steps in lengths):
        raise ConversionError(
            file.name, [f"{' and '.join(marks)} state other lengths, expected equal lengths"], hint=_HINT
        )
    names = [name for name in names if name not in marks]
    steps = lengths[0] if lengths else _steps_before_nan(file, layout, fields, names)
    batched = BatchedFile(file, names, steps)
    batched.way, batched.padding = "axis", marks
    if steps is not None and not lengths:
        left_out = len(steps) * min(file.arrays[name].shape[0] for name in names) - int(steps.sum())
        batched.decisions = {**file.decisions, NAN_PADDING: left_out}
    return batched


def _steps_before_nan(
    file: ArrayFile, layout: Layout, fields: Mapping[Key, str], names: Sequence[str]
) -> _Index | None:
    """Return the number of steps of each episode, [E], if episodes end with rows of NaN."""
    keys = {name: key for key, name in fields.items() if name in names}
    core = [
        name
        for name, key in keys.items()
        if is_observation(key) or key[:1] == ACTION or key == NEXT_REWARD or key[:2] == (NEXT, *OBSERVATION)
    ]
    flags = [name for name, key in keys.items() if key in _FLAGS]
    others = [name for name in names if name not in core]
    return steps_before_nan(file, core, others, flags, is_stated=bool(layout.alignment))


def _padding_arrays(file: ArrayFile, names: Sequence[str], episodes: int) -> list[str]:
    """Return the names of the arrays that are certainly the lengths of episodes or the mask of steps.

    Raises:
        ConversionError: If an array with the name of lengths or of a mask has another number of episodes.
    """
    named = {
        name: array
        for name, array in file.arrays.items()
        if _PADDING.search(last_name(name)) and name not in names and not array.text and array.dtype.kind in "biu"
    }
    padding = {name: array for name, array in named.items() if len(array.shape) <= 1}
    problems = [
        f"{name} is {array}, expected the length or the mask of {episodes:,} episodes"
        for name, array in padding.items()
        if array.rows != episodes
    ]
    if problems:
        raise ConversionError(file.name, problems, hint=_HINT)
    return [*padding]


def _arrays_of_fields(file: ArrayFile, layout: Layout) -> dict[Key, str]:
    """Return the names of the arrays of the fields that a file has."""
    return {field.key: field.array for field in layout.fields_of(file.readable) if field.array in file.arrays}


def _is_axis(file: ArrayFile, layout: Layout) -> bool:
    """Return whether the first axis of the arrays counts the episodes, and the second axis counts the rows.

    Raises:
        ConversionError: If the second axis of observations and actions is equal, which may be by chance.
    """
    fields = _arrays_of_fields(file, layout)
    arrays = {key: file.arrays[name] for key, name in fields.items()}
    states = [array for key, array in arrays.items() if is_observation(key) and len(array.shape) > 1]
    steps = [array for key, array in arrays.items() if key[:1] == ACTION and len(array.shape) > 1]
    steps += [array for key, array in arrays.items() if key in {NEXT_REWARD, *_FLAGS} and array.shape[:1] > (1,)]
    pairs = [(state, array) for state in states for array in steps if state.rows == array.rows]
    if any(state.shape[0] == array.shape[0] + 1 for state, array in pairs):
        return True
    equal = next(((state, array) for state, array in pairs if state.shape[0] == array.shape[0]), None)
    flags = [array for key, array in arrays.items() if key in _FLAGS]
    if equal is not None and equal[0].shape[0] == 1 and flags and all(flag.shape == (1,) for flag in flags):
        return False  # rows of a single environment
    if equal is None or _padding_arrays(file, [*fields.values()], equal[0].rows) or _has_returns(file, fields):
        return equal is not None
    stated = f"the observations are {equal[0]} beside {equal[1]} of steps: the second axis may count rows, or agents"
    options = 'by = "axis" if row t of episode e is [e, t], or by = "file" if the file is a single episode'
    raise ConversionError(file.name, [stated], hint=f"state in dataset.toml, [episodes], {options}")


def _has_returns(file: ArrayFile, fields: Mapping[Key, str]) -> bool:
    """Return whether an array has the sums of the rewards over the second axis, which are the returns of episodes.

    Raises:
        ConversionError: If the last rows of an episode are zeros, which may be padding.
    """
    names = [name for key, name in fields.items() if key == NEXT_REWARD or is_observation(key) or key[:1] == ACTION]
    reward = fields.get(NEXT_REWARD, "")
    if not reward or len(file.arrays[reward].shape) != 1:
        return False
    sums = np.asarray(file.read_all(reward)).astype(np.float64).sum(axis=1)
    returns = [name for name in file.arrays if name not in names and RETURNS.search(last_name(name))]
    returns = [
        name for name in returns if file.arrays[name].rows == len(sums) and file.arrays[name].dtype.kind in "fiu"
    ]
    values = [np.asarray(file.read_all(name)).reshape(len(sums), -1) for name in returns]
    if not any(one.shape[1] == 1 and np.allclose(one[:, 0], sums, rtol=1e-4, atol=1e-6) for one in values):
        return False
    if (padded := _padded_episodes(file, names)).size:
        problem = f"the last row of episode {padded[0]:,} is zero, or the row before, in {join_names(names)}"
        hint = 'store the lengths of the episodes as an array "lengths" in the file, or state [episodes] by = "axis"'
        raise ConversionError(
            file.name, [f"{problem} ({len(padded):,} such episodes), which may be padding"], hint=hint
        )
    return True


def _padded_episodes(file: ArrayFile, names: Sequence[str]) -> _Index:
    """Return the numbers of the episodes with a last row that is zero, or equal to the row before, in all arrays."""
    padded: list[_Index] = []
    for number, blocks in enumerate(zip(*(file.blocks(name, _BLOCK_EPISODES) for name in names), strict=True)):
        arrays = [np.asarray(block).reshape(len(block), np.shape(block)[1], -1)[:, -2:] for block in blocks]
        values = np.concatenate(arrays, axis=2)
        is_zero, is_same = ~values[:, -1].any(axis=1), (values[:, 0] == values[:, -1]).all(axis=1)
        is_padding = is_zero | is_same if values.shape[1] > 1 else is_zero
        padded.append(number * _BLOCK_EPISODES + np.flatnonzero(is_padding))
    return np.concatenate([np.empty(0, np.int64), *padded])


def _separates(file: ArrayFile, layout: Layout, members: Sequence[Member], way: str) -> bool:
    """Return whether numbers in names are the numbers of episodes.

    Raises:
        ConversionError: If the numbers may count agents or sensors.
    """
    if len({member.episode for member in members}) < 2:
        return False
    members = [member for member in members if member.array in file.arrays]
    inner = layout.fields_of(dict.fromkeys(member.name for member in members))
    by_name = {field.array: field.key for field in inner if field.array}
    if ACTION[0] not in {key[0] for key in by_name.values()} or not any(map(is_observation, by_name.values())):
        return False
    numbered = {member.array for member in members}
    others = layout.fields_of({name: array for name, array in file.arrays.items() if name not in numbered})
    if any(field.key[:1] == ACTION for field in others):
        return False  # flat rows, beside other arrays with numbers
    rows = {file.arrays[member.array].rows for member in members if by_name.get(member.name, ())[:1] == ACTION}
    if len(rows) > 1 or all(_EPISODES.search(member.array) for member in members):
        return True
    shown = join_names(sorted(numbered), 4)
    problem = f"the file has {shown}, with equally many rows: the numbers may count episodes, agents or sensors"
    raise ConversionError(file.name, [problem], hint=f'state in dataset.toml, [episodes], by = "{way}" for episodes')


def with_evidence(file: ArrayFile, plan: Plan) -> Plan:
    """Return the plan of a file, with the way in which the file certainly marks the ends of episodes.

    Args:
        file: The file.
        plan: The plan of the file, with a layout that does not state the way.

    Raises:
        ConversionError: If arrays with names that speak of episodes contradict each other or do not fit, or if the
            meaning of an array is not certain.
    """
    _check_alignment(file, plan)
    rows = _rows_of_steps(file, plan)
    names = [plan.marks] if plan.marks else []
    if plan.by == "file":
        names += [part.array for part in plan.parts if part.column.key[0] == "info" and speaks_of_episodes(part.array)]
    names += [name for name in plan.left_out if speaks_of_episodes(name) or COUNTS_STEPS.search(last_name(name))]
    stated, problems = _marked(file, plan, names, rows)
    if file.way and not problems:
        counts = arranged_lengths(file, plan)
        stated = {file.way: (file.way, counts), **stated}
    if len({counts.tobytes() for _, counts in stated.values()}) > 1:
        marks = ", ".join(f"{name} marks {len(counts):,} episodes" for name, (_, counts) in stated.items())
        problems.append(f"{marks}, expected equal ends of episodes")
    by, counts = next(iter(stated.values()), (plan.by, np.empty(0, np.int64)))
    if by == "file" and file.absent_marks:
        problems.append(f"it has no array {file.absent_marks}, which marks the episodes of such files")
    flags, of_episodes = _flags_of_episodes(file, plan, rows, len(counts))
    problems += [
        f"{name} is {file.arrays[name]}, expected a flag for each of {rows:,} rows"
        for name in flags.values()
        if file.arrays[name].rows != rows
    ]
    if problems:
        raise ConversionError(file.name, problems, hint=_HINT)
    marks = "" if file.way else next(iter(stated), "")
    if not stated and flags:
        _check_flags(file, plan, rows)
    if by == "file" and file.open_question:
        options = (
            'by = "file" if the file is a single episode, or by = "column" with the array of the numbers of episodes'
        )
        raise ConversionError(file.name, [file.open_question], hint=f"state in dataset.toml, [episodes], {options}")
    left_out = tuple(name for name in plan.left_out if name not in stated and not numbers_rows(file, name, rows))
    marked = replace(plan, by=by, marks=marks, flags=flags, episode_flags=of_episodes, left_out=left_out)
    check_episodes(file, marked)
    return marked


def _check_alignment(file: ArrayFile, plan: Plan) -> None:
    """Check that a file does not have the rewards of d3rlpy 0.x, which are one row further down.

    Raises:
        ConversionError: If the file has the settings that only d3rlpy 0.x stores, and no alignment is stated.
    """
    if not plan.layout.alignment and file.scalars.keys() >= _D3RLPY_0:
        problem = "d3rlpy 0.x wrote the file, and reads the reward of row t as the reward before the action of row t"
        hint = (
            'state alignment = "same-row" in dataset.toml if the reward of row t is the one after the action of row t'
        )
        raise ConversionError(file.name, [problem], hint=hint)


def with_flags_of_episodes(file: ArrayFile, plan: Plan) -> Plan:
    """Return the plan of a file whose layout states how the file marks the episodes, with the flags of episodes apart.

    Raises:
        ConversionError: If the array does not mark episodes in the stated way.
    """
    if plan.by not in {*MARKED, *ARRANGED} or not plan.flags:
        return plan
    rows = _rows_of_steps(file, plan)
    if all(file.arrays[name].rows == rows for name in plan.flags.values()):
        return plan
    if file.way:
        counts = arranged_lengths(file, plan)
    else:
        counts, _ = marked_episodes(file, plan.by, plan.marks, rows)
    flags, of_episodes = _flags_of_episodes(file, plan, rows, len(counts))
    return replace(plan, flags=flags, episode_flags=of_episodes)


def _rows_of_steps(file: ArrayFile, plan: Plan) -> int:
    """Return the number of rows of the arrays of steps. A flag may have a number for each episode instead."""
    return next(file.arrays[name].rows for name in plan.step_arrays if name not in plan.flags.values())


def _flags_of_episodes(file: ArrayFile, plan: Plan, rows: int, episodes: int) -> tuple[dict[Key, str], dict[Key, str]]:
    """Return the arrays with a flag for each row, and the arrays with a flag for each episode."""
    of_episodes = {
        key: name
        for key, name in plan.flags.items()
        if file.arrays[name].rows != rows and file.arrays[name].rows == episodes
    }
    return {key: name for key, name in plan.flags.items() if key not in of_episodes}, of_episodes


def _marked(
    file: ArrayFile, plan: Plan, names: Sequence[str], rows: int
) -> tuple[dict[str, tuple[str, _Index]], list[str]]:
    """Return the way and the number of rows of each episode, [E], by the marking array, and the problems."""
    stated: dict[str, tuple[str, _Index]] = {}
    problems, misfits, unusable = [], [], []
    for name in names:
        array, ways = file.arrays[name], _usable_ways(file, plan, name, rows)
        if array.problem and speaks_of_episodes(name):
            problems.append(f"{name} cannot be read: {array.problem}")
            continue
        fits = {way: counts for way in ways if (counts := _counts(file, name, way, rows)) is not None}
        if len({counts.tobytes() for counts in fits.values()}) > 1:
            problems.append(f"{name} is {array}, which marks episodes by {' or by '.join(fits)}")
        elif fits:
            stated[name] = next(iter(fits.items()))
        elif name == plan.marks:
            problems += _problems_of_column(file, name, rows)
        elif not ways or array.text or array.dtype.kind == "f":
            unusable.append(name)
        elif speaks_of_episodes(name) or _has_resets(file, name, rows):
            misfits.append(name)
    misfits = [name for name in misfits if not _counts_one_episode(file, name, rows)]
    is_marked = bool(stated or plan.flags or file.way)
    for name in misfits:
        ways = _allowed_ways(name)
        # A value of each episode, such as a success, has a name without a way.
        if not is_marked or (len(ways) == 1 and not file.way):
            problems.append(
                f"{name} is {file.arrays[name]}, expected the {' or '.join(ways)} of episodes of {rows:,} rows"
            )
    return stated, problems if is_marked else [*problems, *_unmarked_problems(file, plan, unusable, rows)]


def _problems_of_column(file: ArrayFile, name: str, rows: int) -> list[str]:
    """Return why an array is not a column of the numbers of episodes."""
    try:
        marked_episodes(file, "column", name, rows)
    except ConversionError as error:
        return [*error.problems]
    shared = "the column of episodes, a value that the rows of an episode share"
    return [f"{name} is {file.arrays[name]}, expected {shared}"]


def _usable_ways(file: ArrayFile, plan: Plan, name: str, rows: int) -> tuple[str, ...]:
    """Return the ways in which an array may mark the episodes; none for values of episodes, and for other than numbers."""
    array, last = file.arrays[name], last_name(name)
    if name == plan.marks or (array.text and not array.shape and array.rows == rows and speaks_of_episodes(name)):
        return ("column",)
    if not _is_number(file, name) or _VALUES.search(last) or COUNTS_EPISODES.search(last):
        return ()
    ways = _allowed_ways(name)
    if ways is not MARKED:
        return ways
    if array.dtype.kind == "f":
        return ()
    # A flag of a first or of a last row has a name that says so.
    return ("column", "steps") if array.rows == rows else ways


def _unmarked_problems(file: ArrayFile, plan: Plan, names: Sequence[str], rows: int) -> Iterator[str]:
    """Yield which arrays speak of episodes, in a file in which nothing marks the ends of episodes."""
    for name in names:
        # A single value is a value of the single episode, and a number for each row may be the length of an object.
        is_per_row = file.arrays[name].rows == rows
        speaks = _SPEAKS_FOR_ROWS.search(last_name(name)) if is_per_row else speaks_of_episodes(name)
        if speaks and file.arrays[name].rows != 1:
            yield f"{name} is {file.arrays[name]} and speaks of episodes, but does not mark the ends of episodes"
    for name in plan.left_out:
        if not speaks_of_episodes(name) and _is_number(file, name) and _may_mark(file, name, rows):
            yield f"{name} is {file.arrays[name]} with numbers as of first rows, last rows or lengths of episodes"
    for part in plan.parts:
        if part.column.key == _DISCOUNT and file.arrays[part.array].rows == rows:
            discounts = np.asarray(file.read_all(part.array)).reshape(rows, -1)
            if (zeros := np.flatnonzero((discounts[:-1] == 0).all(1))).size:
                yield f"{part.array} is 0 at row {zeros[0]:,}, as after a termination ({len(zeros):,} such rows)"


def _may_mark(file: ArrayFile, name: str, rows: int) -> bool:
    """Return whether an array of an unknown name has the numbers of rows, or lengths, of several episodes."""
    array = file.arrays[name]
    if array.dtype.kind not in "iu" or not 1 < array.rows < rows:
        return False
    values = np.asarray(file.read_all(name)).reshape(-1).astype(np.int64)
    is_ascending = values[0] >= 0 and values[-1] <= rows and (np.diff(values) > 1).all()
    return bool(is_ascending or ((values > 0).all() and values.sum() == rows))


def _counts_one_episode(file: ArrayFile, name: str, rows: int) -> bool:
    """Return whether an array numbers the rows of the file without a reset, as the steps of a single episode."""
    return "steps" in _allowed_ways(name) and file.arrays[name].rows == rows and not _has_resets(file, name, rows)


def _counts(file: ArrayFile, name: str, way: str, rows: int) -> _Index | None:
    """Return the number of rows of each episode, [E], if an array certainly marks the episodes in a way, or None."""
    is_per_row = file.arrays[name].rows == rows
    if is_per_row != (way in {"column", "steps"}) and not (is_per_row and way in {"starts", "last-rows"}):
        return None
    try:
        counts, _ = marked_episodes(file, way, name, rows)
    except ConversionError:
        return None
    # Numbers that differ in nearly every row count rows, and not episodes.
    if (
        is_per_row
        and rows > 1
        and len(counts) > (rows // 2 if way == "steps" else rows - 1)
        and way in {"column", "steps"}
    ):
        return None
    if way == "steps" and len(counts) == 1:
        return None  # a number for each row of the file
    first = np.asarray(next(file.blocks(name, 1)))[0]
    if way == "starts" and not (first if is_per_row else first == 0 or last_name(name) == _SPLITS):
        return None  # row 0 is a first row
    return counts if counts.sum() == rows else None


def with_success(file: ArrayFile, plan: Plan) -> Plan:
    """Return the plan of a file, with the array or the number that has the success of each episode."""
    if plan.layout.seams or any(part.column.key == NEXT_SUCCESS for part in plan.parts):
        return plan
    rows = {name: file.arrays[name].rows for name in plan.left_out if _is_number(file, name)}
    rows |= dict.fromkeys(file.scalars, 1)
    found = [name for name in rows if last_name(name).lower() in NAMES[NEXT_SUCCESS]]
    if len(found) != 1 or rows[found[0]] != len(find_ends(file, plan, read_flags(file, plan)).lengths):
        return plan
    return replace(plan, success=found[0], left_out=tuple(name for name in plan.left_out if name != found[0]))


def _is_number(file: ArrayFile, name: str) -> bool:
    array = file.arrays[name]
    return array.shape in {(), (1,)} and array.dtype.kind in "biuf" and not array.text


def numbers_rows(file: ArrayFile, name: str, rows: int) -> bool:
    """Return whether an array has the number of each row of the file, which says nothing more about the rows."""
    array = file.arrays[name]
    if not _NUMBERS_ROWS.search(last_name(name)) or array.rows != rows or array.shape or array.dtype.kind not in "iu":
        return False
    return not array.text and bool((np.diff(np.asarray(file.read_all(name)).astype(np.int64)) == 1).all())


def _has_resets(file: ArrayFile, name: str, rows: int) -> bool:
    """Return whether an array of step numbers begins again, or has another number of rows than the steps."""
    values = np.asarray(file.read_all(name)).reshape(-1)
    return len(values) != rows or bool((values[1:] <= values[:-1]).any())


def _check_flags(file: ArrayFile, plan: Plan, rows: int) -> None:
    """Check that flags which end episodes are not flags of first rows, or the inverse of flags.

    Raises:
        ConversionError: If the first row is flagged and the last row is not, or most rows are flagged.
    """
    by_key = read_flags(file, plan)
    check_flags_of_most_rows(file, {plan.flags[key]: set_rows for key, set_rows in by_key.items()}, rows)
    flagged = union(by_key.values())
    if rows > 1 and len(flagged) and flagged[0] == 0 and flagged[-1] != rows - 1:
        names = list(plan.flags.values())
        problem = f"{join_names(names)} is set in the first row and not in the last row, as a flag of first rows is"
        options = f'by = "starts" and array = "{names[0]}", or by = "flags" if the flag is set in last rows'
        raise ConversionError(file.name, [problem], hint=f"state in dataset.toml, [episodes], {options}")


def _allowed_ways(name: str) -> tuple[str, ...]:
    last = last_name(name).lower()
    if COUNTS_STEPS.search(last):
        return ("steps",)
    return next((ways for pattern, ways in _WAYS.items() if re.search(pattern, last)), MARKED)
