"""Pickles of plain data, read by a machine of our own that cannot call anything.

A pickle is a program for a stack machine, and one of its instructions calls any function of any module. This machine
knows the instructions that build numbers, text, bytes and containers, and in place of calls a short list of names whose
effect is written out below: the arrays, numbers and types of numpy, and a few containers. Every other name is refused,
with its place. The library's own unpickler is not used at all: numpy's types trust what they are restored from, and with
forged content they read and write where they should not.
"""

from __future__ import annotations

import math
import re
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionFailed
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.streams import AGAIN, Readable, fill, unlike

__all__ = ["load", "load_npy"]

_DEPTH_MOST = 32
_VALUES_MOST = 50_000_000  # counted as if nothing were shared: what walks the result must come to an end
_DIGITS_MOST = 1000
_SHOWN_MOST = 20
_RUN = 1000  # the library writes lists in batches of this many
_TYPE = re.compile("[biufc][0-9]{1,2}|[SU][1-9][0-9]{0,8}|O8?")
_ESCAPED = re.compile(rb"""(?:[^\\]|\\(?:[\\'"nrt]|x[0-9a-f]{2}))*""")  # what Python 2 writes
_NUMPY_CORES = ("numpy.core", "numpy._core")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class _Damaged(Exception):
    """A pickle that cannot be read; the argument says why."""


class _Name:
    """A global that the pickle names."""

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self.call = call


