"""Errors keep their attributes and messages when they are pickled or caught."""

from __future__ import annotations

import pickle

import pytest

from datasets_rl import errors
from datasets_rl.errors import Call, Remedy

EXAMPLES = [
    errors.DatasetsRLError("it broke", hint="fix it"),
    errors.InvalidArgumentError("batch_size is 0, expected at least 1"),
    errors.UnknownKeyError("observations", ["observation", "action"]),
    errors.UnknownIdError("d4rl/hoper", ["d4rl/hopper-medium-v2"], "183 ids of d4rl"),
    errors.NotADatasetError("/data/door", hint=Remedy("{}", Call("download", "d4rl/door"))),
    errors.FetchError("x.hdf5", [("https://a", "404"), ("https://b", "timed out")]),
    errors.OfflineError("x.hdf5"),
    errors.IntegrityError("x", ["too short", "too old"]),
    errors.ManifestError("m", ["steps is -1"], hint="upgrade"),
    errors.DiskFullError("/data", 10, 5, "the download"),
    errors.DiskFullError("/data", None, 0),
    errors.MissingDependencyError("h5py", "minari", "reading HDF5"),
    errors.ConversionError("x", ["no rewards"]),
    errors.PreprocessError("step 0 (function) at episode 3: it broke", hint="fix it"),
    errors.NotEnoughMemoryError("cat_frames needs 8 bytes of memory: this machine has 4", hint="give a smaller n"),
    errors.LockedError("d4rl/x", "process 4711 on node3", "/data/x.lock"),
    errors.LockMismatchError("d4rl/x", ["there are 3 steps, expected 4"]),
    errors.OutdatedLockError("rlds.lock", ["train.py:3 opens d4rl/x, which the lock does not have"]),
    errors.LossyExportError("d4rl/x", "minari", ["no final observations"]),
    errors.TimedOutError("sampling waited for 3 seconds"),
    errors.ConfirmationRequiredError("removing d4rl/x"),
    errors.PushError("hf://me/x", "the hub answered with status 403", hint="set HF_TOKEN"),
    errors.EnvironmentWarning("d4rl/x names Hopper-v2: Hopper-v4 takes its place"),
    errors.RecordingWarning("2 recordings wait", hint=Remedy("{} adds them", Call("append_episodes", "local/x"))),
    errors.UnsearchedWarning("/data/local has more than 5,000 folders", hint="move them"),
    errors.UnknownFinalWarning("d4rl/x", 3, 4),
    errors.UntrustedSettingsWarning(
        "its home is ignored", hint=Remedy("{} trusts it", Call("settings.trust_project", "x"))
    ),
    errors.FileTooLargeError("/data", 5),
    errors.NotWritableError("/data", "Permission denied"),
    errors.WrongTypeError("the keys are 1, expected a string, or a list of keys"),
    errors.LibraryError("av 15.0.0", "AttributeError: no attribute has_sidedata"),
]


def test_every_class_has_an_example_here():
    classes = {name for name in errors.__all__ if issubclass(getattr(errors, name), Exception)}

    assert {type(error).__name__ for error in EXAMPLES} == classes


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_can_be_returned_from_a_worker(error):
    """multiprocessing pickles exceptions, which fails for constructors with other arguments."""
    back = pickle.loads(pickle.dumps(error))

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_hint_is_a_separate_line(error):
    assert str(error).splitlines() == [error.message] + ([error.hint] if error.hint else [])


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.InvalidArgumentError, RuntimeError),
        (errors.UnknownIdError, LookupError),
        (errors.NotADatasetError, LookupError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_errors_can_be_caught_as_the_built_in_class(ours, builtin):
    assert issubclass(ours, builtin)


def test_messages_have_the_expectation_and_every_failure():
    assert "https://a: 404; https://b: timed out" in str(EXAMPLES[5])
    assert "RLDS_OFFLINE" in str(EXAMPLES[6])
    assert "too short; too old" in str(EXAMPLES[7])
    assert "10 bytes needed (the download), 5 bytes free" in str(EXAMPLES[9])
    assert "process 4711 on node3" in str(EXAMPLES[15])
    assert "did you mean d4rl/hopper-medium-v2?" in str(EXAMPLES[3])
