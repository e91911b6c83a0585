"""What one element of a storage is: a tensor, a TensorDict, a tensorclass, or a pytree of these.

The structure is learnt from the first data. It takes later data apart into leaves, and builds data from leaves:

    {"a": Tensor [n, 3], "b": (Tensor [n], TensorDict {"c": [n, 2]})}   <->   [n, 3], [n], [n, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
)
from torch import Tensor
from torch.utils import _pytree as pytree

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.schema import shorten

__all__ = ["Leaf", "Structure", "leading", "stacked"]

Path = tuple[Any, ...]
Lead = Sequence[int | None]
"""Sizes of the axes that count positions; None where any size will do."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one step of one leaf is."""

    path: Path
    """Names and numbers that lead to it; empty if the element is a single tensor."""
    dtype: torch.dtype | None
    """None for an object that is no tensor."""
    shape: tuple[int, ...]
    """Axes of one step, without the leading ones that count positions."""


@dataclass(frozen=True, slots=True)
class _FieldPlace:
    """Where a leaf stands."""

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
    """A TensorDict, or a tensorclass around one."""

    nodes: Mapping[str, _Node]
    batch: tuple[int, ...]
    """Axes of the batch size after the leading ones."""
    names: tuple[str | None, ...] | None
    """Of the leading axes, then of these."""
    kind: type | None
    """The tensorclass; None for a TensorDict."""

    def flatten(self, data: Any, leaves: list[Any]) -> None:
        items = _contents(data)
        if len(items) != len(self.nodes):
            raise KeyError
        for name, node in self.nodes.items():
            node.flatten(items[name], leaves)

    def build(self, leaves: Iterator[Any], batch: torch.Size, device: torch.device | None) -> Any:
        built = TensorDict._new_unsafe(  # noqa: SLF001 - the leaves come from one split and need no check
            source={name: node.build(leaves, batch, device) for name, node in self.nodes.items()},
            batch_size=torch.Size((*batch, *self.batch)) if self.batch else batch,
            device=device,
            names=None if self.names is None else self._names(len(batch)),
        )
        return built if self.kind is None else self.kind._from_tensordict(built)  # type: ignore[attr-defined]  # noqa: SLF001 - the decorator adds it

    def _names(self, leading: int) -> list[Any]:
        names = self.names or ()
        outer = names[: len(names) - len(self.batch)]
        # An index of another shape makes axes that have no name.
        return [*(outer if len(outer) == leading else [None] * leading), *names[len(outer) :]]


_Node = _FieldPlace | _Fields


