"""Draft of a ``dataset.toml``: what the files say with certainty, and a question where a person must choose."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets_rl.errors import ConversionError, InvalidArgumentError, MissingDependencyError, join_names
from datasets_rl.fetch.schemes import NotServedError, local_path
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile
from datasets_rl.sources.flat.csv_tables import NoHeaderError
from datasets_rl.sources.flat.ends import find_ends, read_flags
from datasets_rl.sources.flat.folders import data_folders, shown_path
from datasets_rl.sources.flat.formats import files_beside, formats_of, open_arrays
from datasets_rl.sources.flat.layout import BUFFERS, WAYS
from datasets_rl.sources.flat.names import COUNTS_STEPS, doubtful_meaning, last_name, speaks_of_episodes
from datasets_rl.sources.flat.plan import plan_layout, usual_fields
from datasets_rl.sources.flat.rings import STEPS, BufferRowsError
from datasets_rl.sources.flat.videos import FilesBeside, VideosFile
from datasets_rl.sources.local.checks import check_rows
from datasets_rl.sources.local.description import SHORT, Description
from datasets_rl.sources.local.evidence import (
    arranged,
    check_files_beside,
    unnamed_episodes,
    with_evidence,
    with_success,
)
from datasets_rl.ted.keys import Key, natural_order

if TYPE_CHECKING:
    from datasets_rl.fetch.asset import Asset

_INDEX = re.compile(r"__index_level_\d+__")
"""Names of the columns in which pandas stores an index without a name."""
_FIRST_ROWS = 3
_ROW_ELEMENTS = 4
"""Number of elements of a row that the draft shows."""
_VALUE_BYTES = 1 << 20
"""Rows above this size are not read for the draft."""
_TEXT_CHARS = 30
_ROW_CHARS = 400
_COLUMNS = "Several columns are [{}, {}]"
_NAMES = 5
"""Number of arrays that a question names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft of the description of files without a description."""

    text: str
    questions: tuple[str, ...]
    """What the user must or may answer, a sentence each. Without a question, the files need no description."""

    @property
    def is_certain(self) -> bool:
        """Whether the draft leaves nothing to the user."""
        return not self.questions


@dataclass(slots=True)
class _Seen:
    """What the first file shows."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    by: str = ""
    marks: str = ""
    question: str = ""
    answers: str = ""
    """How the description answers the questions."""
    optional: Sequence[str] = ()
    """Names of the arrays that need no field: by the format, or because other arrays have the values."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The first values of the arrays, as text."""
    agreed: frozenset[str] = frozenset()
    """Arrays that are not fields and agree with the ends of the episodes, such as the number of each row."""
    is_table: bool = False
    """Whether the arrays are columns of a table."""
    is_open: bool = False
    """Whether `by` may change when the unknown names are answered."""
    buffer: str = ""
    """Which rows of a replay buffer are the steps, an item of `layout.BUFFERS`, or empty for other files."""
    buffer_question: str = ""
    """Why it is not certain which rows of a replay buffer are the steps."""

    def comment(self, array: str) -> str:
        """Return the comment about an array: dtype, shape and first values."""
        values = self.values.get(array, "")
        return f"# {self.arrays[array]}{values and f', first {values}'}"


