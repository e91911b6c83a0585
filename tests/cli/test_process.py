"""The command in a separate process: start-up time, pipes, signals and terminals."""

from __future__ import annotations

import fcntl
import importlib.resources
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from servers import Slow, serve
from slow_imports import SLOW_IMPORTS

import datasets_rl.sources.demo
from datasets_rl.format.manifest import Manifest

RAW = importlib.resources.files(datasets_rl.sources.demo).joinpath("pendulum.hdf5")
WORDS = [
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "--json"],
    *([word, "demo/pendulum"] for word in ("info", "path", "verify")),
]


@pytest.mark.first(2)
@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_commands_that_only_print_import_no_slow_module(process_env, words):
    program = (
        "import sys; from datasets_rl.cli.app import main; code = main(sys.argv[1:]);"
        f"print([name for name in {SLOW_IMPORTS} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=process_env, capture_output=True, text=True, check=True
    )

    assert done.stderr == "[]\n"


@pytest.mark.usefixtures("stored")
def test_a_lock_and_a_sync_of_what_is_stored_import_no_torch(process_env, tmp_path):
    program = (
        "import sys; from datasets_rl.cli.app import main;"
        "codes = main(['lock', 'demo/pendulum', '-o', 'rlds.lock']), main(['sync', 'rlds.lock']), main(['sync', '--check', 'rlds.lock']);"
        "print(codes, [name for name in ('torch', 'tensordict') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=process_env, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "(0, 0, 0) []"


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_the_opening_time_does_not_include_the_import_of_torch(process_env):
    program = (
        "import os, sys, types; from datasets_rl.cli.app import main; from datasets_rl.cli.commands import sample\n"
        "def clock(): print('torch' in sys.modules, file=sys.stderr, flush=True); os._exit(0)\n"
        "sample.time = types.SimpleNamespace(perf_counter=clock)\n"
        "main(['sample', 'demo/pendulum', '--quiet'])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=process_env, capture_output=True, text=True, check=True)

    assert done.stderr == "True\n"


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]], ids=" ".join)
def test_a_pipe_that_is_closed_early_is_not_an_error(command, process_env, words):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{command}' {' '.join(words)} | head -n 1"],
        env=process_env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["--help"], ["list", "--json"]], ids=" ".join)
def test_a_pipe_that_is_closed_before_the_first_line_is_not_an_error(command, process_env, words):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [command, *words], env=process_env, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )

    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupted_download_is_continued_by_the_command_that_it_prints(command, process_env, home):
    with serve({"/pendulum.hdf5": Slow(RAW.read_bytes(), rate=200_000)}) as server:
        words = [command, "download", "demo/pendulum", "--mirror", server.url]
        running = subprocess.Popen(words, env=process_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: parts(home))
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=100)
        took = time.monotonic() - began

        assert (running.returncode, out) == (130, "")
        assert f"rlds download demo/pendulum --mirror {server.url}" in err
        assert "Traceback" not in err
        assert took < 15

        server.requests.clear()
        server.paths["/pendulum.hdf5"] = RAW.read_bytes()
        again = subprocess.run(words, env=process_env, capture_output=True, text=True, check=True)

    first = next(request for request in server.requests if request.method == "GET")
    assert int(first.headers["range"].removeprefix("bytes=").partition("-")[0]) > 0
    assert Manifest.read(home / "demo" / "pendulum").raw[0].bytes == len(RAW.read_bytes())
    assert again.stdout == f"{home / 'demo' / 'pendulum'}\n"


INTERRUPTED_IMPORT = """
import os, signal, sys

module, how = sys.argv[1:]

class Finder:
    def find_spec(name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.Signals[how])

sys.meta_path.insert(0, Finder)
from datasets_rl.cli.app import main
sys.argv[1:] = ["sample", "demo/pendulum"]
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("module", "how", "code"), [("torch.nn.modules", "SIGINT", 130), ("torch.utils._pytree", "SIGTERM", 143)]
)
def test_an_interrupt_while_torch_is_imported_ends_the_command_in_one_line(process_env, module, how, code):
    words = [sys.executable, "-c", INTERRUPTED_IMPORT, module, how]
    done = subprocess.run(words, env=process_env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "rlds: interrupted\n")


def parts(home):
    return any(path.stat().st_size > 50_000 for path in home.rglob("*") if path.is_file())


def wait_until(holds, seconds=60.0):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_without_a_terminal_progress_is_plain_and_there_are_no_prompts(command, process_env):
    with serve({"/pendulum.hdf5": RAW.read_bytes()}) as server:
        done = subprocess.run(
            [command, "download", "demo/pendulum", "--mirror", server.url],
            env=process_env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
    refused = subprocess.run(
        [command, "remove", "demo/pendulum"],
        env=process_env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )

    assert not {"\r", "\x1b"} & set(done.stdout + done.stderr)
    assert refused.returncode == 10


def on_terminal(words, env, columns=60):
    """Run a program on a new pseudo-terminal, and return its output."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in env.items() if name != "COLUMNS"}
    running = subprocess.Popen(words, env={**env, "TERM": "xterm"}, stdout=inner, stderr=inner, stdin=inner)
    os.close(inner)
    shown = bytearray()
    while True:
        try:
            piece = os.read(outer, 65536)
        except OSError:  # Linux raises it when the last program has closed the terminal
            break
        if not piece:
            break
        shown += piece
    os.close(outer)
    assert running.wait() == 0
    return shown.decode()


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("extra", "words", "colours"),
    [({}, [], True), ({"NO_COLOR": "1"}, [], False), ({}, ["--no-color"], False), ({"CI": "1"}, [], False)],
)
def test_on_a_terminal_there_are_headings_and_colors_unless_disabled(command, process_env, extra, words, colours):
    shown = on_terminal([command, "list", "demo/pendulum", *words], {**process_env, **extra})

    assert ("\x1b[" in shown) is colours
    assert ("size" in shown) is ("CI" not in extra)
    assert "demo/pendulum" in shown


