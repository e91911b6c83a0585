"""The structure of an element of a storage: a tensor, a TensorDict, a tensorclass, or a pytree of such values.

The structure is inferred from the first data. The structure flattens later data into leaves, and builds data from
leaves:

    {"a": Tensor [n, 3], "b": (Tensor [n], TensorDict {"c": [n, 2]})}   <->   [n, 3], [n], [n, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDictBase,
    is_tensor_collection,
)
from torch import Tensor
from torch.utils import _pytree as pytree

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import short_text
from datasets_rl.ted.keys import names_among, spelled_key
from datasets_rl.ted.unchecked import as_tensorclass, inner_of, unchecked

Path = tuple[Any, ...]
Lead = Sequence[int | None]
"""Sizes of the leading axes that index elements, None where any size is accepted."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Path, dtype and shape of a leaf of an element."""

    path: Path
    """Keys and indices from the root to the leaf. Empty if the element is a single tensor."""
    dtype: torch.dtype | None
    """None for a non-tensor object."""
    shape: tuple[int, ...]
    """Shape of an element, without the leading axes."""
    compressed: bool = False
    """Whether a storage holds references to compressed values."""


@dataclass(frozen=True, slots=True)
class _FieldPlace:
    """Position of a leaf in the structure."""

    of_tensor: bool

    def flatten(self, data: Any, leaves: list[Any]) -> None:
        if isinstance(data, Tensor) is not self.of_tensor or not (self.of_tensor or _is_object(data)):
            raise KeyError
        leaves.append(data)

    def build(self, leaves: Iterator[Any], batch: torch.Size, device: torch.device | None) -> Any:
        del batch, device
        return next(leaves)


@dataclass(frozen=True, slots=True)
class _Fields:
    """A TensorDict or a tensorclass."""

    nodes: Mapping[str, _Node]
    batch: tuple[int, ...]
    """Sizes of the batch axes after the leading axes."""
    names: tuple[str | None, ...] | None
    """Names of the leading axes, then of the `batch` axes."""
    kind: type | None
    """The tensorclass, or None for a TensorDict."""

    def flatten(self, data: Any, leaves: list[Any]) -> None:
        items = _children_of(data)
        if len(items) != len(self.nodes):
            raise KeyError
        for name, node in self.nodes.items():
            node.flatten(items[name], leaves)

    def build(self, leaves: Iterator[Any], batch: torch.Size, device: torch.device | None) -> Any:
        built = unchecked(  # the leaves are the result of a single split
            {name: node.build(leaves, batch, device) for name, node in self.nodes.items()},
            torch.Size((*batch, *self.batch)) if self.batch else batch,
            device,
            None if self.names is None else self._names(len(batch)),
        )
        return built if self.kind is None else as_tensorclass(self.kind, built)

    def _names(self, leading: int) -> list[Any]:
        names = self.names or ()
        leading_names = names[: len(names) - len(self.batch)]
        # An index with another number of axes creates axes without names.
        return [*(leading_names if len(leading_names) == leading else [None] * leading), *names[len(leading_names) :]]


@dataclass(frozen=True, slots=True)
class _LazyStack:
    """A stack of TensorDicts that differ in shape, along an axis after the leading axes."""

    nodes: Sequence[_Node]
    axis: int
    """Axis of the stack, from the last batch axis, which is -1."""

    def flatten(self, data: Any, leaves: list[Any]) -> None:
        if not isinstance(data, TensorDictBase) or data.ndim < -self.axis:
            raise KeyError
        for node, part in zip(self.nodes, data.unbind(self.axis), strict=True):
            node.flatten(part, leaves)

    def build(self, leaves: Iterator[Any], batch: torch.Size, device: torch.device | None) -> Any:
        parts = [node.build(leaves, batch, device) for node in self.nodes]
        return LazyStackedTensorDict(*parts, stack_dim=parts[0].ndim + 1 + self.axis)