def draft(
    name: str,
    data: Mapping[str, Asset],
    *,
    beside: Mapping[str, Asset] | None = None,
    alone: bool = False,
    headers: Mapping[str, tuple[Sequence[int], str]] | None = None,
) -> Draft:
    """Return a draft for files that have no description.

    Args:
        name: The id within the source.
        data: The files by path. The first file is opened if the file is on this machine.
        beside: All files of the folder, by path, among which are the images that rows may name.
        alone: Whether the draft selects these files by name, because other files may lie beside them.
        headers: The shape and the dtype of each array of the first file, by name, of files that are elsewhere.
    """
    try:
        form, paths = Description().data_files(beside or data, name)
    except ConversionError:
        form, paths = "", []
    title = f"name = {_quoted(name.rpartition('/')[2])}"
    if not form:
        choices = [*_format_lines(data)]
        return Draft("\n".join([title, *choices, 'license = ""']), ("which format has the data?",))
    lines = [title, f'format = "{form}"', 'license = ""']
    if alone:
        chosen = shown_path(paths[0], data_folders(data)) or paths[0]
        lines.insert(2, f"files = [{_quoted(glob.escape(chosen))}]")
    try:
        first = {path: data[path] for path in paths}
        seen = _look_at_first(first, form, beside or {}) if headers is None else _seen_in(headers)
    except NoHeaderError as error:
        return _without_header(lines, error)
    if not seen.arrays:
        return Draft("\n".join(lines), ("which arrays are the observations and the actions?",))
    lines += [*_buffer_lines(seen), "", "[episodes]", *_episode_lines(seen)]
    readable = {array: shown for array, shown in seen.arrays.items() if shown.text or not shown.dtype.hasobject}
    keys = {field.array: field.key for field in usual_fields(Description(missing_reward=None), readable)}
    counts = {seen.arrays[array].rows for array, key in keys.items() if key[0] != "info"}
    keys = {array: key for array, key in keys.items() if key[0] != "info" or seen.arrays[array].rows in counts}
    missing = [root for root in ("observation", "action") if not any(root == key[0] for key in keys.values())]
    known = {*keys, seen.marks, *seen.agreed, *seen.optional}
    rows = {seen.arrays[array].rows for array in keys}
    unnamed = [
        array
        for array, shown in seen.arrays.items()
        # An array with another number of rows than the actions is not a field, and Python objects are never read.
        if array not in known and (shown.rows in rows or missing) and array in readable
        if not speaks_of_episodes(array) and not _INDEX.fullmatch(array)
    ]
    lines += ["", "[fields]"]
    for array, key in keys.items():
        short = key[1:] if key in SHORT.values() else key
        lines.append(f"{_toml_key(short)} = {_quoted(array)}    {seen.comment(array)}")
    numbers = [array for array in unnamed if not seen.arrays[array].text and not seen.arrays[array].shape]
    several = f" {_COLUMNS.format(*map(_quoted, numbers[:2]))}" if seen.is_table and len(numbers) > 1 else ""
    lines += [f"# {root} = ...    # which array is the {root}?{several}" for root in missing]
    if not any("reward" in key for key in keys.values()):
        without = "which array is the reward? 0.0 without rewards" if unnamed else "without it, every reward is 0"
        lines.append(f"# reward = ...    # {without}")
    asked = {*filter(speaks_of_episodes, seen.arrays)} if seen.question else set()
    others = [array for array in seen.arrays if array not in {*keys, seen.marks, *seen.agreed} | asked]
    lines += [f"# ... = {_quoted(array)}    {seen.comment(array)}{_meaning(array)}" for array in others[:ITEMS_MAX]]
    if len(others) > ITEMS_MAX:
        lines.append(f"# and {len(others) - ITEMS_MAX:,} more arrays")
    objects = [array for array in seen.arrays if array not in readable] if missing else []
    questions = [f"which rows of the buffer are the steps? {seen.buffer_question}"] if seen.buffer_question else []
    questions += [f"how do the episodes end? {seen.question}"] if seen.question else []
    questions += _object_questions(paths[0].rpartition("/")[2], objects)
    if keys or unnamed or not objects:
        questions += [f"which array is the {root}?" for root in missing]
    return Draft("\n".join(lines), (*questions, *_name_questions(unnamed)))


def _name_questions(arrays: Sequence[str]) -> Iterator[str]:
    """Yield the questions about arrays of unknown names."""
    if arrays:
        yield f"which fields are {join_names(arrays, _NAMES)}? Arrays without a field are left out"
    yield from (f"{array} may be {meaning}" for array in arrays if (meaning := doubtful_meaning(array)))


def _object_questions(name: str, arrays: Sequence[str]) -> Iterator[str]:
    """Yield which arrays have Python objects, with the line of Python that saves the objects in a file that can be read.

    Args:
        name: The name of the file.
        arrays: The arrays with Python objects.
    """
    if not arrays:
        return
    loaded = f"numpy.load({name!r}, allow_pickle=True)"
    way = f"numpy.save('episodes.npy', {loaded}[{arrays[0]!r}])"
    shown = join_names(arrays, _NAMES)
    yield f"are {shown} episodes? Python objects are not read: save the episodes as arrays, import numpy; {way}"


def _format_lines(data: Mapping[str, Asset]) -> Iterator[str]:
    """Yield the choices among the formats of files, with the arrays of the first file of each format."""
    formats = formats_of([*data], data_folders(data))
    for form in dict.fromkeys(formats.values()):
        paths = sorted((path for path, own in formats.items() if own == form), key=natural_order)
        try:
            arrays = _look_at(data[paths[0]], form, paths[0], {}, paths).arrays
        except (ConversionError, MissingDependencyError):
            arrays = {}  # an error only if the format is chosen
        shown = join_names([f"{array} {described}" for array, described in arrays.items()], _NAMES)
        more = f"{len(paths):,} files, the first {paths[0]}" if len(paths) > 1 else paths[0]
        yield f'# format = "{form}"    # {more}{shown and f": {shown}"}'


def _meaning(array: str) -> str:
    meaning = doubtful_meaning(array)
    return f": {meaning}?" if meaning else ""


