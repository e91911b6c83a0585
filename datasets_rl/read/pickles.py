"""Safe reader of pickles of plain data, which calls no function that a pickle names.

A pickle is a program for a stack machine, and an instruction can call any function of any module. This reader
implements the instructions that build numbers, text, bytes and containers. Instead of calls, it supports the short list
of names in `pickle_calls`: the arrays, numbers and dtypes of numpy, and a few containers. Every other name is an error,
which reports the position. The standard unpickler is not used at all, because numpy's types trust the content that they
are restored from, and forged content makes such types access invalid memory.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from datasets_rl.errors import ConversionError
from datasets_rl.read.npy import NpyReader
from datasets_rl.read.pickle_calls import (
    ALLOWED,
    AllowedGlobal,
    DamagedPickleError,
    UnbuiltObject,
    called,
    checked_keys,
)
from datasets_rl.read.streams import AGAIN, Readable, fill, first_problems, unexpected_format

_DEPTH_MAX = 32
_VALUES_MAX = 50_000_000  # shared values count several times, so that code that walks the result terminates
_DIGITS_MAX = 1000
_RUN = 1000  # the standard pickler writes lists in batches of this size
_ESCAPED = re.compile(rb"""(?:[^\\]|\\(?:[\\'"nrt]|x[0-9a-f]{2}))*""")  # the escapes that Python 2 writes
_Step: TypeAlias = "Callable[[_PickleMachine, int], int]"
"""Function that executes an instruction: a function of the position after the opcode that returns the position of the
next opcode."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def load(data: bytes | bytearray | memoryview, name: str = "pickle") -> Any:
    """Read a pickle of any protocol.

    Args:
        data: The pickle.
        name: Name of the pickle in errors.

    Returns:
        None, booleans, numbers, text, bytes, numpy arrays and numbers, and tuples, lists, dicts, sets and deques of
        them. Arrays may be read-only.

    Raises:
        ConversionError: If the pickle names anything else (the error lists all such names), is truncated or damaged,
            contains itself, is nested too deeply, or has too many values.
    """
    machine = _PickleMachine(memoryview(data).cast("B"))
    try:
        value = machine.run()
    except DamagedPickleError as error:
        machine.problems.append(f"byte {machine.at:,}: {error}")
    except (IndexError, struct.error) as error:
        machine.problems.append(f"it is truncated or damaged at byte {machine.at:,}: {error}")
    except (ValueError, OverflowError) as error:
        machine.problems.append(f"it is damaged at byte {machine.at:,}: {type(error).__name__} {error}")
    if machine.problems:
        raise ConversionError(name, first_problems(machine.problems), hint=AGAIN)
    return value


def load_npy(source: Path | str | BinaryIO | Readable, name: str = "", *, most: int = 1 << 31) -> Any:
    """Read a ``.npy`` file of numbers, or of pickled Python objects.

    Args:
        source: The file, or a stream of the file.
        name: Name of the file in errors, by default the name in the path.
        most: Maximum number of bytes of the file.

    Returns:
        The array, or for a single object, such as a dict that ``numpy.save`` wrote, the object itself.

    Raises:
        ConversionError: If the file is not a ``.npy`` file, or the pickle is not accepted by `load`.
    """
    if isinstance(source, Path | str):
        path = Path(source)
        with path.open("rb") as stream:
            return load_npy(stream, name or path.name, most=path.stat().st_size)
    reader = NpyReader(source, name or "npy", most=most)
    if not reader.pickled:
        return reader.read()
    data = bytearray()
    buffer = memoryview(bytearray(1 << 20))
    while count := fill(source, buffer):
        data += buffer[:count]
        if len(data) > most:
            raise ConversionError(reader.name, [f"the pickle has more than {most:,} bytes"])
    array = load(data, reader.name)
    if not isinstance(array, np.ndarray) or array.shape != reader.shape:
        raise ConversionError(reader.name, [f"the pickle is not an array of shape {list(reader.shape)}"], hint=AGAIN)
    return array[()] if array.shape == () else array


class _PickleMachine:
    """Stack machine, with the instructions that are not generated from a template below."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0
        self.problems: list[str] = []
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._open = 0
        # The output of calls is limited by the size of the pickle, because one value can be passed to many calls.
        self._budget = 8 * len(data) + (1 << 20)

    def run(self) -> Any:
        if bytes(self.data[:1]) not in _BEGINNINGS:
            raise DamagedPickleError(unexpected_format(bytes(self.data[:64]), "a pickle"))
        data, at = self.data, 0
        while (code := data[at]) != _STOP:
            self.at = at
            step = _STEPS.get(code)
            if step is None:
                raise DamagedPickleError(_FORBIDDEN.get(code, f"{bytes([code])!r} is not an instruction"))
            at = step(self, at + 1)
            if at > len(data):
                raise DamagedPickleError("it is truncated")
        if at + 1 != len(data):
            raise DamagedPickleError("more bytes follow the end")
        if self.problems:
            return None
        if len(self.stack) != 1 or self._marks or self._open:
            raise DamagedPickleError("it ends in the middle of a value")
        (value,) = self.stack
        _check_size(value)
        return value

    # --- numbers and text

    def proto(self, at: int) -> int:
        if self.data[at] > 5:
            raise DamagedPickleError(f"the protocol is {self.data[at]}, expected at most 5")
        return at + 1

    def text_int(self, at: int) -> int:
        line, at = self.read_line(at, _DIGITS_MAX)
        # The booleans of protocol 0 are integers with a leading zero.
        plain = {b"00": False, b"01": True}
        self.stack.append(plain[line] if line in plain else int(line))
        return at

    def floats(self, at: int) -> int:
        data = self.data
        if data[at + 8] != _FLOAT:
            self.stack.append(_F64.unpack_from(data, at)[0])
            return at + 8
        # A list of floats repeats this instruction: read all repetitions at once.
        codes = bytes(data[at + 8 : at + 9 * _RUN : 9])
        count = 1 + len(codes) - len(codes.lstrip(b"G"))
        count = min(count, (len(data) - at + 1) // 9)
        self.stack.extend(struct.unpack_from(f">{'dx' * (count - 1)}d", data, at))
        return at + 9 * count - 1

    def string_line(self, at: int) -> int:
        line, at = self.read_line(at)
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'} or not _ESCAPED.fullmatch(line[1:-1]):
            raise DamagedPickleError("a string is unquoted, or has an invalid escape")
        self.stack.append(line[1:-1].decode("unicode_escape"))
        return at

    # --- containers

    def mark(self, at: int) -> int:
        self._marks.append(len(self.stack))
        return at

    def pop(self, at: int) -> int:
        if self._marks and self._marks[-1] == len(self.stack):
            self._marks.pop()
        else:
            self.stack.pop()
        return at

    def dup(self, at: int) -> int:
        self.stack.append(self._top_of_stack())
        return at

    def tuple_since_mark(self, at: int) -> int:
        self.stack.append(tuple(self.values_since_mark()))
        return at

    def append(self, at: int) -> int:
        value = self.last(2)[1]
        self.stack.pop()
        self._extend_top([value])
        return at

    def appends(self, at: int) -> int:
        self._extend_top(self.values_since_mark())
        return at

    def _extend_top(self, values: list[Any]) -> None:
        target = self._top_of_stack()
        if isinstance(target, list | deque):
            target.extend(values)
        elif not _is_unpickled_object(target):
            raise DamagedPickleError(f"values are appended to a {type(target).__name__}")

    def dict_since_mark(self, at: int) -> int:
        values = self.values_since_mark()
        self.stack.append({})
        self._update_top(values)
        return at

    def set_item(self, at: int) -> int:
        self._update_top(self.take(2))
        return at

    def set_items(self, at: int) -> int:
        self._update_top(self.values_since_mark())
        return at

    def _update_top(self, values: list[Any]) -> None:
        target = self._top_of_stack()
        if len(values) % 2:
            raise DamagedPickleError("a key has no value")
        if isinstance(target, dict):
            target.update(zip(checked_keys(values[::2]), values[1::2], strict=True))
        elif not _is_unpickled_object(target):
            raise DamagedPickleError(f"items are added to a {type(target).__name__}")

    def add_items(self, at: int) -> int:
        values = self.values_since_mark()
        target = self._top_of_stack()
        if not isinstance(target, set):
            raise DamagedPickleError(f"values are added to a {type(target).__name__}")
        target.update(checked_keys(values))
        return at

    # --- the memo

    def memoize(self, at: int) -> int:
        self.put(len(self._memo))
        return at

    def put(self, number: int) -> None:
        value = self._top_of_stack()
        self._memo[number] = value
        if isinstance(value, UnbuiltObject):
            value.places.append(number)

    def get(self, number: int) -> None:
        if number not in self._memo:
            raise DamagedPickleError(f"value {number:,} is used before it is defined")
        value = self._memo[number]
        if isinstance(value, UnbuiltObject):
            raise DamagedPickleError("an array contains itself")
        self.stack.append(value)

    # --- names and calls

    def global_line(self, at: int) -> int:
        module, at = self.read_line(at, 1000)
        name, at = self.read_line(at, 1000)
        self._push_global(str(module, "utf-8"), str(name, "utf-8"))
        return at

    def global_stack(self, at: int) -> int:
        module, name = self.take(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedPickleError("a name is not text")
        self._push_global(module, name)
        return at

    def _push_global(self, module: str, name: str) -> None:
        call = ALLOWED.get((module, name))
        if call is None:
            self.problems.append(
                f"byte {self.at:,}: {module}.{name} is not allowed, because it is not plain data"[:300]
            )
        self.stack.append(AllowedGlobal(call))

    def instance(self, at: int) -> int:
        module, at = self.read_line(at, 1000)
        name, at = self.read_line(at, 1000)
        self.values_since_mark()
        self.problems.append(
            f"byte {self.at:,}: {module!r}.{name!r} is not allowed, because it is not plain data"[:300]
        )
        self.stack.append(AllowedGlobal(None))
        return at

    def push_foreign(self, values: list[Any]) -> None:
        # OBJ and NEWOBJ create instances of classes, which are never plain data.
        if not values or not _is_unpickled_object(values[0]):
            raise DamagedPickleError("it creates an instance of a class, expected plain data")
        self.stack.append(values[0])

    def reduce(self, at: int) -> int:
        name, arguments = self.take(2)
        if not isinstance(name, AllowedGlobal) or not isinstance(arguments, tuple):
            raise DamagedPickleError("it calls a value that is not a name")
        if name.call is None or any(map(_is_unpickled_object, arguments)):
            self.stack.append(AllowedGlobal(None))
            return at
        self._use_budget(arguments)
        result = called(name.call, arguments)
        self._open += isinstance(result, UnbuiltObject)
        self.stack.append(result)
        return at

    def build(self, at: int) -> int:
        empty, state = self.last(2)
        self.stack.pop()
        if _is_unpickled_object(empty):
            return at
        if not isinstance(empty, UnbuiltObject):
            raise DamagedPickleError(f"it sets the state of a {type(empty).__name__}, expected plain data")
        if self.problems:
            self.stack[-1] = AllowedGlobal(None)
            self._memo.update(dict.fromkeys(empty.places, self.stack[-1]))
            return at
        self._use_budget(state)
        self.stack[-1] = result = empty.build(state)
        self._open -= 1
        self._memo.update(dict.fromkeys(empty.places, result))
        return at

    def _use_budget(self, values: Any) -> None:
        for value in values if isinstance(values, tuple) else ():
            if isinstance(value, str | bytes | bytearray | list | tuple | dict | set | frozenset):
                self._budget -= len(value) * (1 if isinstance(value, str | bytes | bytearray) else 8)
        if self._budget < 0:
            raise DamagedPickleError("the calls produce far more data than the pickle has")

    # --- the stack and the bytes

    def _top_of_stack(self) -> Any:
        return self.last(1)[0]

    def last(self, count: int) -> list[Any]:
        if len(self.stack) - (self._marks[-1] if self._marks else 0) < count:
            raise DamagedPickleError("a value is missing")
        return self.stack[-count:]

    def take(self, count: int) -> list[Any]:
        values = self.last(count)
        del self.stack[-count:]
        return values

    def values_since_mark(self) -> list[Any]:
        if not self._marks:
            raise DamagedPickleError("a mark is missing")
        start = self._marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def cut(self, at: int, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - at:
            raise DamagedPickleError(
                f"a value of {size:,} bytes is truncated: {max(0, len(self.data) - at):,} bytes remain"
            )
        return self.data[at : at + size]

    def read_line(self, at: int, most: int | None = None) -> tuple[bytes, int]:
        # Lines are searched in copies of increasing size, because a memoryview has no search.
        for size in (256, 1 << 16, len(self.data)):
            text = bytes(self.data[at : at + size])
            if (end := text.find(b"\n")) >= 0:
                if most is not None and end > most:
                    raise DamagedPickleError(f"a line has {end:,} bytes, expected at most {most:,}")
                return text[:end], at + end + 1
        raise DamagedPickleError("a line does not end")


def _is_unpickled_object(value: Any) -> bool:
    return isinstance(value, AllowedGlobal) and value.call is None


def _check_size(value: Any) -> None:
    """Raise if a value contains itself, is nested too deeply, or has too many values, with shared values repeated."""
    sizes: dict[int, tuple[int, int] | None] = {}
    waiting = [(value, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            inner = [sizes[id(child)] or (0, 0) for child in _nested_containers(node)]
            count = _value_count(node) + sum(size for size, _ in inner)
            depth = 1 + max((depth for _, depth in inner), default=0)
            if depth > _DEPTH_MAX:
                raise DamagedPickleError(f"the containers are nested {depth} deep, expected at most {_DEPTH_MAX}")
            if count > _VALUES_MAX:
                raise DamagedPickleError(f"it has more than {_VALUES_MAX:,} values, counting shared values repeatedly")
            sizes[id(node)] = count, depth
        elif isinstance(node, AllowedGlobal | UnbuiltObject):
            raise DamagedPickleError(
                "the global of a pickle, or an array without content, is used as a value, expected only plain data"
            )
        elif id(node) not in sizes:
            sizes[id(node)] = None
            waiting.append((node, True))
            for child in _nested_containers(node):
                if id(child) not in sizes:
                    waiting.append((child, False))
                elif sizes[id(child)] is None:
                    raise DamagedPickleError("a container contains itself")


def _nested_containers(value: Any) -> Iterator[Any]:
    """Yield the children that are containers themselves, or that are not allowed in a value."""
    children: Any = ()
    if isinstance(value, dict):
        children = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque) or _is_object_array(value):
        children = value.flat if isinstance(value, np.ndarray) else value
    plain = (float, str, bytes, int, type(None))
    return (child for child in children if not isinstance(child, plain) and _is_container(child))


def _is_container(value: Any) -> bool:
    return isinstance(value, (*_CONTAINERS, AllowedGlobal, UnbuiltObject)) or _is_object_array(value)


def _is_object_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _value_count(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size if value.dtype.hasobject else 1
    return len(value) if isinstance(value, _CONTAINERS) else 1


# --- templates of instructions that differ only in a number or a type


def _push_constant(value: Any) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        machine.stack.append(value)
        return at

    return step


def _push_empty(kind: type) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        machine.stack.append(kind())
        return at

    return step


def _push_number(form: struct.Struct) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        machine.stack.append(form.unpack_from(machine.data, at)[0])
        return at + form.size

    return step


def _push_counted(length: struct.Struct, value: Callable[[memoryview], Any]) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        (size,) = length.unpack_from(machine.data, at)
        at += length.size
        machine.stack.append(value(machine.cut(at, size)))
        return int(at + size)

    return step


def _push_tuple(count: int) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        machine.stack[-count:] = [tuple(machine.last(count))]
        return at

    return step


def _skip_bytes(size: int) -> _Step:
    return lambda _, at: at + size


def _use_number(form: struct.Struct, use: Callable[[_PickleMachine, int], None]) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        use(machine, form.unpack_from(machine.data, at)[0])
        return at + form.size

    return step


def _use_line(use: Callable[[_PickleMachine, bytes], None], most: int | None = _DIGITS_MAX) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        line, at = machine.read_line(at, most)
        use(machine, line)
        return at

    return step


def _use(use: Callable[[_PickleMachine], Any]) -> _Step:
    def step(machine: _PickleMachine, at: int) -> int:
        use(machine)
        return at

    return step


def _parse_integer(data: memoryview) -> int:
    if len(data) > _DIGITS_MAX:
        raise DamagedPickleError(f"an integer has {len(data):,} bytes, expected at most {_DIGITS_MAX:,}")
    return int.from_bytes(data, "little", signed=True)


def _decode_utf8(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _decode_latin1(data: memoryview) -> str:
    """Decode a string of Python 2, which may be bytes or text. Latin-1 is lossless for both."""
    return str(data, "latin-1")


_U8, _U16, _I32, _U32, _U64, _F64 = (struct.Struct(code) for code in ("<B", "<H", "<i", "<I", "<Q", ">d"))
_STOP, _FLOAT = ord("."), ord("G")
_STEPS: dict[int, _Step] = {
    ord(code): step
    for code, step in {
        "\x80": _PickleMachine.proto,
        "\x95": _skip_bytes(8),
        "N": _push_constant(None),
        "\x88": _push_constant(value=True),
        "\x89": _push_constant(value=False),
        ")": _push_constant(()),
        "K": _push_number(_U8),
        "M": _push_number(_U16),
        "J": _push_number(_I32),
        "\x8a": _push_counted(_U8, _parse_integer),
        "\x8b": _push_counted(_I32, _parse_integer),
        "I": _PickleMachine.text_int,
        "L": _use_line(lambda machine, line: machine.stack.append(int(line.removesuffix(b"L")))),
        "F": _use_line(lambda machine, line: machine.stack.append(float(line))),
        "G": _PickleMachine.floats,
        "\x8c": _push_counted(_U8, _decode_utf8),
        "X": _push_counted(_U32, _decode_utf8),
        "\x8d": _push_counted(_U64, _decode_utf8),
        "V": _use_line(lambda machine, line: machine.stack.append(str(line, "raw-unicode-escape")), None),
        "C": _push_counted(_U8, bytes),
        "B": _push_counted(_U32, bytes),
        "\x8e": _push_counted(_U64, bytes),
        "\x96": _push_counted(_U64, bytearray),
        "U": _push_counted(_U8, _decode_latin1),
        "T": _push_counted(_I32, _decode_latin1),
        "S": _PickleMachine.string_line,
        "(": _PickleMachine.mark,
        "0": _PickleMachine.pop,
        "1": _use(_PickleMachine.values_since_mark),
        "2": _PickleMachine.dup,
        "\x85": _push_tuple(1),
        "\x86": _push_tuple(2),
        "\x87": _push_tuple(3),
        "t": _PickleMachine.tuple_since_mark,
        "]": _push_empty(list),
        "l": _use(lambda machine: machine.stack.append(machine.values_since_mark())),
        "a": _PickleMachine.append,
        "e": _PickleMachine.appends,
        "}": _push_empty(dict),
        "d": _PickleMachine.dict_since_mark,
        "s": _PickleMachine.set_item,
        "u": _PickleMachine.set_items,
        "\x8f": _push_empty(set),
        "\x90": _PickleMachine.add_items,
        "\x91": _use(lambda machine: machine.stack.append(frozenset(checked_keys(machine.values_since_mark())))),
        "p": _use_line(lambda machine, line: machine.put(int(line)), 20),
        "q": _use_number(_U8, _PickleMachine.put),
        "r": _use_number(_U32, _PickleMachine.put),
        "\x94": _PickleMachine.memoize,
        "g": _use_line(lambda machine, line: machine.get(int(line)), 20),
        "h": _use_number(_U8, _PickleMachine.get),
        "j": _use_number(_U32, _PickleMachine.get),
        "c": _PickleMachine.global_line,
        "\x93": _PickleMachine.global_stack,
        "i": _PickleMachine.instance,
        "o": _use(lambda machine: machine.push_foreign(machine.values_since_mark())),
        "\x81": _use(lambda machine: machine.push_foreign(machine.take(2))),
        "\x92": _use(lambda machine: machine.push_foreign(machine.take(3))),
        "R": _PickleMachine.reduce,
        "b": _PickleMachine.build,
    }.items()
}
_FORBIDDEN = {
    ord("P"): "it refers to an object outside (PERSID)",
    ord("Q"): "it refers to an object outside (BINPERSID)",
    0x82: "it names an object of the extension registry (EXT1)",
    0x83: "it names an object of the extension registry (EXT2)",
    0x84: "it names an object of the extension registry (EXT4)",
    0x97: "it refers to a buffer outside (NEXT_BUFFER)",
    0x98: "it refers to a buffer outside (READONLY_BUFFER)",
}
_BEGINNINGS = {bytes([code]) for code in (*_STEPS, *_FORBIDDEN)}
