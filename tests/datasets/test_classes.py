"""The classes of datasets that are made from the catalogs of their sources."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import datasets_rl
from datasets_rl import datasets, sources
from datasets_rl.datasets import dataset_class


def made_classes():
    classes = map(dataset_class, sources.source_names())
    return {cls.__name__: cls for cls in classes if cls.__module__ == datasets.__name__}


def test_a_class_is_made_of_the_catalog_with_the_docstring_of_a_written_class():
    cls = datasets_rl.OGMARLExperienceReplay

    assert cls.source == "og_marl"
    assert inspect.getdoc(cls).startswith("Replay buffer of a multi-agent dataset of OG-MARL.")
    assert '>>> dataset = OGMARLExperienceReplay("core/smac_v1/3m/Good", batch_size=256)' in cls.__doc__
    assert [*inspect.signature(cls).parameters] == [*inspect.signature(datasets_rl.StoredExperienceReplay).parameters]
    assert max(map(len, cls.__doc__.splitlines())) <= 120
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_type_checkers_know_every_made_class_that_is_public():
    tree = ast.parse(Path(datasets.__file__).read_text("utf-8"))
    declared = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    assert declared == {*made_classes()} & {*datasets_rl.__all__}
    assert len(declared) == 12


def test_every_made_class_that_is_public_has_an_example():
    lacking = [name for name, cls in made_classes().items() if name in datasets_rl.__all__ and ">>>" not in cls.__doc__]

    assert lacking == []