def _without_header(lines: Sequence[str], error: NoHeaderError) -> Draft:
    """Return the draft for a table without names of the columns, with the first rows."""
    names = ", ".join(_quoted(f"column_{number}") for number in range(len(error.rows[0])))
    asked = ["# obs_0, obs_1, ..., action, reward, terminated, truncated or episode are recognized", "# first rows:"]
    shown = [f"#   {_quoted(', '.join(row)[:_ROW_CHARS])}" for row in error.rows]
    question = f"what are the {len(error.rows[0]):,} columns? The first row has numbers instead of names"
    return Draft("\n".join([*lines, f"# columns = [{names}]    # {question}", *asked, *shown]), (question,))


def _buffer_lines(seen: _Seen) -> Iterator[str]:
    if seen.buffer_question:
        yield f"# buffer = ...    # {seen.buffer_question}"
        yield f"# {seen.answers}"
    elif seen.buffer:
        yield f'buffer = "{seen.buffer}"' + " " * 20 + f"# one of {', '.join(BUFFERS)}"


def _episode_lines(seen: _Seen) -> Iterator[str]:
    if not seen.question and not seen.by:
        yield "# by = ...    # by default, the arrays of the file show how episodes end"
        return
    if not seen.question:
        # A stated way is used unchanged. While names are unknown, the arrays could not be searched for evidence.
        opened = "# " if seen.is_open else ""
        note = ", and without this line the fields show the way" if seen.is_open else ""
        yield f'{opened}by = "{seen.by}"' + " " * 20 + f"# one of {', '.join(WAYS)}{note}"
        if seen.marks:
            yield f"{opened}array = {_quoted(seen.marks)}    {seen.comment(seen.marks)}"
        return
    yield f"# by = ...    # {seen.question}"
    if seen.answers:
        yield f"# {seen.answers}"
    for array in filter(speaks_of_episodes, seen.arrays):
        yield f"# array = {_quoted(array)}    {seen.comment(array)}"


