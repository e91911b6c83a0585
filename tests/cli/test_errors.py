"""Every error has its exit code and its lines: what, why and what to do."""

from __future__ import annotations

import inspect
import os

import pytest

from datasets_rl import errors
from datasets_rl.cli.errors import EXIT_CODES, exit_code_of, explain
from datasets_rl.cli.output import Printer

CASES = [
    (errors.InvalidArgumentError("x is 0: expected 1"), 2),
    (errors.UnknownKeyError("rewards", ["reward"]), 2),
    (errors.WrongTypeError("the keys are 1: expected a list"), 2),
    (errors.UnknownIdError("a/b", ["a/c"], "2 ids"), 3),
    (errors.NotADatasetError("/tmp/x"), 3),
    (errors.FetchError("a.hdf5", [("http://a", "status 500"), ("http://b", "stalled")]), 4),
    (errors.OfflineError("a.hdf5"), 4),
    (errors.IntegrityError("a.hdf5", ["it is cut"]), 5),
    (errors.ManifestError("manifest.json", ["steps is -1"]), 5),
    (errors.LockMismatchError("demo/pendulum", ["there are 3 steps, expected 4"]), 5),
    (errors.OutdatedLockError("rlds.lock", ["the lock has no dataset demo/pendulum"]), 1),
    (errors.DiskFullError("/data", 10, 1), 6),
    (errors.FileTooLargeError("/data", 1), 6),
    (errors.NotWritableError("/data", "Permission denied"), 1),
    (errors.MissingDependencyError("minari", "minari", "reading Minari"), 7),
    (errors.LibraryError("av 15.0.0", "AttributeError: no attribute has_sidedata"), 1),
    (errors.ConversionError("a.hdf5", ["no column actions"]), 8),
    (errors.PreprocessError("step 0 (function): it broke"), 8),
    (errors.PushError("hf://me/x", "the hub answered with status 403"), 4),
    (errors.NotEnoughMemoryError("cat_frames needs 8 bytes of memory: this machine has 4"), 11),
    (errors.LockedError("a/b", "process 1 on here", "/tmp/lock"), 9),
    (errors.LossyExportError("d4rl/x", "minari", ["no final observations"]), 2),
    (errors.TimedOutError("sampling waited for 3 seconds"), 9),
    (errors.ConfirmationRequiredError("delete a/b"), 10),
    (errors.DatasetsRLError("something else"), 1),
    (OSError(5, "Input/output error", "/data/a"), 1),
    (OSError(2, "No such file or directory", "/nodir/a"), 1),
    (PermissionError(13, "Permission denied"), 1),
    (OSError("no number"), 1),
    (MemoryError(), 11),
    (MemoryError("Unable to allocate 44 GiB"), 11),
    (errors.InvalidArgumentError("no recipe and no step is named"), 2),
    (errors.ConversionError("local/own", []), 8),
]


def test_every_error_class_has_an_example_here():
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.DatasetsRLError)
    }
    classes = {kind for kind in kinds if not issubclass(kind, Warning)}

    assert classes == {type(error) for error, _ in CASES if isinstance(error, errors.DatasetsRLError)}


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_has_its_code(error, code):
    assert exit_code_of(error) == code
    assert explain(error).code == code


@pytest.mark.parametrize("error", [error for error, _ in CASES], ids=lambda value: type(value).__name__)
def test_every_error_says_what_failed_and_what_to_do_and_why_if_there_is_more_to_say(error, capsys):
    told = explain(error, "download")
    Printer(env={}).failed("download", told)

    marks = [line.partition(": ") for line in capsys.readouterr().err.splitlines()]
    assert [mark.strip() for mark, _, _ in marks] == ["rlds", *(["why"] if told.why else []), "next"]
    assert all(text.strip() for _, _, text in marks)
    # What an exit code means in general is not the reason of a single error.
    assert told.why not in [row.meaning for row in EXIT_CODES]


def test_additional_lines_of_a_message_are_not_printed():
    told = explain(errors.InvalidArgumentError("they do not fit: a, b\n  key  x  y\n  a: 1"))

    assert (told.what, told.why) == ("they do not fit", "a, b")


def test_an_error_without_a_hint_names_the_help_of_its_command():
    assert "rlds mix --help" in explain(errors.InvalidArgumentError("x is 0: expected 1"), "mix").hint
    assert explain(errors.InvalidArgumentError("x is 0: expected 1", hint="give 1"), "mix").hint == "give 1"


@pytest.mark.parametrize("error", [error for error, _ in CASES], ids=lambda value: type(value).__name__)
def test_no_part_of_a_message_is_lost(error):
    told = explain(error)
    message = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    shown = f"{told.what} {told.why} {told.hint}"

    assert told.what
    assert [word for word in message.replace(":", " ").split() if word not in shown] == []


@pytest.mark.first(2, of="command")
@pytest.mark.parametrize("source", ["local/", "minari/x/", "openx/", "d4rl/", ""])
@pytest.mark.parametrize("command", ["download", "info", "path", "verify", "sample", "remove", "mix"])
def test_an_id_that_is_too_long_for_a_file_name_is_an_unknown_id(rlds, command, source):
    ran = rlds(command, f"{source}{'a' * 300}{'-v0' * source.startswith('minari')}")

    assert (ran.code, ran.out) == (3, "")
    assert "File name too long" not in ran.err
    assert len(ran.err) < 300


def test_a_path_that_no_file_can_have_is_not_a_dataset(rlds, tmp_path):
    assert rlds("info", tmp_path / ("a" * 300)).code == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no list of users")
@pytest.mark.parametrize(
    "words",
    [
        ["info", "~nobody-here/x"],
        ["download", "demo/pendulum", "--from-local", "~nobody-here/x"],
        ["append", "local/new", "~nobody-here/x"],
        ["--root", "~nobody-here/x", "list"],
    ],
)
def test_the_home_folder_of_nobody_is_wrong_usage(rlds, words):
    ran = rlds(*words)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("rlds: ~nobody-here/x is not a path\n")


def test_codes_are_unique_and_in_order():
    codes = [row.code for row in EXIT_CODES]

    assert codes == sorted(set(codes))


def test_a_message_that_is_a_sentence_gets_no_second_verb():
    told = explain(errors.IntegrityError("the given files are not the expected ones", ["a: it is cut"]))

    assert told.what == "the given files are not the expected ones"
    assert explain(errors.IntegrityError("a.hdf5", ["it is cut"])).what == "a.hdf5 is not as expected"