_Node = _FieldPlace | _Fields | _LazyStack


class Structure:
    """The structure of an element.

    Args:
        leaves: All leaves, in order.
        nodes: The tensors and TensorDicts in the element.
        spec: The pytree around the nodes, or None if the element itself is a tensor or a TensorDict.
    """

    def __init__(self, leaves: Sequence[Leaf], nodes: Sequence[_Node], spec: pytree.TreeSpec | None) -> None:
        self.leaves = tuple(leaves)
        self._nodes = tuple(nodes)
        self._spec = spec

    @classmethod
    def from_data(cls, data: Any, leading: int) -> Structure:
        """Infer the structure from data.

        Args:
            data: An element, or several elements.
            leading: Number of leading axes of the data that index elements.

        Raises:
            InvalidArgumentError: If the data contains no tensor, a leaf is not a tensor, or a leaf has too few axes.
                The message lists all problems.
        """
        problems: list[str] = []
        structure = cls._describe(data, leading, problems)
        if not structure.leaves:
            problems.append(f"{type(data).__name__} contains no tensor")
        if problems:
            raise InvalidArgumentError(
                f"the data cannot be stored: {'; '.join(problems)}",
                hint="pass several elements to extend, or a single element to add, or use a ListStorage, which accepts any object",
            )
        return structure

    @classmethod
    def _describe(cls, data: Any, leading: int, problems: list[str]) -> Structure:
        leaves: list[Leaf] = []
        parts, spec = _flatten_tree(data)
        nodes = [_describe_node(part, path, leading, leaves, problems) for path, part in parts]
        return cls(leaves, nodes, spec)

    def flatten(self, data: Any, lead: Lead) -> tuple[tuple[int, ...], list[Any]]:
        """Flatten data into leaves.

        Args:
            data: An element, or several elements.
            lead: The leading axes that the data must have.

        Returns:
            The sizes of the leading axes, and the leaves in order, each [*lead, *shape].

        Raises:
            InvalidArgumentError: If the data does not match the structure. The message lists all problems.
        """
        leaves: list[Any] = []
        try:
            parts = [data] if self._spec is None else self._spec.flatten_up_to(data)  # accepts keys in any order
            for node, part in zip(self._nodes, parts, strict=True):
                node.flatten(part, leaves)
            sizes = tuple(parts[0].shape[: len(lead)])
        except (AttributeError, KeyError, ValueError):
            raise self._mismatch_error(data, lead) from None
        if (
            len(sizes) != len(lead)
            or any(expected not in {None, size} for expected, size in zip(lead, sizes, strict=True))
            or not all(
                value.shape == (*sizes, *leaf.shape)
                and (leaf.dtype is None or (value.dtype is leaf.dtype and value.layout is torch.strided))
                for value, leaf in zip(leaves, self.leaves, strict=True)
            )
        ):
            raise self._mismatch_error(data, lead)
        return sizes, leaves

    def build(self, leaves: Sequence[Any], batch: torch.Size, device: torch.device | None) -> Any:
        """Build data from leaves, each [*batch, *shape]. `device` is the device of the TensorDicts."""
        remaining = iter(leaves)
        parts = [node.build(remaining, batch, device) for node in self._nodes]
        return parts[0] if self._spec is None else pytree.tree_unflatten(parts, self._spec)

    def compressing(self, keys: Sequence[Path]) -> Structure:
        """Return this structure with the leaves at these keys compressed, and no others.

        Raises:
            InvalidArgumentError: If there is no such leaf, or the leaf does not hold bytes. The message lists all
                problems.
        """
        chosen: set[int] = set()
        problems: list[str] = []
        for key in keys:
            number = self.leaves_under(key).get(())
            if number is None or self.leaves[number].dtype is not torch.uint8:
                found = "missing" if number is None else _leaf_text(self.leaves[number])
                problems.append(f"{_path_text(key)} is {found}, expected uint8")
            else:
                chosen.add(number)
        if problems:
            raise InvalidArgumentError(
                f"the data cannot be compressed: {'; '.join(problems)}, expected keys of {self}",
                hint='pass the keys of images, a nested key as a tuple inside: compress=("pixels", ("next", "pixels"))',
            )
        leaves = [replace(leaf, compressed=number in chosen) for number, leaf in enumerate(self.leaves)]
        return Structure(leaves, self._nodes, self._spec)

    @property
    def is_compressed(self) -> bool:
        """Whether a leaf is compressed."""
        return any(leaf.compressed for leaf in self.leaves)

    @property
    def by_name(self) -> list[int]:
        """Indices of the leaves, sorted by path: an order that does not depend on the keys of the first data."""
        return sorted(range(len(self.leaves)), key=lambda number: repr(self.leaves[number].path))

    def leaves_under(self, key: Path) -> dict[Path, int]:
        """Return the indices of the leaves whose path starts with a key, by the rest of the path.

        The key may be spelled with dots or without, see `spelled_key`.
        """
        size = len(key)
        if leaves := {leaf.path[size:]: n for n, leaf in enumerate(self.leaves) if leaf.path[:size] == key}:
            return leaves
        paths = [tuple(map(str, leaf.path)) for leaf in self.leaves]
        spelled = spelled_key(tuple(map(str, key)), names_among(paths))
        size = len(spelled)
        return {self.leaves[n].path[size:]: n for n, path in enumerate(paths) if path[:size] == spelled}

    def _mismatch_error(self, data: Any, lead: Lead) -> InvalidArgumentError:
        problems: list[str] = []
        if isinstance(data, LazyStackedTensorDict) and data.stack_dim < len(lead):
            _children_of(data)  # raises an error if the elements differ in shape
        actual = self._describe(data, 0, problems)
        sizes = _leading_sizes(data, lead, problems)
        problems += _structure_differences(self.leaves, actual.leaves, sizes)
        if not problems:
            problems.append(f"the data is {_kind_text(data, actual._spec)}, expected {self}")  # noqa: SLF001 - same class
        return InvalidArgumentError(
            f"the data does not match the stored structure: {'; '.join(problems)}",
            hint=_mismatch_hint(self.leaves, actual.leaves, lead),
        )

    def differences(self, other: Structure) -> list[str]:
        """Return the differences of another structure from this structure.

        The types of the containers are not compared.
        """
        return _structure_differences(self.leaves, other.leaves, ())

    def to_json(self) -> dict[str, Any]:
        """Describe the structure as JSON.

        The description names classes for information only. No class is imported from the description.
        """
        leaves = iter(self.leaves)
        nodes = [_node_to_json(node, leaves) for node in self._nodes]
        tree = None if self._spec is None else _tree_to_json(pytree.tree_unflatten(range(len(nodes)), self._spec))
        return {"tree": tree, "nodes": nodes}

    @classmethod
    def from_json(cls, entry: Any, like: Structure | None = None) -> Structure:
        """Parse an untrusted description.

        A tensorclass is restored as the TensorDict inside. A pytree with containers other than dicts, lists and tuples
        cannot be restored, unless `like` has the classes.

        Args:
            entry: The result of `to_json`.
            like: A structure that is returned if its description equals `entry`.

        Raises:
            InvalidArgumentError: If the entry does not describe a structure.
        """
        if like is not None and entry == like.to_json():
            return like
        leaves: list[Leaf] = []
        try:
            nodes = [_node_from_json(node, (), leaves) for node in entry["nodes"]]
            if entry["tree"] is None:
                (node,) = nodes
                return cls(leaves, [node], None)
            tree = _tree_from_json(entry["tree"])
            order, spec = pytree.tree_flatten(tree)
            entries = [entry["nodes"][number] for number in order]
            leaves.clear()
            paths = [tuple(map(_path_step, path)) for path, _ in pytree.tree_flatten_with_path(tree)[0]]
            nodes = [_node_from_json(node, path, leaves) for node, path in zip(entries, paths, strict=True)]
            return cls(leaves, nodes, spec)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{short_text(entry)} does not describe a structure: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Torch warns when it unpickles a spec. A tree of integers is equivalent.
        tree = None if self._spec is None else pytree.tree_unflatten(range(len(self._nodes)), self._spec)
        return _rebuild_structure, (self.leaves, self._nodes, tree)

    def __repr__(self) -> str:
        return ", ".join(f"{_path_text(leaf.path)}: {_leaf_text(leaf)}" for leaf in self.leaves)