def _quoted(text: str) -> str:
    """Return a text as a string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: Key) -> str:
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else _quoted(part) for part in key)


def _seen_in(headers: Mapping[str, tuple[Sequence[int], str]]) -> _Seen:
    """Return what the names, shapes and dtypes of arrays show. The values decide how episodes end, after the download."""
    arrays = {}
    for name, (shape, kind) in headers.items():
        dtype = np.dtype(kind).newbyteorder("=")
        if shape:
            arrays[name] = Array(
                shape[0], tuple(shape[1:]), TEXT if dtype.kind == "U" else dtype, text=dtype.kind == "U"
            )
    counts = [name for name in arrays if COUNTS_STEPS.search(last_name(name))]
    return _Seen(arrays, optional=counts)


def _look_at_first(data: Mapping[str, Asset], file_format: str, beside: Mapping[str, Asset]) -> _Seen:
    """Return what the first file with a row shows."""
    seen = _Seen()
    for path, asset in data.items():
        seen = _look_at(asset, file_format, path, beside, [*data])
        if not seen.arrays or any(array.rows for array in seen.arrays.values()):
            break
    return seen


def _look_at(asset: Asset, file_format: str, name: str, beside: Mapping[str, Asset], tables: Sequence[str]) -> _Seen:
    """Return what a file shows, or nothing if the file cannot be opened here."""
    path = local_file(asset)
    if path is None or not path.is_file():
        return _Seen()
    images = {one: image for one in files_beside(file_format, beside) if (image := local_file(beside[one])) is not None}
    with open_arrays(path, file_format, name) as file:
        seen = _judged(file, FilesBeside(images, tables), name, alone=len(tables) == 1)
        seen.is_table = file.is_table
        return seen


def first_texts(file_format: str, data: Mapping[str, Asset]) -> list[str] | None:
    """Return the texts in the first row of the first table with a row, or None if a table cannot be opened here.

    Raises:
        ConversionError: If a table is damaged.
    """
    for name, asset in data.items():
        path = local_file(asset)
        if path is None or not path.is_file():
            return None
        with open_arrays(path, file_format, name) as file:
            columns = [column for column, array in file.arrays.items() if array.text and array.rows]
            if any(array.rows for array in file.arrays.values()):
                return [str(next(file.blocks(column, 1))[0]) for column in columns]
    return None


def local_file(asset: Asset) -> Path | None:
    """Return the path of a file of this machine, or None for other files."""
    try:
        return local_path(asset.urls[0])
    except (InvalidArgumentError, NotServedError):
        return None


def _judged(file: ArrayFile, beside: FilesBeside, name: str, *, alone: bool) -> _Seen:
    """Return what an open file shows.

    Raises:
        ConversionError: If images or videos beside the file are not those of the rows.
    """
    layout = Description()
    try:
        flat = arranged(file, layout)
        rows = beside.shown_in(flat, name)
    except ConversionError as error:
        return _asking(error, file, _first_values(file))
    seen = _judged_rows(file, flat, rows, alone=alone)
    if alone:  # each of several files shows its own rows
        seen.buffer = next((way for rule, way in STEPS.items() if rule in flat.decisions), "")
    return seen


def _judged_rows(file: ArrayFile, flat: ArrayFile, rows: VideosFile, *, alone: bool) -> _Seen:
    """Return what an open file shows.

    Args:
        file: The file.
        flat: The file as a file of flat rows.
        rows: The flat rows, with the images and videos beside the file.
        alone: Whether the file is the only file of the dataset.

    Raises:
        ConversionError: If images or videos beside the file are not those of the rows.
    """
    layout = Description()
    if flat is file and not file.is_table and (seen := _unnamed(file)):
        return seen
    check_files_beside(rows, layout)
    values = _first_values(rows)
    try:
        plan = plan_layout(rows, layout)
    except ConversionError:  # names are missing, which the draft asks for
        by, marks = rows.way, _padding_of(rows)
        # Arrays that speak of episodes decide when the names are complete.
        if not by and not any(map(speaks_of_episodes, rows.arrays)):
            by, marks = layout.end_marks(rows.arrays, layout.fields_of(rows.readable))
        return _Seen(rows.arrays, by, marks, optional=_optional_in(rows), values=values, is_open=not rows.way)
    try:
        plan = with_success(rows, with_evidence(rows, plan))
        check_rows(rows, plan, find_ends(rows, plan, read_flags(rows, plan)), alone=alone)
    except ConversionError as error:
        return _asking(error, rows, values)
    agreed = frozenset(rows.arrays) - {*plan.left_out}
    marks = plan.marks or _padding_of(rows)
    return _Seen(rows.arrays, plan.by, marks, optional=_optional_in(rows), values=values, agreed=agreed)


def _unnamed(file: ArrayFile) -> _Seen | None:
    """Return what a file with a group of arrays of unknown names for each episode shows, or None for other files."""
    try:
        found = unnamed_episodes(file)
    except ConversionError as error:
        return _asking(error, file, _first_values(file))
    if found is None:
        return None
    joined, is_certain = found
    question = "" if is_certain else "each numbered group may be an episode, an agent or a sensor"
    return _Seen(
        joined.arrays, joined.way, "", question, f'by = "{joined.way}" for episodes', values=_first_values(joined)
    )


def _padding_of(file: ArrayFile) -> str:
    return next(iter(file.padding), "")


def _optional_in(file: ArrayFile) -> list[str]:
    return [*file.optional, *file.contained]


def _asking(error: ConversionError, file: ArrayFile, values: Mapping[str, str]) -> _Seen:
    question, answers = (" ".join(text.split()) for text in ("; ".join(error.problems), str(error.remedy)))
    seen = _Seen(file.arrays, answers=answers, optional=_optional_in(file), values=values)
    if isinstance(error, BufferRowsError):
        seen.buffer_question = question
    else:
        seen.question = question
    return seen


def _first_values(file: ArrayFile) -> dict[str, str]:
    """Return the first values of the arrays as text, without images, large rows and arrays that cannot be read."""
    names = [
        name
        for name in file.readable
        if not file.arrays[name].encoded and file.arrays[name].rows and file.arrays[name].row_bytes <= _VALUE_BYTES
    ]
    # Blocks that are read alternately share one pass over a table of text.
    blocks = {name: file.blocks(name, _FIRST_ROWS) for name in names}
    found = {}
    for name in names:
        try:
            found[name] = ", ".join(map(_row_text, next(blocks[name])[:_FIRST_ROWS]))
        except (ConversionError, MissingDependencyError, StopIteration):  # an error only if the array is used
            continue
    return found


def _row_text(row: Any) -> str:
    if isinstance(row, str):
        return _quoted(row if len(row) <= _TEXT_CHARS else f"{row[: _TEXT_CHARS - 3]}...")
    values = np.asarray(row).reshape(-1)
    shown = [_number_text(value) for value in values[:_ROW_ELEMENTS].tolist()]
    if not np.ndim(row):
        return shown[0]
    return f"[{', '.join(shown)}{', ...' if len(values) > _ROW_ELEMENTS else ''}]"


def _number_text(value: Any) -> str:
    # The first times of a recording differ in late digits only.
    digits = 12 if isinstance(value, float) and 1e5 <= abs(value) < 1e12 else 4
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
