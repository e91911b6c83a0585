"""A library that is missing, broken, or called wrongly is named, and no file of the user is blamed."""

from __future__ import annotations

import ast
import io
import os
import pickle
import sys
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from rooms import MODULES

from datasets_rl.errors import LibraryError, MissingDependencyError
from datasets_rl.format.npy import map_npy
from datasets_rl.libraries import importing, library_of, raise_fault_of_code
from datasets_rl.read import npy, pickles
from datasets_rl.read.hdf5 import Hdf5File
from datasets_rl.read.outline import outline
from datasets_rl.read.parquet import TableFile
from datasets_rl.read.vault import Vault
from datasets_rl.read.video import index_video
from datasets_rl.sources.minari import episodes as minari_episodes


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that writes a module, which the test may import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text, name="made_up"):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def test_a_library_that_is_not_installed_is_missing():
    missing = pytest.raises(MissingDependencyError, match="drawing needs made-up")
    with missing as raised, importing("made-up", "plot", "drawing"):
        import made_up  # noqa: F401
    assert raised.value.hint == "pip install 'datasets-rl[plot]'"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("raise ImportError('libmade.so.3: cannot open shared object file')", r"libmade\.so\.3: cannot open"),
        ("import a_module_that_made_up_needs", "No module named 'a_module_that_made_up_needs'"),
        ("import made_up.part", "No module named 'made_up.part'"),
    ],
)
def test_a_broken_library_is_not_missing(library, content, says):
    library(content)

    broken = pytest.raises(LibraryError, match=f"made_up cannot be used .*{says}")
    with broken as raised, importing("made-up", "plot", "drawing"):
        import made_up  # noqa: F401
    assert "pip install 'datasets-rl[plot]'" in raised.value.hint


def test_every_optional_library_is_imported_in_the_same_way():
    """An `except ImportError` that reports a missing library takes a broken one for it."""
    handlers = [
        f"{module.name}:{node.lineno}"
        for module in MODULES.values()
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and "ImportError" in ast.unparse(node.type)
        and "MissingDependencyError(" in ast.unparse(node)
    ]

    assert handlers == ["datasets_rl.libraries:" + handlers[0].rpartition(":")[2]]