def _rebuild_structure(leaves: Sequence[Leaf], nodes: Sequence[_Node], tree: Any) -> Structure:
    return Structure(leaves, nodes, None if tree is None else pytree.tree_structure(tree))


def leading_sizes(data: Any, axes: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of elements, and the sizes of the leading axes after the first.

    Args:
        data: Several elements. Each item of a list is an element.
        axes: Number of leading axes that index elements.

    Raises:
        InvalidArgumentError: If the data is empty or has fewer axes.
    """
    is_list = type(data) is list
    if is_list and not data:
        return 0, (1,) * (axes - 1)
    parts, _ = _flatten_tree(data[0] if is_list else data)
    shape = tuple(getattr(parts[0][1], "shape", ())) if parts else ()
    shape = (len(data), *shape) if is_list else shape
    if len(shape) < axes or not parts:
        raise InvalidArgumentError(
            f"{type(data).__name__} has leading shape {list(shape)}, expected several elements, with {axes} leading axes",
            hint="pass several elements to extend, or a single element to add",
        )
    return shape[0], shape[1:axes]


def stack_elements(elements: Sequence[Any]) -> Any:
    """Stack elements along a new first axis.

    Raises:
        InvalidArgumentError: If the list is empty, or the elements differ in structure or shape.
    """
    if not elements:
        raise InvalidArgumentError("cannot stack an empty list")
    try:
        if _is_node(elements[0]):
            return torch.stack(list(elements))
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *elements, is_leaf=_is_node)
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the {len(elements)} elements of the list cannot be stacked: {error}",
            hint="pass elements of the same structure, or a batch as a tuple, dict or TensorDict",
        ) from error


def _is_node(data: Any) -> bool:
    return isinstance(data, Tensor) or is_tensor_collection(data)


def _is_object(data: Any) -> bool:
    return isinstance(data, (NonTensorData, NonTensorStack))


def _flatten_tree(data: Any) -> tuple[list[tuple[Path, Any]], pytree.TreeSpec | None]:
    if _is_node(data):
        return [((), data)], None
    items, spec = pytree.tree_flatten_with_path(data, is_leaf=_is_node)
    return [(tuple(map(_path_step, path)), part) for path, part in items], spec


def _path_step(entry: Any) -> Any:
    """Return the key or index in an entry of torch's key paths."""
    return next(getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name))