TABLES = [
    ["list"],
    ["list", "--downloaded"],
    ["info", "demo/pendulum"],
    ["info", "d4rl/hopper-medium-v0"],
    ["preprocess", "--list"],
    ["preprocess", "demo/pendulum", "-t", "returns_to_go", "--dry-run"],
    ["help", "environment"],
    ["help", "exit-codes"],
    ["download", "d4rl/hopper-medium-v2", "--dry-run"],
    ["sample", "demo/pendulum"],
    ["describe", "demo/pendulum"],
    ["describe", "demo/pendulum", "-e", "0"],
    ["mix", "demo/pendulum", "demo/pendulum"],
    ["audit", "--list"],
]
RUN_ALL = "import json, sys; from datasets_rl.cli.app import main; [print('$', *words) or main(words) for words in json.loads(sys.argv[1])]"


@pytest.mark.usefixtures("warm_python", "stored")
@pytest.mark.parametrize("columns", [60, *(pytest.param(columns, marks=pytest.mark.slow) for columns in (0, 80, 200))])
def test_no_table_of_any_command_is_wider_than_the_terminal(process_env, columns):
    """A terminal that reports 0 columns has an unknown width; 80 is assumed."""
    words = [sys.executable, "-c", RUN_ALL, json.dumps(TABLES)]
    shown = on_terminal(words, {**process_env, "NO_COLOR": "1"}, columns).split("\r\n")

    assert [line for line in shown if len(line) > (columns or 80)] == []
    assert all(f"$ {' '.join(words)}" in shown for words in TABLES)
    assert len(shown) > 900


@pytest.mark.usefixtures("warm_python", "stored")
def test_every_table_is_printed_to_a_pipe_as_complete_tab_separated_rows(process_env):
    words = [sys.executable, "-c", RUN_ALL, json.dumps(TABLES[1:])]
    done = subprocess.run(words, env=process_env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()

    assert {line.count("\t") for line in lines if line.startswith(("observation\t", "next.reward\t"))} == {
        1,
        3,
        4,
        6,
        7,
    }
    assert "RLDS_OFFLINE\t1: no network request at all" in lines
    assert any(line.startswith("keep_top_returns\tpercent=10.0, of=episodes\tKeep the episodes with") for line in lines)
    assert any(re.fullmatch(r"folder\t/\S+/d4rl/hopper-medium-v2", line) for line in lines)
    assert not re.search(r"\S  +\S", done.stdout)


@pytest.mark.slow
def test_the_longest_id_is_complete_in_a_narrow_terminal_and_in_a_pipe(command, process_env):
    listed = subprocess.run([command, "list", "-q"], env=process_env, capture_output=True, text=True, check=True)
    longest = max(listed.stdout.split(), key=len)
    shown = on_terminal([command, "list", longest, "--no-color"], process_env)

    assert longest in shown.replace("\r\n", "").replace(" ", "")


@pytest.mark.first(1)
@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "code"), [("list >&-", 0), ("download demo/pendulum 2>&-", 0), ("remove demo/pendulum <&-", 10)]
)
def test_closed_streams_are_not_an_error(command, process_env, words, code):
    done = subprocess.run(
        ["bash", "-c", f"'{command}' {words}"], env=process_env, capture_output=True, text=True, check=False
    )

    assert done.returncode == code
    assert "fault" not in done.stderr


def test_a_path_that_the_output_cannot_encode_is_escaped(command, process_env, tmp_path):
    env = {**process_env, "PYTHONIOENCODING": "ascii", "RLDS_HOME": str(tmp_path / "données")}
    done = subprocess.run([command, "download", "demo/pendulum"], env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/donn\\xe9es/demo/pendulum\n")


def test_an_interrupt_while_modules_load_is_one_line(process_env):
    program = (
        "import sys\n"
        "from datasets_rl.cli.app import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "list"], env=process_env, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rlds: interrupted\n")


@pytest.mark.slow
def test_sigterm_is_handled_like_an_interrupt_and_ends_with_143(command, process_env, home):
    with serve({"/pendulum.hdf5": Slow(RAW.read_bytes(), rate=200_000)}) as server:
        words = [command, "download", "demo/pendulum", "--mirror", server.url]
        running = subprocess.Popen(words, env=process_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: parts(home))
        running.terminate()
        out, err = running.communicate(timeout=100)

    assert (running.returncode, out) == (143, "")
    assert "to continue: rlds download demo/pendulum" in err