class _Empty:
    """An array or type whose content is still to come, with BUILD."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.places: list[int] = []
        """In the memo."""


def load(data: bytes | bytearray | memoryview, name: str = "pickle") -> Any:
    """Read a pickle of any protocol.

    Args:
        data: The pickle.
        name: What it is called in errors.

    Returns:
        None, booleans, numbers, text, bytes, numpy arrays and numbers, and tuples, lists, dicts, sets and deques of them.
        Arrays may not be writable.

    Raises:
        ConversionFailed: If it names anything else (all such names at once), is cut or damaged, holds itself, or is nested
            or swollen beyond any data.
    """
    machine = _Machine(memoryview(data).cast("B"))
    try:
        value = machine.run()
    except _Damaged as error:
        machine.problems.append(f"byte {machine.at:,}: {error}")
    except (IndexError, struct.error) as error:
        machine.problems.append(f"it is cut or damaged at byte {machine.at:,}: {error}")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        machine.problems.append(f"it is damaged at byte {machine.at:,}: {type(error).__name__} {error}")
    if machine.problems:
        more = [f"and {len(machine.problems) - _SHOWN_MOST:,} more"] if len(machine.problems) > _SHOWN_MOST else []
        raise ConversionFailed(name, [*machine.problems[:_SHOWN_MOST], *more], hint=AGAIN)
    return value


def load_npy(source: Path | str | BinaryIO | Readable, name: str = "", *, most: int = 1 << 31) -> Any:
    """Read a ``.npy`` file, whether it holds numbers, or Python objects as a pickle.

    Args:
        source: The file, or a stream of it.
        name: What it is called in errors; by default the file's name.
        most: Bytes of the file at most.

    Returns:
        The array; of a single object, as ``numpy.save`` writes a dict, the object itself.

    Raises:
        ConversionFailed: If it is no such file, or its pickle is refused.
    """
    if isinstance(source, Path | str):
        path = Path(source)
        with path.open("rb") as stream:
            return load_npy(stream, name or path.name, most=path.stat().st_size)
    reader = NpyReader(source, name or "npy", most=most)
    if not reader.pickled:
        return reader.read()
    pieces: list[memoryview] = []
    while got := fill(source, piece := memoryview(bytearray(1 << 20))):
        pieces.append(piece[:got])
        if (len(pieces) << 20) > most + (1 << 20):
            raise ConversionFailed(reader.name, [f"its pickle has more than {most:,} bytes"])
    found = load(b"".join(pieces), reader.name)
    if not isinstance(found, np.ndarray) or found.shape != reader.shape:
        raise ConversionFailed(reader.name, [f"its pickle is no array of shape {list(reader.shape)}"], hint=AGAIN)
    return found[()] if found.shape == () else found


class _Machine:
    """The stack machine: one method an instruction, each returning the place of the next one."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0
        self.problems: list[str] = []
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._open = 0
        # What calls make may not be much more than what the pickle brings: one value can be given to many calls.
        self._budget = 8 * len(data) + (1 << 20)

    def run(self) -> Any:
        if bytes(self.data[:1]) not in _BEGINNINGS:
            raise _Damaged(unlike(bytes(self.data[:64]), "a pickle"))
        data, at = self.data, 0
        while (code := data[at]) != _STOP:
            self.at = at
            step = _STEPS.get(code)
            if step is None:
                raise _Damaged(_REFUSED.get(code, f"{bytes([code])!r} is no instruction"))
            at = step(self, at + 1)
            if at > len(data):
                raise _Damaged("it is cut")
        if at + 1 != len(data):
            raise _Damaged("more bytes follow its end")
        if self.problems:
            return None
        if len(self._stack) != 1 or self._marks or self._open:
            raise _Damaged("it ends in the middle of a value")
        (value,) = self._stack
        _measure(value)
        return value

    # --- plain values

    def proto(self, at: int) -> int:
        if self.data[at] > 5:
            raise _Damaged(f"its protocol is {self.data[at]}; expected 5 at most")
        return at + 1

    def frame(self, at: int) -> int:
        if at + 8 > len(self.data):
            raise _Damaged("it is cut")
        return at + 8

    def none(self, at: int) -> int:
        self._stack.append(None)
        return at

    def true(self, at: int) -> int:
        self._stack.append(True)
        return at

    def false(self, at: int) -> int:
        self._stack.append(False)
        return at

    def byte_int(self, at: int) -> int:
        self._stack.append(self.data[at])
        return at + 1

    def short_int(self, at: int) -> int:
        self._stack.append(_U16.unpack_from(self.data, at)[0])
        return at + 2

    def four_int(self, at: int) -> int:
        self._stack.append(_I32.unpack_from(self.data, at)[0])
        return at + 4

    def long1(self, at: int) -> int:
        return self._long(at + 1, self.data[at])

    def long4(self, at: int) -> int:
        return self._long(at + 4, _I32.unpack_from(self.data, at)[0])

    def _long(self, at: int, size: int) -> int:
        if not 0 <= size <= _DIGITS_MOST:
            raise _Damaged(f"an integer has {size:,} bytes; expected {_DIGITS_MOST:,} at most")
        self._stack.append(int.from_bytes(self._bytes(at, size), "little", signed=True))
        return at + size

    def text_int(self, at: int) -> int:
        line, at = self._line(at, _DIGITS_MOST)
        # The booleans of protocol 0 are integers with a leading zero.
        plain = {b"00": False, b"01": True}
        self._stack.append(plain[line] if line in plain else int(line))
        return at

    def text_long(self, at: int) -> int:
        line, at = self._line(at, _DIGITS_MOST)
        self._stack.append(int(line.removesuffix(b"L")))
        return at

    def text_float(self, at: int) -> int:
        line, at = self._line(at, _DIGITS_MOST)
        self._stack.append(float(line))
        return at

    def floats(self, at: int) -> int:
        data = self.data
        if data[at + 8] != _FLOAT:
            self._stack.append(_F64.unpack_from(data, at)[0])
            return at + 8
        # A list of floats is this instruction again and again: read the whole run at once.
        codes = bytes(data[at + 8 : at + 9 * _RUN : 9])
        count = 1 + len(codes) - len(codes.lstrip(b"G"))
        count = min(count, (len(data) - at + 1) // 9)
        self._stack.extend(struct.unpack_from(f">{'dx' * (count - 1)}d", data, at))
        return at + 9 * count - 1

    # --- text and bytes

    def text1(self, at: int) -> int:
        return self._text(at + 1, self.data[at])

    def text4(self, at: int) -> int:
        return self._text(at + 4, _U32.unpack_from(self.data, at)[0])

    def text8(self, at: int) -> int:
        return self._text(at + 8, _U64.unpack_from(self.data, at)[0])

    def _text(self, at: int, size: int) -> int:
        self._stack.append(str(self._bytes(at, size), "utf-8", "surrogatepass"))
        return at + size

    def text_line(self, at: int) -> int:
        line, at = self._line(at)
        self._stack.append(str(line, "raw-unicode-escape"))
        return at

    def bytes1(self, at: int) -> int:
        return self._push_bytes(at + 1, self.data[at])

    def bytes4(self, at: int) -> int:
        return self._push_bytes(at + 4, _U32.unpack_from(self.data, at)[0])

    def bytes8(self, at: int) -> int:
        return self._push_bytes(at + 8, _U64.unpack_from(self.data, at)[0])

    def _push_bytes(self, at: int, size: int) -> int:
        self._stack.append(bytes(self._bytes(at, size)))
        return at + size

    def bytearray8(self, at: int) -> int:
        size = _U64.unpack_from(self.data, at)[0]
        self._stack.append(bytearray(self._bytes(at + 8, size)))
        return at + 8 + int(size)

    # Python 2 wrote bytes and text alike as these: one character a byte loses nothing.

    def string1(self, at: int) -> int:
        size = self.data[at]
        self._stack.append(str(self._bytes(at + 1, size), "latin-1"))
        return at + 1 + size

    def string4(self, at: int) -> int:
        size = _I32.unpack_from(self.data, at)[0]
        self._stack.append(str(self._bytes(at + 4, size), "latin-1"))
        return at + 4 + int(size)

    def string_line(self, at: int) -> int:
        line, at = self._line(at)
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'} or not _ESCAPED.fullmatch(line[1:-1]):
            raise _Damaged("a string has no quotes, or escapes that there are not")
        self._stack.append(line[1:-1].decode("unicode_escape"))
        return at

    # --- containers

    def mark(self, at: int) -> int:
        self._marks.append(len(self._stack))
        return at

    def pop(self, at: int) -> int:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()
        return at

    def pop_mark(self, at: int) -> int:
        self._since_mark()
        return at

    def dup(self, at: int) -> int:
        self._stack.append(self._top())
        return at

    def empty_tuple(self, at: int) -> int:
        self._stack.append(())
        return at

    def tuple1(self, at: int) -> int:
        self._stack[-1:] = [tuple(self._last(1))]
        return at

    def tuple2(self, at: int) -> int:
        self._stack[-2:] = [tuple(self._last(2))]
        return at

    def tuple3(self, at: int) -> int:
        self._stack[-3:] = [tuple(self._last(3))]
        return at

    def marked_tuple(self, at: int) -> int:
        self._stack.append(tuple(self._since_mark()))
        return at

    def empty_list(self, at: int) -> int:
        self._stack.append([])
        return at

    def marked_list(self, at: int) -> int:
        self._stack.append(self._since_mark())
        return at

    def append(self, at: int) -> int:
        value = self._last(2)[1]
        self._stack.pop()
        self._extend([value])
        return at

    def appends(self, at: int) -> int:
        self._extend(self._since_mark())
        return at

    def _extend(self, values: list[Any]) -> None:
        into = self._top()
        if isinstance(into, list | deque):
            into.extend(values)
        elif not _foreign(into):
            raise _Damaged(f"values are appended to a {type(into).__name__}")

    def empty_dict(self, at: int) -> int:
        self._stack.append({})
        return at

    def marked_dict(self, at: int) -> int:
        values = self._since_mark()
        self._stack.append({})
        self._update(values)
        return at

    def set_item(self, at: int) -> int:
        values = self._last(2)
        del self._stack[-2:]
        self._update(values)
        return at

    def set_items(self, at: int) -> int:
        self._update(self._since_mark())
        return at

    def _update(self, values: list[Any]) -> None:
        into = self._top()
        if len(values) % 2:
            raise _Damaged("a key has no value")
        if isinstance(into, dict):
            into.update(zip(_keys(values[::2]), values[1::2], strict=True))
        elif not _foreign(into):
            raise _Damaged(f"items are put into a {type(into).__name__}")

    def empty_set(self, at: int) -> int:
        self._stack.append(set())
        return at

    def add_items(self, at: int) -> int:
        values = self._since_mark()
        into = self._top()
        if not isinstance(into, set):
            raise _Damaged(f"values are added to a {type(into).__name__}")
        into.update(_keys(values))
        return at

    def frozen_set(self, at: int) -> int:
        self._stack.append(frozenset(_keys(self._since_mark())))
        return at

    # --- the memo

    def put_line(self, at: int) -> int:
        line, at = self._line(at, 20)
        self._put(int(line))
        return at

    def put1(self, at: int) -> int:
        self._put(self.data[at])
        return at + 1

    def put4(self, at: int) -> int:
        self._put(_U32.unpack_from(self.data, at)[0])
        return at + 4

    def memoize(self, at: int) -> int:
        self._put(len(self._memo))
        return at

    def _put(self, number: int) -> None:
        value = self._top()
        self._memo[number] = value
        if isinstance(value, _Empty):
            value.places.append(number)

    def get_line(self, at: int) -> int:
        line, at = self._line(at, 20)
        self._get(int(line))
        return at

    def get1(self, at: int) -> int:
        self._get(self.data[at])
        return at + 1

    def get4(self, at: int) -> int:
        self._get(_U32.unpack_from(self.data, at)[0])
        return at + 4

    def _get(self, number: int) -> None:
        if number not in self._memo:
            raise _Damaged(f"value {number:,} is used before it is there")
        value = self._memo[number]
        if isinstance(value, _Empty):
            raise _Damaged("an array holds itself")
        self._stack.append(value)

    # --- names and calls

    def global_line(self, at: int) -> int:
        module, at = self._line(at, 1000)
        name, at = self._line(at, 1000)
        self._name(str(module, "utf-8"), str(name, "utf-8"))
        return at

    def global_stack(self, at: int) -> int:
        module, name = self._last(2)
        del self._stack[-2:]
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Damaged("a name is no text")
        self._name(module, name)
        return at

    def _name(self, module: str, name: str) -> None:
        call = _ALLOWED.get((module, name))
        if call is None:
            self.problems.append(f"byte {self.at:,}: {module}.{name} is not plain data, and is not called"[:300])
        self._stack.append(_Name(call))

    def instance(self, at: int) -> int:
        module, at = self._line(at, 1000)
        name, at = self._line(at, 1000)
        self._since_mark()
        self.problems.append(f"byte {self.at:,}: {module!r}.{name!r} is not plain data, and is not made"[:300])
        self._stack.append(_Name(None))
        return at

    def make_object(self, at: int) -> int:
        # OBJ and NEWOBJ make instances of classes, of which none is plain data.
        return self._foreign_object(at, self._since_mark())

    def new_object(self, at: int) -> int:
        values = self._last(2)
        del self._stack[-2:]
        return self._foreign_object(at, values)

    def new_object_ex(self, at: int) -> int:
        values = self._last(3)
        del self._stack[-3:]
        return self._foreign_object(at, values)

    def _foreign_object(self, at: int, values: list[Any]) -> int:
        if not values or not _foreign(values[0]):
            raise _Damaged("it makes an instance of a class; expected plain data")
        self._stack.append(values[0])
        return at

    def reduce(self, at: int) -> int:
        name, arguments = self._last(2)
        del self._stack[-2:]
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise _Damaged("it calls what is no name")
        if name.call is None or any(map(_foreign, arguments)):
            self._stack.append(_Name(None))
            return at
        self._spend(arguments)
        made = name.call(*arguments)
        self._open += isinstance(made, _Empty)
        self._stack.append(made)
        return at

    def build(self, at: int) -> int:
        empty, state = self._last(2)
        self._stack.pop()
        if _foreign(empty):
            return at
        if not isinstance(empty, _Empty):
            raise _Damaged(f"a {type(empty).__name__} is given a state; expected plain data")
        if self.problems:
            self._stack[-1] = _Name(None)
            return at
        self._spend(state)
        self._stack[-1] = made = empty.build(state)
        self._open -= 1
        self._memo.update(dict.fromkeys(empty.places, made))
        return at

    def _spend(self, values: Any) -> None:
        for value in values if isinstance(values, tuple) else ():
            if isinstance(value, str | bytes | bytearray | list | tuple | dict | set | frozenset):
                self._budget -= len(value) * (1 if isinstance(value, str | bytes | bytearray) else 8)
        if self._budget < 0:
            raise _Damaged("its calls make more than it brings")

    # --- the stack and the bytes

    def _top(self) -> Any:
        return self._last(1)[0]

    def _last(self, count: int) -> list[Any]:
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise _Damaged("a value is missing")
        return self._stack[-count:]

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise _Damaged("a mark is missing")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _bytes(self, at: int, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - at:
            raise _Damaged(f"a value of {size:,} bytes is cut: {max(0, len(self.data) - at):,} are left")
        return self.data[at : at + size]

    def _line(self, at: int, most: int | None = None) -> tuple[bytes, int]:
        # Lines are found piece by piece: a memoryview cannot be searched.
        for size in (256, 1 << 16, len(self.data)):
            piece = bytes(self.data[at : at + size])
            if (end := piece.find(b"\n")) >= 0:
                if most is not None and end > most:
                    raise _Damaged(f"a line has {end:,} bytes; expected {most:,} at most")
                return piece[:end], at + end + 1
        raise _Damaged("a line does not end")


def _foreign(value: Any) -> bool:
    return isinstance(value, _Name) and value.call is None


def _keys(values: Sequence[Any]) -> Sequence[Any]:
    """Refuse keys other than plain values and flat tuples of them: what is nested is hashed without a bound on depth."""
    for value in values:
        for part in value if type(value) is tuple else (value,):
            if not isinstance(part, str | bytes | int | float | complex | np.generic | None):
                raise _Damaged(f"a {type(part).__name__} is a key; expected text, a number, or a flat tuple of them")
    return values


def _measure(value: Any) -> None:
    """Refuse what holds itself, is nested deep, or has, with everything shared counted again, too many values."""
    sizes: dict[int, tuple[int, int] | None] = {}
    waiting = [(value, False)]
    while waiting:
        one, done = waiting.pop()
        if done:
            inner = [sizes[id(child)] or (0, 0) for child in _containers(one)]
            count = _count(one) + sum(size for size, _ in inner)
            depth = 1 + max((depth for _, depth in inner), default=0)
            if depth > _DEPTH_MOST:
                raise _Damaged(f"its containers are nested {depth} deep; expected {_DEPTH_MOST} at most")
            if count > _VALUES_MOST:
                raise _Damaged(f"it has more than {_VALUES_MOST:,} values, when those that are shared are written out")
            sizes[id(one)] = count, depth
        elif isinstance(one, _Name | _Empty):
            raise _Damaged("a name, or an array without content, stands for a value")
        elif id(one) not in sizes:
            sizes[id(one)] = None
            waiting.append((one, True))
            for child in _containers(one):
                if id(child) not in sizes:
                    waiting.append((child, False))
                elif sizes[id(child)] is None:
                    raise _Damaged("a container holds itself")


def _containers(value: Any) -> Iterator[Any]:
    """Yield the children that are containers themselves, or have no business in a value."""
    children: Any = ()
    if isinstance(value, dict):
        children = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque) or _is_object_array(value):
        children = value.flat if isinstance(value, np.ndarray) else value
    plain = (float, str, bytes, int, type(None))
    return (child for child in children if not isinstance(child, plain) and _is_container(child))


def _is_container(value: Any) -> bool:
    return isinstance(value, (*_CONTAINERS, _Name, _Empty)) or _is_object_array(value)


def _is_object_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _count(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size if value.dtype.hasobject else 1
    return len(value) if isinstance(value, _CONTAINERS) else 1


# --- what the allowed names do


def _numpy_dtype(code: Any, align: Any = False, copy: Any = False) -> _Empty:  # noqa: ARG001  # as numpy calls it
    if not isinstance(code, str) or not _TYPE.fullmatch(code):
        raise _Damaged(f"the numpy type {code!r:.80} is refused; expected numbers, text or objects")
    dtype = np.dtype(code)

    def build(state: Any) -> np.dtype[Any]:
        if not isinstance(state, tuple) or len(state) < 5 or state[2:5] != (None, None, None):
            raise _Damaged(f"a numpy type with parts of its own is refused: {state!r:.80}")
        order = state[1]
        if order not in {"<", ">", "|", "="}:
            raise _Damaged(f"a numpy type has the byte order {order!r:.20}")
        return dtype if order == "|" else dtype.newbyteorder(order)

    return _Empty(build)


def _numpy_reconstruct(kind: Any, shape: Any, code: Any) -> _Empty:  # noqa: ARG001  # the content comes with BUILD
    if not isinstance(kind, _Name) or kind.call is not _NDARRAY:
        raise _Damaged("an array is of a class of its own; expected numpy.ndarray")

    def build(state: Any) -> NDArray[Any]:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Damaged("an array has no content")
        _, shape, dtype, fortran, content = state
        return _array(content, dtype, shape, "F" if fortran is True else "C")

    return _Empty(build)


def _ndarray(*_: Any) -> None:
    raise _Damaged("numpy.ndarray is called; expected arrays as numpy writes them")


_NDARRAY = _ndarray


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple) or order not in {"C", "F", "A"}:
        raise _Damaged("an array has no type or no shape")
    if len(shape) > 32 or not all(type(size) is int and size >= 0 for size in shape):
        raise _Damaged(f"an array has the shape {shape!r:.80}")
    count = math.prod(shape)
    if dtype.hasobject:
        if not isinstance(content, list) or len(content) != count:
            raise _Damaged(f"an array of {count:,} objects has not as many")
        objects: NDArray[Any] = np.empty(count, object)
        for number, value in enumerate(content):
            objects[number] = value
        return objects.reshape(shape, order=order)
    if isinstance(content, str):
        content = content.encode("latin-1")  # as Python 2 has it
    if not isinstance(content, bytes | bytearray) or len(content) != count * dtype.itemsize:
        size = len(content) if isinstance(content, bytes | bytearray) else 0
        raise _Damaged(f"an array of {count * dtype.itemsize:,} bytes has {size:,}")
    _check_booleans(content, dtype)
    found: NDArray[Any] = np.frombuffer(content, dtype) if len(content) else np.empty(count, dtype)
    return found.reshape(shape, order=order)


def _check_booleans(content: bytes | bytearray, dtype: np.dtype[Any]) -> None:
    if dtype.kind == "b" and len(content) and np.frombuffer(content, np.uint8).max() > 1:
        raise _Damaged("a boolean is neither 0 nor 1")


def _numpy_scalar(dtype: Any, content: Any = None) -> Any:
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        return content
    return _array(content, dtype, (), "C")[()]


def _numpy_frombuffer(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    return _array(content, dtype, shape, order)


def _encode(text: Any, encoding: Any = "latin-1") -> bytes:
    """Protocols 0 to 2 have no bytes: Python 3 writes them as text that is to be encoded."""
    if not isinstance(text, str) or encoding not in {"latin-1", "latin1"}:
        raise _Damaged(f"text is encoded as {encoding!r:.20}; expected latin1")
    return text.encode("latin-1")


def _bytes(content: Any = b"", encoding: Any = "latin-1") -> bytes:
    return (
        _encode(content, encoding) if isinstance(content, str) else bytes(_only(content, bytes, bytearray, list, tuple))
    )


def _bytearray(content: Any = b"", encoding: Any = "latin-1") -> bytearray:
    return bytearray(_bytes(content, encoding))


def _set(values: Any = ()) -> set[Any]:
    return set(_keys(_only(values, list, tuple)))


def _frozenset(values: Any = ()) -> frozenset[Any]:
    return frozenset(_keys(_only(values, list, tuple)))


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(_only(real, float, int), _only(imaginary, float, int))


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = [_only(item, list, tuple) for item in _only(items, list, tuple)]
    return OrderedDict(zip(_keys([key for key, _ in pairs]), (value for _, value in pairs), strict=True))


def _deque(values: Any = (), most: Any = None) -> deque[Any]:
    return deque(_only(values, list, tuple), None if most is None else _only(most, int))


def _only(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise _Damaged(f"a call has a {type(value).__name__}; expected {' or '.join(kind.__name__ for kind in kinds)}")
    return value


_BUILTINS: dict[str, Callable[..., Any]] = {
    "bytes": _bytes,
    "bytearray": _bytearray,
    "set": _set,
    "frozenset": _frozenset,
    "complex": _complex,
}
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _numpy_dtype,
    **{(f"{core}.multiarray", "_reconstruct"): _numpy_reconstruct for core in _NUMPY_CORES},
    **{(f"{core}.multiarray", "scalar"): _numpy_scalar for core in _NUMPY_CORES},
    **{(f"{core}.numeric", "_frombuffer"): _numpy_frombuffer for core in _NUMPY_CORES},
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "deque"): _deque,
    **{(module, name): call for module in ("builtins", "__builtin__") for name, call in _BUILTINS.items()},
}
_U16, _I32, _U32, _U64, _F64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<Q", ">d"))
_STOP, _FLOAT = ord("."), ord("G")
_STEPS: dict[int, Callable[[_Machine, int], int]] = {
    ord(code): step
    for code, step in {
        "\x80": _Machine.proto,
        "\x95": _Machine.frame,
        "N": _Machine.none,
        "\x88": _Machine.true,
        "\x89": _Machine.false,
        "K": _Machine.byte_int,
        "M": _Machine.short_int,
        "J": _Machine.four_int,
        "\x8a": _Machine.long1,
        "\x8b": _Machine.long4,
        "I": _Machine.text_int,
        "L": _Machine.text_long,
        "F": _Machine.text_float,
        "G": _Machine.floats,
        "\x8c": _Machine.text1,
        "X": _Machine.text4,
        "\x8d": _Machine.text8,
        "V": _Machine.text_line,
        "C": _Machine.bytes1,
        "B": _Machine.bytes4,
        "\x8e": _Machine.bytes8,
        "\x96": _Machine.bytearray8,
        "U": _Machine.string1,
        "T": _Machine.string4,
        "S": _Machine.string_line,
        "(": _Machine.mark,
        "0": _Machine.pop,
        "1": _Machine.pop_mark,
        "2": _Machine.dup,
        ")": _Machine.empty_tuple,
        "\x85": _Machine.tuple1,
        "\x86": _Machine.tuple2,
        "\x87": _Machine.tuple3,
        "t": _Machine.marked_tuple,
        "]": _Machine.empty_list,
        "l": _Machine.marked_list,
        "a": _Machine.append,
        "e": _Machine.appends,
        "}": _Machine.empty_dict,
        "d": _Machine.marked_dict,
        "s": _Machine.set_item,
        "u": _Machine.set_items,
        "\x8f": _Machine.empty_set,
        "\x90": _Machine.add_items,
        "\x91": _Machine.frozen_set,
        "p": _Machine.put_line,
        "q": _Machine.put1,
        "r": _Machine.put4,
        "\x94": _Machine.memoize,
        "g": _Machine.get_line,
        "h": _Machine.get1,
        "j": _Machine.get4,
        "c": _Machine.global_line,
        "\x93": _Machine.global_stack,
        "i": _Machine.instance,
        "o": _Machine.make_object,
        "\x81": _Machine.new_object,
        "\x92": _Machine.new_object_ex,
        "R": _Machine.reduce,
        "b": _Machine.build,
    }.items()
}
_REFUSED = {
    ord("P"): "it refers to an object outside of it (PERSID)",
    ord("Q"): "it refers to an object outside of it (BINPERSID)",
    0x82: "it names an object of the extension registry (EXT1)",
    0x83: "it names an object of the extension registry (EXT2)",
    0x84: "it names an object of the extension registry (EXT4)",
    0x97: "it refers to a buffer outside of it (NEXT_BUFFER)",
    0x98: "it refers to a buffer outside of it (READONLY_BUFFER)",
}
_BEGINNINGS = {bytes([code]) for code in (*_STEPS, *_REFUSED)}