class Structure:
    """The structure of one element.

    Args:
        leaves: Every leaf, in order.
        nodes: The tensors and TensorDicts that the element is made of.
        spec: The pytree around them; None if the element is itself one tensor or TensorDict.
    """

    def __init__(self, leaves: Sequence[Leaf], nodes: Sequence[_Node], spec: pytree.TreeSpec | None) -> None:
        self.leaves = tuple(leaves)
        self._nodes = tuple(nodes)
        self._spec = spec

    @classmethod
    def of(cls, data: Any, leading: int) -> Structure:
        """Learn the structure from data.

        Args:
            data: One element, or several.
            leading: How many leading axes of the data count positions.

        Raises:
            InvalidArgumentError: If there is nothing to hold, a leaf is no tensor, or one has fewer axes; all faults at once.
        """
        faults: list[str] = []
        structure = cls._described(data, leading, faults)
        if not structure.leaves:
            faults.append(f"{type(data).__name__} without any tensor")
        if faults:
            raise InvalidArgumentError(
                f"the data cannot be held: {'; '.join(faults)}",
                hint="extend takes several elements, add takes one; a ListStorage holds any object",
            )
        return structure

    @classmethod
    def _described(cls, data: Any, leading: int, faults: list[str]) -> Structure:
        leaves: list[Leaf] = []
        found, spec = _parts(data)
        nodes = [_node(part, path, leading, leaves, faults) for path, part in found]
        return cls(leaves, nodes, spec)

    def flatten(self, data: Any, lead: Lead) -> tuple[tuple[int, ...], list[Any]]:
        """Take data apart.

        Args:
            data: One element or several.
            lead: The leading axes that the data must have.

        Returns:
            The sizes of the leading axes, and the leaves in order, each [*lead, *shape].

        Raises:
            InvalidArgumentError: If the data does not fit; all faults at once.
        """
        leaves: list[Any] = []
        try:
            parts = [data] if self._spec is None else self._spec.flatten_up_to(data)  # keys may come in another order
            for node, part in zip(self._nodes, parts, strict=True):
                node.flatten(part, leaves)
            sizes = tuple(parts[0].shape[: len(lead)])
        except (AttributeError, KeyError, ValueError):
            raise self._misfit(data, lead) from None
        if (
            len(sizes) != len(lead)
            or any(want not in {None, size} for want, size in zip(lead, sizes, strict=True))
            or not all(
                value.shape == (*sizes, *leaf.shape)
                and (leaf.dtype is None or (value.dtype is leaf.dtype and value.layout is torch.strided))
                for value, leaf in zip(leaves, self.leaves, strict=True)
            )
        ):
            raise self._misfit(data, lead)
        return sizes, leaves

    def build(self, leaves: Sequence[Any], batch: torch.Size, device: torch.device | None) -> Any:
        """Put leaves, each [*batch, *shape], together; the device is that of TensorDicts."""
        following = iter(leaves)
        parts = [node.build(following, batch, device) for node in self._nodes]
        return parts[0] if self._spec is None else pytree.tree_unflatten(parts, self._spec)

    @property
    def by_name(self) -> list[int]:
        """The numbers of the leaves in an order that does not depend on that of the first data's keys."""
        return sorted(range(len(self.leaves)), key=lambda number: repr(self.leaves[number].path))

    def under(self, key: Path) -> dict[Path, int]:
        """Return the numbers of the leaves whose path starts with a key, by the rest of their path."""
        depth = len(key)
        return {leaf.path[depth:]: number for number, leaf in enumerate(self.leaves) if leaf.path[:depth] == key}

    def _misfit(self, data: Any, lead: Lead) -> InvalidArgumentError:
        faults: list[str] = []
        given = self._described(data, 0, faults)
        sizes = _sizes(data, lead, faults)
        faults += _differences(self.leaves, given.leaves, sizes)
        if not faults:
            faults.append(f"it is {_kind(data, given._spec)}; expected {self}")  # noqa: SLF001 - of this class
        return InvalidArgumentError(
            f"the data does not fit what is stored: {'; '.join(faults)}", hint=_hint(self.leaves, given.leaves, lead)
        )

    def misfits(self, other: Structure) -> list[str]:
        """Say how another structure differs; containers may be of another kind."""
        return _differences(self.leaves, other.leaves, ())

    def to_json(self) -> dict[str, Any]:
        """Describe the structure.

        Classes are named for the reader only: they are never imported from a description.
        """
        leaves = iter(self.leaves)
        nodes = [_node_json(node, leaves) for node in self._nodes]
        tree = None if self._spec is None else _tree_json(pytree.tree_unflatten(range(len(nodes)), self._spec))
        return {"tree": tree, "nodes": nodes}

    @classmethod
    def from_json(cls, entry: Any, like: Structure | None = None) -> Structure:
        """Read a description, trusting nothing in it.

        A tensorclass comes back as the TensorDict in it, and a pytree of other containers than dicts, lists and tuples
        does not come back, unless `like` has the classes.

        Args:
            entry: What `to_json` returned.
            like: A structure that is described in the same words is returned itself.

        Raises:
            InvalidArgumentError: If it describes no structure.
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
            paths = [tuple(map(_step, path)) for path, _ in pytree.tree_flatten_with_path(tree)[0]]
            nodes = [_node_from_json(node, path, leaves) for node, path in zip(entries, paths, strict=True)]
            return cls(leaves, nodes, spec)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{shorten(entry)} describes no structure of data: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Torch warns when it unpickles a spec; a tree of numbers says the same.
        tree = None if self._spec is None else pytree.tree_unflatten(range(len(self._nodes)), self._spec)
        return _rebuilt, (self.leaves, self._nodes, tree)

    def __repr__(self) -> str:
        return ", ".join(f"{_shown(leaf.path)}: {_what(leaf)}" for leaf in self.leaves)


def _rebuilt(leaves: Sequence[Leaf], nodes: Sequence[_Node], tree: Any) -> Structure:
    return Structure(leaves, nodes, None if tree is None else pytree.tree_structure(tree))


def leading(data: Any, axes: int) -> tuple[int, tuple[int, ...]]:
    """Return how many elements there are, and the sizes of the leading axes after the first.

    Args:
        data: Several elements; a list has one in each item.
        axes: Leading axes that count positions.

    Raises:
        InvalidArgumentError: If there is nothing, or there are fewer axes.
    """
    is_list = type(data) is list
    if is_list and not data:
        return 0, (1,) * (axes - 1)
    found, _ = _parts(data[0] if is_list else data)
    shape = tuple(getattr(found[0][1], "shape", ())) if found else ()
    shape = (len(data), *shape) if is_list else shape
    if len(shape) < axes or not found:
        raise InvalidArgumentError(
            f"{type(data).__name__} of leading shape {list(shape)} is not several elements; expected {axes} leading axes",
            hint="extend takes several elements, add takes one",
        )
    return shape[0], shape[1:axes]


def stacked(elements: Sequence[Any]) -> Any:
    """Stack elements along a new first axis.

    Raises:
        InvalidArgumentError: If they differ in structure or shape.
    """
    if not elements:
        raise InvalidArgumentError("there is nothing to stack: the list is empty")
    try:
        if _is_node(elements[0]):
            return torch.stack(list(elements))
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *elements, is_leaf=_is_node)
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the {len(elements)} elements of the list cannot be stacked: {error}",
            hint="a list holds elements of one structure; give several elements at once as a tuple, dict or TensorDict",
        ) from error


def _is_node(data: Any) -> bool:
    return isinstance(data, Tensor) or is_tensor_collection(data)


def _is_object(data: Any) -> bool:
    return isinstance(data, (NonTensorData, NonTensorStack))


def _parts(data: Any) -> tuple[list[tuple[Path, Any]], pytree.TreeSpec | None]:
    if _is_node(data):
        return [((), data)], None
    found, spec = pytree.tree_flatten_with_path(data, is_leaf=_is_node)
    return [(tuple(map(_step, path)), part) for path, part in found], spec


def _step(entry: Any) -> Any:
    """Return the name or number in one entry of torch's key paths."""
    return next(getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name))