def _children_of(data: Any) -> Any:
    """Return the fields of a TensorDict or tensorclass by name."""
    fields = data if isinstance(data, TensorDictBase) else inner_of(data)
    try:
        return dict(fields.items())
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"the data is a {type(data).__name__} with elements that differ in shape: {error}",
            hint="pad the elements to the same shape, or store them in a ListStorage",
        ) from error


def _is_stack_within(data: Any, leading: int) -> bool:
    """Return whether the data is a lazy stack along an axis after the leading axes, with parts that differ in shape."""
    if not isinstance(data, LazyStackedTensorDict) or data.stack_dim < leading:
        return False
    try:
        _children_of(data)
    except InvalidArgumentError:
        return True
    return False


def _describe_node(data: Any, path: Path, leading: int, leaves: list[Leaf], problems: list[str]) -> _Node:
    if not _is_object(data) and not _is_node(data):
        problems.append(f"{_path_text(path)} is {_with_article(type(data).__name__)}, expected a tensor")
        return _FieldPlace(of_tensor=True)
    shape = tuple(data.shape)
    if len(shape) < leading:
        problems.append(f"{_path_text(path)} has shape {list(shape)}, expected at least {leading} axes")
    if isinstance(data, Tensor) and data.layout is not torch.strided:
        problems.append(f"{_path_text(path)} has layout {data.layout}, expected a dense tensor")
    if isinstance(data, Tensor) and data.is_meta:
        problems.append(f"{_path_text(path)} is on the meta device, expected a tensor with values")
    if _is_object(data) or isinstance(data, Tensor):
        dtype = data.dtype if isinstance(data, Tensor) else None
        leaves.append(Leaf(path, dtype, shape[leading:]))
        return _FieldPlace(of_tensor=dtype is not None)
    if _is_stack_within(data, leading):
        parts = [
            _describe_node(part, (*path, number), leading, leaves, problems)
            for number, part in enumerate(data.tensordicts)
        ]
        return _LazyStack(parts, data.stack_dim - data.ndim)
    contents = _children_of(data)
    names = data.names
    return _Fields(
        {name: _describe_node(value, (*path, name), leading, leaves, problems) for name, value in contents.items()},
        shape[leading:],
        None if all(name is None for name in names) else tuple(names),
        None if isinstance(data, TensorDictBase) else type(data),
    )


