"""``rlds config``: where each setting is from, and its change in a file."""

from __future__ import annotations

import pytest

from datasets_rl.errors import UntrustedSettingsWarning
from datasets_rl.settings import SETTINGS, Settings, trust_project


@pytest.fixture
def user_file(home):
    return home.parent / "config.toml"


@pytest.fixture
def project(home, monkeypatch):
    folder = home.parent / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder / "rlds.toml"


def origins(rlds):
    return {one["key"]: (one["value"], one["origin"]) for one in rlds("config", "--json").json["settings"]}


def test_every_setting_is_printed_with_its_origin(rlds, home, user_file, monkeypatch):
    user_file.write_text("jobs = 7\n")
    monkeypatch.setenv("RLDS_OFFLINE", "1")

    shown = origins(rlds)
    assert list(shown) == list(SETTINGS)
    assert shown["home"] == (str(home), "RLDS_HOME")
    assert shown["jobs"] == (7, f"{user_file}:1")
    assert shown["offline"] == (True, "RLDS_OFFLINE")
    assert shown["timeout"] == (30.0, "default")
    assert rlds("config", "--root", "/elsewhere", "--json").json["settings"][0]["origin"] == "--root"
    assert "jobs = 7" in rlds("config", "-q").out.splitlines()


def test_a_set_value_is_used_by_the_next_command(rlds, home, user_file, monkeypatch):
    monkeypatch.delenv("RLDS_HOME")

    ran = rlds("config", "set", "home", home.parent / "elsewhere")
    assert (ran.code, ran.out) == (0, f"{user_file}\n")
    assert str(home.parent / "elsewhere") in rlds("-v", "list", "pendulum").err
    assert rlds("config", "unset", "home").code == 0
    assert user_file.read_text() == ""


def test_other_lines_and_comments_of_a_file_stay(rlds, user_file):
    text = '# mine\njobs = 2  # few\n\n[mirrors] # ours\n"d4rl" = ["https://a/b"]\n'
    user_file.write_text(text)

    for key, value in (("retries", 3), ("mirrors.minari", "https://lab/m,file:///m"), ("mirrors.d4rl", "https://c")):
        assert rlds("config", "set", key, value).code == 0
    assert user_file.read_text() == (
        "# mine\njobs = 2  # few\n\nretries = 3\n[mirrors] # ours\n"
        'minari = ["https://lab/m", "file:///m"]\nd4rl = ["https://c"]\n'
    )
    for key in ("retries", "mirrors.minari", "mirrors.d4rl"):
        assert rlds("config", "unset", key).code == 0
    assert user_file.read_text() == "# mine\njobs = 2  # few\n\n"


def test_a_linked_file_with_secrets_stays_a_link_and_private(rlds, user_file, tmp_path):
    target = tmp_path / "dotfiles" / "rlds.toml"
    target.parent.mkdir()
    target.write_text("jobs = 1\n")
    target.chmod(0o600)
    user_file.parent.mkdir(exist_ok=True)
    user_file.symlink_to(target)

    assert rlds("config", "set", "jobs", "2").code == 0
    assert user_file.readlink() == target
    assert target.read_text() == "jobs = 2\n"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(target.parent.iterdir()) == [target]


def test_the_first_mirror_makes_the_table(rlds, user_file):
    rlds("config", "set", "mirrors.d4rl", "https://lab/d4rl")

    assert user_file.read_text() == '[mirrors]\nd4rl = ["https://lab/d4rl"]\n'
    assert origins(rlds)["mirrors"] == ({"d4rl": ["https://lab/d4rl"]}, f"{user_file}:1")


def test_the_project_file_precedes_the_user_file_and_a_note_says_so(rlds, project, user_file):
    assert rlds("config", "set", "jobs", 3, "--project").out == f"{project}\n"

    ran = rlds("config", "set", "jobs", 5)
    assert ran.err == f"{project}:1 takes precedence over this file: jobs is 3\n"
    assert origins(rlds)["jobs"] == (3, f"{project}:1")
    paths = rlds("config", "path", "--json").json["files"]
    assert [(one["path"], one["exists"]) for one in paths] == [(str(project), True), (str(user_file), True)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jbos", "1"], "there is no setting 'jbos'"),
        (["jobs", "zero"], "jobs is 'zero'"),
        (["mirrors", "x"], "mirrors.SOURCE"),
        (["mirrors.d4rl", "lab"], "addresses with commas"),
        (["jobs.d4rl", "1"], "there is no setting"),
    ],
)
def test_invalid_settings_are_not_written(rlds, user_file, words, message):
    ran = rlds("config", "set", *words)

    assert (ran.code, user_file.exists()) == (2, False)
    assert message in ran.err


def test_a_file_with_invalid_lines_stops_commands_and_can_be_corrected(rlds, project):
    project.write_text('jbos = 3\ntimeout = "soon"\n')

    for words in (["list"], ["config"]):
        ran = rlds(*words)
        assert ran.code == 2
        assert f"{project}:1: there is no setting 'jbos'" in ran.err
        assert f"{project}:2: timeout is 'soon'" in ran.err
    assert rlds("config", "set", "timeout", "5", "--project").code == 0
    assert rlds("config", "unset", "jbos", "--project").code == 0
    assert rlds("list", "pendulum").code == 0


