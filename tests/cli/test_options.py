"""Sizes, targets and exit codes, which the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets_rl.cli.options import combined_exit_code, id_or_folder, read_size
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.sources import id_of_address


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("500MB", 500_000_000),
        ("500mb", 500_000_000),
        ("2GiB", 2 << 30),
        ("1.5g", 1_500_000_000),
        (".5k", 500),
        (" 3 kB ", 3000),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_may_have_units_and_spaces(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0.4", "-1", "MB", "1XB", "1 2", "1ib", "five", "1e9", "inf"])
def test_a_size_that_is_not_above_0_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="is not a size, expected a number of bytes above 0"):
        read_size(text)


@pytest.mark.parametrize("text", ["/data/x", "./x", "../x", "~/x"])
def test_targets_in_the_form_of_a_path_are_paths(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert isinstance(id_or_folder(text), Path)


def test_raw_files_above_the_working_directory_have_the_id_of_their_path(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.npz").write_bytes(b"PK")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")

    assert id_or_folder("../files") == f"url/file{tmp_path.resolve()}/files"


def test_a_folder_has_one_id_by_every_path_that_leads_to_it(tmp_path, monkeypatch):
    (tmp_path / "files" / "blobs").mkdir(parents=True)
    (tmp_path / "files" / "blobs" / "0f3a").write_bytes(b"PK")
    (tmp_path / "files" / "a.npz").symlink_to(tmp_path / "files" / "blobs" / "0f3a")
    (tmp_path / "link").symlink_to(tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    paths = ("./files", "./files/", str(tmp_path / "files"), "./link", "~/link", "./link/../files", "./files/blobs/..")
    assert {id_or_folder(path) for path in paths} == {f"url/file{tmp_path.resolve()}/files"}
    addresses = (f"file://{tmp_path}/link", f"file://localhost{tmp_path}/files/", f"file://{tmp_path}/files")
    assert {id_of_address(address)[0] for address in addresses} == {f"url/file{tmp_path.resolve()}/files"}
    # The target of a link has another name, without the ending of the format.
    files = {id_or_folder(path) for path in ("./link/a.npz", "./files/a.npz", "./link/../files/a.npz")}
    assert files == {f"url/file{tmp_path.resolve()}/files/a.npz"}


@pytest.mark.parametrize("text", ["d4rl/hopper-medium-v2", "d4rl:hopper-medium-v2", "x"])
def test_other_targets_are_ids(text):
    assert id_or_folder(text) == text


def test_a_folder_of_the_name_of_an_id_does_not_hide_it(tmp_path, monkeypatch):
    (tmp_path / "demo" / "pendulum").mkdir(parents=True)
    (tmp_path / "demo" / "pendulum" / "manifest.json").write_text("{}")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)

    assert id_or_folder("demo/pendulum") == "demo/pendulum"
    assert id_or_folder("mine") == Path("mine")


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0], 0), ([5], 5), ([0, 0], 0), ([0, 5], 1), ([5, 5], 1), ([3, 4], 1)]
)
def test_one_item_gives_its_own_code_and_several_give_0_or_1(codes, code):
    assert combined_exit_code(codes) == code


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("download", "--images raw|compressed|encoded|video "),
        ("download", "--split train|test|val "),
        ("download", "--upstream dqn|rlu|rlds|hub "),
        ("list", "--kind <pixels|state> "),
        ("mix", "--missing <refuse|drop|zero> "),
    ],
)
def test_an_option_with_a_fixed_set_of_values_shows_them(rlds, command, shown):
    assert shown in rlds(command, "--help").out


def test_the_help_of_export_names_every_format(rlds):
    from datasets_rl.exporting.formats import FORMATS

    text = " ".join(rlds("export", "--help").out.split())
    expected = f"Format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
    assert expected in text, f"write {expected!r} as the help of --to in cli/commands/export.py"


def test_the_help_of_list_names_every_source(rlds):
    from datasets_rl.sources import source_names

    assert f"of this source: {', '.join(source_names())}." in " ".join(rlds("list", "--help").out.split())