def _leading_sizes(data: Any, lead: Lead, problems: list[str]) -> tuple[int | str, ...]:
    """Return the leading sizes required of every leaf, "n" where any size is accepted."""
    parts, _ = _flatten_tree(data)
    shape = tuple(getattr(parts[0][1], "shape", ())) if parts else ()
    expected = ["n" if size is None else size for size in lead]
    for path, part in parts:
        batch = tuple(getattr(part, "shape", ()))
        if isinstance(part, Tensor) or len(batch) >= len(lead):
            continue
        problems.append(f"{_path_text(path)} has batch size {list(batch)}, expected [{', '.join(map(str, expected))}]")
    return tuple(
        shape[axis] if size == "n" and axis < len(shape) and parts and is_tensor_collection(parts[0][1]) else size
        for axis, size in enumerate(expected)
    )


def _structure_differences(expected: Sequence[Leaf], given: Sequence[Leaf], lead: Sequence[int | str]) -> list[str]:
    actual = {leaf.path: leaf for leaf in given}
    problems: list[str] = []
    first: int | str | None = None
    for leaf in expected:
        other = actual.pop(leaf.path, None)
        if other is None:
            problems.append(f"{_path_text(leaf.path)} is missing")
            continue
        if other.dtype != leaf.dtype:
            problems.append(
                f"{_path_text(leaf.path)} is {_dtype_name(other.dtype)}, expected {_dtype_name(leaf.dtype)}"
            )
        if first is None and lead and lead[0] == "n" and len(other.shape) == len(lead) + len(leaf.shape):
            first = other.shape[0]
        sizes = (lead[0] if first is None else first, *lead[1:]) if lead else ()
        if other.shape != (*sizes, *leaf.shape):
            shape = ", ".join(map(str, (*sizes, *leaf.shape)))
            problems.append(f"{_path_text(leaf.path)} has shape {list(other.shape)}, expected [{shape}]")
    problems += [f"{_path_text(path)} is not stored" for path in actual]
    return problems


def _mismatch_hint(expected: Sequence[Leaf], actual: Sequence[Leaf], lead: Lead) -> str:
    axes = {leaf.path: len(leaf.shape) + len(lead) for leaf in expected}
    extra_axes = {len(leaf.shape) - axes[leaf.path] for leaf in actual if leaf.path in axes}
    if extra_axes == {-1}:
        return "this looks like a single element: pass it to add, or pass several elements to extend"
    if extra_axes == {1}:
        return "this looks like several elements: pass them to extend"
    return ""