def _contents(data: Any) -> Any:
    """Return what is in a TensorDict or tensorclass, by name."""
    fields = data if isinstance(data, TensorDictBase) else data._tensordict  # noqa: SLF001 - no public way copies nothing
    return dict(fields.items())


def _node(data: Any, path: Path, leading: int, leaves: list[Leaf], faults: list[str]) -> _Node:
    if not _is_object(data) and not _is_node(data):
        faults.append(f"{_shown(path)} is {_article(type(data).__name__)}; expected a tensor")
        return _FieldPlace(of_tensor=True)
    shape = tuple(data.shape)
    if len(shape) < leading:
        faults.append(f"{_shown(path)} has shape {list(shape)}; expected at least {leading} axes")
    if isinstance(data, Tensor) and data.layout is not torch.strided:
        faults.append(f"{_shown(path)} has layout {data.layout}; expected a dense tensor")
    if isinstance(data, Tensor) and data.is_meta:
        faults.append(f"{_shown(path)} is on the meta device, without values; expected a tensor that has them")
    if _is_object(data) or isinstance(data, Tensor):
        dtype = data.dtype if isinstance(data, Tensor) else None
        leaves.append(Leaf(path, dtype, shape[leading:]))
        return _FieldPlace(of_tensor=dtype is not None)
    contents = _contents(data)
    names = data.names if data._has_names() else None  # noqa: SLF001 - `names` makes a list of None
    return _Fields(
        {name: _node(value, (*path, name), leading, leaves, faults) for name, value in contents.items()},
        shape[leading:],
        None if names is None else tuple(names),
        None if isinstance(data, TensorDictBase) else type(data),
    )


def _sizes(data: Any, lead: Lead, faults: list[str]) -> tuple[int | str, ...]:
    """Return the leading sizes that every leaf must have, as far as they are known."""
    found, _ = _parts(data)
    shape = tuple(getattr(found[0][1], "shape", ())) if found else ()
    wanted = ["n" if size is None else size for size in lead]
    for path, part in found:
        batch = tuple(getattr(part, "shape", ()))
        if isinstance(part, Tensor) or len(batch) >= len(lead):
            continue
        faults.append(f"{_shown(path)} has batch size {list(batch)}; expected [{', '.join(map(str, wanted))}]")
    return tuple(
        shape[axis] if size == "n" and axis < len(shape) and found and is_tensor_collection(found[0][1]) else size
        for axis, size in enumerate(wanted)
    )


