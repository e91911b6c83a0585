"""Programs of three lines that make plain pickles or arrays of pickles with objects of a class or a library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from datasets_rl.errors import ConversionError

ZIP, LEGACY = b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of the files that ``torch.save`` writes, now and before 2020."""
_NAME = re.compile(r"byte [\d,]+: '?([\w.]+?)'?\.'?(\w+)'? is not allowed")
_DATA = "numpy", "builtins", "_codecs", "collections", "copyreg", "__builtin__", "copy_reg"
_PLAIN = """\
import pickleIMPORT
plain = lambda x: x.detach().cpu().numpy() if hasattr(x, "detach") else plain(x._asdict()) if hasattr(x, "_asdict") \
else {k: plain(v) for k, v in x.items()} if isinstance(x, dict) else [*map(plain, x)] if isinstance(x, (list, tuple)) \
else plain(vars(x)) if hasattr(x, "__dict__") else x
pickle.dump(plain(LOAD), open(RESULT, "wb"))"""
_PANDAS = """\
import pandas
table = pandas.read_pickle(FILE)
table.to_parquet(RESULT)"""
_BUFFER = """\
import pickle, numpy as np; b = LOAD; rows = np.r_[b.pos * b.full : b.buffer_size * b.full, : b.pos]
a = dict(observations=b.observations, next_observations=b.next_observations, actions=b.actions, rewards=b.rewards, \
terminals=b.dones * (1 - b.timeouts), timeouts=b.timeouts); a["timeouts"][rows[-1]] = 1
np.savez(RESULT, **{k: v[rows].swapaxes(0, 1).reshape(-1, *v.shape[2:]) for k, v in a.items()})"""
_FROM_PICKLE, _FROM_TORCH = 'pickle.load(open(FILE, "rb"))', 'torch.load(FILE, map_location="cpu")'
_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "torch": (_PLAIN.replace("IMPORT", ", torch"), "_plain.pkl"),
    "pandas": (_PANDAS, ".parquet"),
    "stable_baselines3": (_BUFFER, ".npz"),
}


def way_of_pickle(path: Path, error: ConversionError) -> str:
    """Return a program that makes readable files of a pickle with objects, or an empty text without objects."""
    names = [match.groups() for problem in error.problems if (match := _NAME.search(problem))]
    classes = [(module, name) for module, name in names if module.partition(".")[0] not in _DATA] or names
    if not classes:
        return ""
    module, name = classes[0]  # of the outermost object
    library = module.partition(".")[0]
    if library in _LIBRARIES:
        return _stated(f"objects of {library}", *_LIBRARIES[library], path)
    imports = f"  # in the program that defines {name}" if module == "__main__" else f"; from {module} import {name}"
    return _stated(f"objects of the class {name}", _PLAIN.replace("IMPORT", imports), "_plain.pkl", path)


def way_of_torch(path: Path) -> str:
    """Return a program that makes a plain pickle of a file of ``torch.save``."""
    program, ending = _LIBRARIES["torch"]
    return _stated("tensors of torch", program.replace("LOAD", _FROM_TORCH), ending, path)


def _stated(what: str, program: str, ending: str, path: Path) -> str:
    lines = program.replace("LOAD", _FROM_PICKLE).replace("FILE", repr(path.name))
    lines = lines.replace("RESULT", repr(f"{path.stem}{ending}"))
    return f"the file has {what}. Convert it where it was made, and give the new file:\n\n{lines}\n"