def _node_to_json(node: _Node, leaves: Iterator[Leaf]) -> dict[str, Any]:
    if isinstance(node, _Fields):
        return {
            "fields": {name: _node_to_json(child, leaves) for name, child in node.nodes.items()},
            "batch": list(node.batch),
            "names": None if node.names is None else list(node.names),
            "class": None if node.kind is None else node.kind.__name__,
        }
    if isinstance(node, _LazyStack):
        return {"stack": [_node_to_json(child, leaves) for child in node.nodes], "axis": node.axis}
    leaf = next(leaves)
    form = {"compressed": True} if leaf.compressed else {}
    return {"dtype": None if leaf.dtype is None else _dtype_name(leaf.dtype), "shape": list(leaf.shape), **form}


def _node_from_json(entry: Any, path: Path, leaves: list[Leaf]) -> _Node:
    if "fields" in entry:
        names = entry["names"]
        if names is not None and not all(name is None or isinstance(name, str) for name in names):
            raise ValueError(f"{short_text(names)} is not a list of names")
        nodes = {str(name): _node_from_json(child, (*path, name), leaves) for name, child in entry["fields"].items()}
        return _Fields(nodes, _parse_sizes(entry["batch"]), None if names is None else tuple(names), None)
    if "stack" in entry:
        parts = [_node_from_json(child, (*path, number), leaves) for number, child in enumerate(entry["stack"])]
        if not parts or not isinstance(entry["axis"], int) or entry["axis"] >= 0:
            raise ValueError(f"{short_text(entry)} is not the description of a stack")
        return _LazyStack(parts, entry["axis"])
    dtype = None if entry["dtype"] is None else getattr(torch, entry["dtype"], None)
    if entry["dtype"] is not None and not isinstance(dtype, torch.dtype):
        raise ValueError(f"{short_text(entry['dtype'])} is not a dtype")
    compressed = entry.get("compressed", False)
    if compressed not in {True, False} or (compressed and dtype is not torch.uint8):
        raise ValueError(f"{short_text(entry)} is not the description of a leaf")
    leaves.append(Leaf(path, dtype, _parse_sizes(entry["shape"]), compressed))
    return _FieldPlace(of_tensor=dtype is not None)


def _parse_sizes(sizes: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(f"{short_text(sizes)} is not a shape")
    return tuple(sizes)


def _tree_to_json(tree: Any) -> Any:
    if isinstance(tree, int):
        return tree
    if type(tree) is dict and all(key is None or isinstance(key, (str, int, float)) for key in tree):
        return {"dict": [[key, _tree_to_json(value)] for key, value in tree.items()]}
    if type(tree) in {list, tuple}:
        return {type(tree).__name__: [_tree_to_json(value) for value in tree]}
    return {"class": type(tree).__name__}


def _tree_from_json(entry: Any) -> Any:
    if isinstance(entry, int):
        return entry
    ((kind, items),) = entry.items()
    if kind == "dict":
        return {key: _tree_from_json(value) for key, value in items}
    if kind in {"list", "tuple"}:
        parts = [_tree_from_json(value) for value in items]
        return parts if kind == "list" else tuple(parts)
    raise ValueError(f"the class {short_text(items)} is not imported from a description")


def _path_text(path: Path) -> str:
    if not path:
        return "the data"
    return repr(path[0]) if len(path) == 1 else repr(path)


def _dtype_name(dtype: torch.dtype | None) -> str:
    return "not a tensor" if dtype is None else str(dtype).removeprefix("torch.")


def _leaf_text(leaf: Leaf) -> str:
    form = "compressed " if leaf.compressed else ""
    return "object" if leaf.dtype is None else f"{form}{_dtype_name(leaf.dtype)}{list(leaf.shape)}"


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _kind_text(data: Any, spec: pytree.TreeSpec | None) -> str:
    return _with_article(type(data).__name__) + (f" of another structure: {spec}" if spec is not None else "")