def _differences(wanted: Sequence[Leaf], given: Sequence[Leaf], lead: Sequence[int | str]) -> list[str]:
    there = {leaf.path: leaf for leaf in given}
    faults: list[str] = []
    first: int | str | None = None
    for leaf in wanted:
        other = there.pop(leaf.path, None)
        if other is None:
            faults.append(f"{_shown(leaf.path)} is missing")
            continue
        if other.dtype != leaf.dtype:
            faults.append(f"{_shown(leaf.path)} is {_dtype(other.dtype)}; expected {_dtype(leaf.dtype)}")
        if first is None and lead and lead[0] == "n" and len(other.shape) == len(lead) + len(leaf.shape):
            first = other.shape[0]
        sizes = (lead[0] if first is None else first, *lead[1:]) if lead else ()
        if other.shape != (*sizes, *leaf.shape):
            shape = ", ".join(map(str, (*sizes, *leaf.shape)))
            faults.append(f"{_shown(leaf.path)} has shape {list(other.shape)}; expected [{shape}]")
    faults += [f"{_shown(path)} is not stored" for path in there]
    return faults


def _hint(wanted: Sequence[Leaf], given: Sequence[Leaf], lead: Lead) -> str:
    axes = {leaf.path: len(leaf.shape) + len(lead) for leaf in wanted}
    off = {len(leaf.shape) - axes[leaf.path] for leaf in given if leaf.path in axes}
    if off == {-1}:
        return "this looks like one element: give it to add, or give several to extend"
    if off == {1}:
        return "this looks like several elements: give them to extend"
    return ""


def _node_json(node: _Node, leaves: Iterator[Leaf]) -> dict[str, Any]:
    if isinstance(node, _Fields):
        return {
            "fields": {name: _node_json(child, leaves) for name, child in node.nodes.items()},
            "batch": list(node.batch),
            "names": None if node.names is None else list(node.names),
            "class": None if node.kind is None else node.kind.__name__,
        }
    leaf = next(leaves)
    return {"dtype": None if leaf.dtype is None else _dtype(leaf.dtype), "shape": list(leaf.shape)}


def _node_from_json(entry: Any, path: Path, leaves: list[Leaf]) -> _Node:
    if "fields" in entry:
        names = entry["names"]
        if names is not None and not all(name is None or isinstance(name, str) for name in names):
            raise ValueError(f"{shorten(names)} are no names")
        nodes = {str(name): _node_from_json(child, (*path, name), leaves) for name, child in entry["fields"].items()}
        return _Fields(nodes, _axes(entry["batch"]), None if names is None else tuple(names), None)
    dtype = None if entry["dtype"] is None else getattr(torch, entry["dtype"], None)
    if entry["dtype"] is not None and not isinstance(dtype, torch.dtype):
        raise ValueError(f"{shorten(entry['dtype'])} is no dtype")
    leaves.append(Leaf(path, dtype, _axes(entry["shape"])))
    return _FieldPlace(of_tensor=dtype is not None)


def _axes(sizes: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(f"{shorten(sizes)} is no shape")
    return tuple(sizes)


def _tree_json(tree: Any) -> Any:
    if isinstance(tree, int):
        return tree
    if type(tree) is dict and all(key is None or isinstance(key, (str, int, float)) for key in tree):
        return {"dict": [[key, _tree_json(value)] for key, value in tree.items()]}
    if type(tree) in {list, tuple}:
        return {type(tree).__name__: [_tree_json(value) for value in tree]}
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
    raise ValueError(f"it is {_article(shorten(items))}, which is not imported from a description")


def _shown(path: Path) -> str:
    if not path:
        return "the data"
    return repr(path[0]) if len(path) == 1 else repr(path)


def _dtype(dtype: torch.dtype | None) -> str:
    return "no tensor" if dtype is None else str(dtype).removeprefix("torch.")


def _what(leaf: Leaf) -> str:
    return "object" if leaf.dtype is None else f"{_dtype(leaf.dtype)}{list(leaf.shape)}"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _kind(data: Any, spec: pytree.TreeSpec | None) -> str:
    return _article(type(data).__name__) + (f" of another form: {spec}" if spec is not None else "")