def test_what_cannot_be_edited_is_left_alone(rlds, user_file):
    text = "mirrors = { d4rl = [\n 'https://a' ] }\n"
    user_file.write_text(text)

    ran = rlds("config", "set", "mirrors.d4rl", "https://b")
    assert ran.code == 2
    assert f"edit {user_file}" in ran.err
    assert user_file.read_text() == text


def test_home_and_mirrors_of_a_clone_are_ignored_until_the_user_trusts_its_file(rlds, home, project, monkeypatch):
    """A clone could otherwise direct downloads to its own addresses, and commands to its own folders."""
    monkeypatch.delenv("RLDS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent / "data"))
    project.write_text('home = "data"\njobs = 2\n[mirrors]\nd4rl = ["https://attacker.example/d4rl"]\n')

    ignored = rlds("list", "pendulum")
    note = f"{project} is not trusted: its home and mirrors are ignored: rlds config trust {project} trusts it\n"
    assert (ignored.code, ignored.err) == (0, note)
    before = origins(rlds)
    assert (before["home"][1], before["mirrors"], before["jobs"][0]) == ("default", ({}, "default"), 2)

    trusted = rlds("config", "trust")
    assert (trusted.code, trusted.out) == (0, f"{project}\n")
    assert "mirrors is d4rl=https://attacker.example/d4rl" in trusted.err
    assert origins(rlds)["home"] == (str(project.parent / "data"), f"{project}:1")
    got = rlds("download", "demo/pendulum")
    assert f"home is {project.parent / 'data'}, by {project}:1" in got.err
    assert f"mirrors is d4rl=https://attacker.example/d4rl, by {project}:3" in got.err
    assert got.out == f"{project.parent / 'data' / 'demo' / 'pendulum'}\n"

    project.write_text(project.read_text().replace("attacker", "other"))
    assert origins(rlds)["home"][1] == "default"
    assert rlds("config", "trust", project.parent).code == 0
    assert rlds("config", "trust", "--revoke").code == 0
    assert origins(rlds)["mirrors"] == ({}, "default")


def test_trust_is_for_one_place_and_user_files_and_variables_need_none(rlds, home, project, user_file, monkeypatch):
    project.write_text('home = "a"\n')
    assert rlds("config", "trust").code == 0
    copy = home.parent / "copy" / "rlds.toml"
    copy.parent.mkdir()
    copy.write_text(project.read_text())
    monkeypatch.chdir(copy.parent)
    monkeypatch.delenv("RLDS_HOME")

    assert origins(rlds)["home"][1] == "default"
    user_file.write_text('home = "/mine"\n')
    assert origins(rlds)["home"] == ("/mine", f"{user_file}:1")
    monkeypatch.setenv("RLDS_CONFIG", str(copy))
    assert origins(rlds)["home"] == (str(copy.parent / "a"), f"{copy}:1")
    missing = rlds("config", "trust", home.parent / "none.toml")
    assert missing.code == 2
    assert "cannot be read" in missing.err


def test_a_project_file_of_the_user_stays_trusted_when_a_command_edits_it(rlds, project, monkeypatch):
    monkeypatch.delenv("RLDS_HOME")
    assert rlds("config", "set", "home", "/mine", "--project").code == 0
    assert rlds("config", "set", "jobs", 3, "--project").code == 0
    assert origins(rlds)["home"] == ("/mine", f"{project}:1")

    project.write_text('home = "/theirs"\n')
    assert rlds("config", "set", "jobs", 3, "--project").code == 0
    assert origins(rlds)["home"][1] == "default"


def test_a_program_ignores_the_home_of_an_untrusted_project_with_a_warning(project, monkeypatch):
    monkeypatch.delenv("RLDS_HOME")
    project.write_text('home = "/theirs"\n')

    with pytest.warns(UntrustedSettingsWarning, match="its home is ignored"):
        assert str(Settings.from_env().home) != "/theirs"
    trust_project(project)
    assert str(Settings.from_env().home) == "/theirs"


def test_a_file_of_settings_that_cannot_be_written_has_another_remedy_than_the_folder_of_the_data(
    rlds, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLDS_CONFIG", str(tmp_path / "file" / "config.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlds.toml").write_text('home = "x"')

    refused, trust = rlds("config", "set", "jobs", "2"), rlds("config", "trust")

    assert "next: fix its permissions, name another file with RLDS_CONFIG, or set the variable RLDS_JOBS" in refused.err
    assert "trusted.json cannot be written" in trust.err
    assert (refused.code, trust.code) == (1, 1)
    assert "--root" not in refused.err + trust.err


def test_a_file_of_settings_that_is_not_text_is_named(rlds, tmp_path):
    (tmp_path / "config.toml").write_bytes(b'home = "\xff"')

    ran = rlds("config", "set", "jobs", "2")

    assert (ran.code, ran.err.splitlines()[0]) == (2, f"rlds: {tmp_path / 'config.toml'} is not UTF-8")