CALLS = {
    "a function": "made_up.read(1, newer=2)",
    "a class": "made_up.File(1, newer=2)",
    "a method": "made_up.File(1).read(newer=2)",
    "a method of an object": "opened.read(newer=2)",
    "among others": "len(str(made_up.read(1, newer=2)))",
    "too many arguments": "made_up.read(1, 2, 3)",
    "too few arguments": "made_up.read()",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wrong_call_names_the_library_although_the_last_frame_is_that_of_the_caller(library, call, tmp_path):
    library("def read(x): ...\nclass File:\n    def __init__(self, x): ...\n    def read(self): ...\n")
    (tmp_path / "caller.py").write_text(f"import made_up\ndef run():\n    opened = made_up.File(1)\n    {call}\n")
    import caller

    sys.modules.pop("caller")
    with pytest.raises(TypeError) as raised:
        caller.run()
    assert library_of(raised.value) == "made_up"


def test_a_wrong_call_of_a_compiled_function_names_its_library():
    with pytest.raises(TypeError) as raised:
        np.frombuffer(b"", newer=1)
    assert library_of(raised.value) == f"numpy {np.__version__}"


def test_a_type_error_of_values_is_left_to_its_reader():
    raise_fault_of_code(TypeError("No NumPy equivalent for TypeBitfieldID exists"), "x.hdf5")


@pytest.fixture
def hdf5(tmp_path):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["episode_0/actions"] = np.arange(3.0)
    return path


def test_hdf5_files_are_not_blamed_for_h5py(hdf5, monkeypatch):
    with Hdf5File(hdf5) as file:
        monkeypatch.setattr(h5py.Dataset, "read_direct", lambda self, out: None)  # noqa: ARG005 -- an older version
        with pytest.raises(LibraryError, match=f"h5py {h5py.__version__} .*episode_0/actions: TypeError"):
            file.read("episode_0/actions")
    monkeypatch.setattr(h5py, "File", lambda path, mode: None)  # noqa: ARG005 -- an older version
    with pytest.raises(LibraryError, match=rf"h5py {h5py.__version__} .*x\.hdf5: TypeError: .*keyword argument"):
        Hdf5File(hdf5)
    monkeypatch.setattr(h5py, "File", lambda path: None)  # noqa: ARG005 -- an older version
    with pytest.raises(LibraryError, match=f"h5py {h5py.__version__}"), hdf5.open("rb") as stream:
        outline(stream)


def test_episodes_of_minari_are_not_blamed_for_h5py(hdf5, monkeypatch):
    opened = minari_episodes.Hdf5Episodes(hdf5, {})
    monkeypatch.setattr(minari_episodes.h5o, "open", lambda place: None)  # noqa: ARG005 -- an older version
    with pytest.raises(LibraryError, match=f"h5py {h5py.__version__}"):
        opened.read(0)
    opened.close()


def test_npy_files_are_not_blamed_for_numpy(tmp_path, monkeypatch):
    data = io.BytesIO()
    np.save(data, np.zeros((3, 1, 4, 1, 5)))
    (tmp_path / "x.npy").write_bytes(data.getvalue())
    with monkeypatch.context() as patched:
        patched.setattr(np, "memmap", lambda path: None)  # noqa: ARG005 -- an older version
        with pytest.raises(LibraryError, match=f"numpy {np.__version__}"):
            map_npy(tmp_path / "x.npy")
    npy._parse_header.cache_clear()
    monkeypatch.setitem(npy._FORMATS, (1, 0), (2, np.lib.format.read_magic))
    data.seek(0)
    with pytest.raises(LibraryError, match=f"numpy {np.__version__} .*max_header_size"):
        npy.NpyReader(data, "x.npy", most=1 << 20)


def test_pickles_are_not_blamed_for_a_fault_of_this_package(monkeypatch):
    data = pickle.dumps({"x": np.zeros(3)})
    monkeypatch.setattr(pickles, "checked_keys", lambda: None)
    with pytest.raises(TypeError, match="positional argument"):
        pickles.load(data)
    monkeypatch.delattr(np, "frombuffer")
    with pytest.raises(AttributeError, match="frombuffer"):
        pickles.load(pickle.dumps(np.zeros(3)))


def test_tables_and_videos_are_not_blamed_for_their_libraries(tmp_path, monkeypatch):
    av, parquet = pytest.importorskip("av"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + bytes(100))
    (tmp_path / "x.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100))
    monkeypatch.setattr(parquet, "ParquetFile", lambda path: None)  # noqa: ARG005 -- an older version
    monkeypatch.delattr(av, "open")
    with pytest.raises(TypeError) as raised:
        TableFile(tmp_path / "x.parquet")
    assert library_of(raised.value).startswith("pyarrow ")
    with pytest.raises(AttributeError) as lacking:
        index_video(tmp_path / "x.mp4")
    assert library_of(lacking.value) == f"av {av.__version__}"


VAULTS = Path(__file__).with_name("golden") / "og_marl.zip"


@pytest.fixture
def tensorstore():
    return pytest.importorskip("tensorstore", reason="pip install tensorstore, with Python 3.11")


def test_vaults_are_not_blamed_for_tensorstore(tensorstore, monkeypatch):
    read = tensorstore.Spec
    with monkeypatch.context() as patched:
        patched.setattr(tensorstore, "Spec", lambda spec: read({**spec, "driver": "later"}))  # an older version
        with pytest.raises(LibraryError, match=r'tensorstore [\d.]+ cannot be used .*"later" is not a registered'):
            Vault(VAULTS, "Good")
    monkeypatch.setattr(tensorstore, "open", partial(tensorstore.open, later=True))  # an older version
    with pytest.raises(TypeError, match="incompatible function arguments") as raised:
        Vault(VAULTS, "Good")
    assert library_of(raised.value).startswith("tensorstore ")


def test_vaults_are_not_blamed_for_what_the_system_refuses(tensorstore, monkeypatch):
    """TensorStore reports a file that cannot be opened, as all files are in use, like a damaged one."""
    resource = pytest.importorskip("resource")
    limits, context = resource.getrlimit(resource.RLIMIT_NOFILE), tensorstore.Context
    os.close(free := os.dup(0))

    def without_files(spec):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        return context(spec)

    monkeypatch.setattr(tensorstore, "Context", without_files)
    try:
        with pytest.raises(OSError, match=r"og_marl\.zip: Good: vault_index: RESOURCE_EXHAUSTED.*Too many open files"):
            Vault(VAULTS, "Good")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
