"""A Python that starts at once: a process that has imported everything forks a child for each program.

To import torch takes a second or two of each new process, which is most of what a test with processes costs. Tests that
are not about starting use the fixture `warm_python`, with which `sys.executable` is a script that is called like
Python. It sends its arguments, environment, working folder and open files to the server, passes signals on, and ends as
the child ends; if it is killed, the child is killed.

    sys.executable  ->  client  --socket-->  server  --fork-->  child, with the files of the client

The real Python handles options of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from pathlib import Path

_CLIENT = """
import array, json, os, select, signal, socket, sys
address, python, *argv = sys.argv[1:]
while argv[:1] in (["-B"], ["-u"]):
    del argv[0]
if argv[:1] == [] or (argv[0].startswith("-") and argv[0] not in ("-c", "-m")):
    os.execv(python, [python, *argv])
files = [int(name) for name in os.listdir("/proc/self/fd")]
server = socket.socket(socket.AF_UNIX)
files = [file for file in files if file != server.fileno() and os.path.exists(f"/proc/self/fd/{file}")]
passed_on = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # until the server has the task
for number in passed_on:
    signal.signal(number, lambda *_: None)
server.connect(address)
task = json.dumps([argv, dict(os.environ), os.getcwd(), files]).encode()
server.sendmsg([len(task).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
server.sendall(task)
server.setblocking(False)
signal.set_wakeup_fd(server.fileno())  # sends the number of a signal at once, also if select has not begun to wait
signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
for file in files:
    os.close(file)
select.select([server], [], [])
answer = server.recv(8)
status = int.from_bytes(answer, "big") if answer else signal.SIGKILL
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


class WarmPython:
    """A server, which needs some seconds to start, and the path of the script that is called like Python."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="warm-"))
        self.path = str(self.folder / "python")
        address = self.folder / "socket"
        client = self.folder / "client.py"
        client.write_text(_CLIENT)
        script = f'#!/bin/sh\nexec "{sys.executable}" -IS "{client}" "{address}" "{sys.executable}" "$@"\n'
        Path(self.path).write_text(script)
        Path(self.path).chmod(0o755)
        # A fork copies the tables of fewer, larger pages.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(address))
            listening.listen(64)  # clients wait until the server has imported everything
            words = [sys.executable, __file__, str(listening.fileno()), self.path]
            self._server = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, pass_fds=[listening.fileno()]
            )

    def close(self):
        """End the server and its children."""
        self._server.stdin.close()  # which a server that still imports reads much later
        self._server.kill()
        self._server.wait()
        shutil.rmtree(self.folder)


def serve(listening, executable):
    """Fork a child for each connection, until stdin ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    children = {}
    while True:
        ready, _, _ = select.select([0, woken, listening, *children], [], [])
        if 0 in ready:
            for process in children.values():
                os.kill(process, signal.SIGKILL)
            os._exit(0)  # to end all that was imported takes seconds
        if woken in ready:
            os.read(woken, 4096)
        for connection in [one for one in ready if one in children]:
            _pass_signals_on(connection, children[connection])
        _report_ends(children)
        if listening in ready:
            connection, _ = listening.accept()
            received = _receive(connection)
            if received is None:
                connection.close()
                continue
            children[connection] = _fork(connection, received, [listening, *children], [woken, wake], executable)


def _fork(connection, received, sockets, pipes, executable):
    """Fork the child of a connection, which closes what belongs to the server."""
    task, files = received
    process = os.fork()
    if not process:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (*pipes, connection.detach(), *(one.detach() for one in sockets)):
            os.close(one)
        _run(task, files, executable)
    for file in files:
        os.close(file)
    return process


def _report_ends(children):
    """Send the status of each child that has ended to its client."""
    for connection, process in list(children.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del children[connection]
            with contextlib.suppress(OSError):
                connection.sendall(status.to_bytes(8, "big"))
            connection.close()


def _receive(connection):
    """Return the task of a client and its files, or None if the client was killed before the task was sent."""
    files, task = [], b""
    with contextlib.suppress(ConnectionError):
        size, files, _, _ = socket.recv_fds(connection, 8, 250)
        remaining = int.from_bytes(size, "big")
        # Not one byte more, which a buffered file may read: a signal that follows the task would be lost.
        while remaining > len(task) and (more := connection.recv(remaining - len(task))):
            task += more
        if len(size) == 8 and len(task) == remaining:
            return json.loads(task), files
    for file in files:
        os.close(file)
    return None


def _pass_signals_on(connection, process):
    """Send the signals of the client to its child; a client that is gone was killed."""
    try:
        numbers = connection.recv(16)
    except ConnectionError:
        numbers = b""
    for number in numbers or [signal.SIGKILL]:
        os.kill(process, number)


def _run(task, files, executable):
    """Become the program that a client asked for."""
    argv, environment, folder, numbers = task
    # First out of the way of the numbers that are wanted, then to them.
    above = max([*numbers, *files]) + 1
    for place, file in enumerate(files):
        os.dup2(file, above + place)
        os.close(file)
    for place, number in enumerate(numbers):
        os.dup2(above + place, number, inheritable=True)
        os.close(above + place)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = executable
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, "rw"[number > 0], closefd=False) for number in range(3))
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    code = 0
    try:
        _start(argv, environment)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        frames = error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next  # those of the program
        traceback.print_exception(type(error), error, frames)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _start(argv, environment):
    """Run `-c program`, `-m module` or a script with its arguments."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    before = sys.path[1:]  # the first one is the folder of this file
    how, rest = (argv[0], argv[1:]) if argv[0] in {"-c", "-m"} else ("", argv)
    sys.path[:] = [str(Path(rest[0]).parent) if not how else "", *paths, *before]
    if how == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    if how:
        sys.argv[:] = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv[:] = rest
        main.__file__ = rest[0]
        code = compile(Path(rest[0]).read_bytes(), rest[0], "exec")
    exec(code, main.__dict__)


def _import_everything():
    import torch

    import datasets_rl
    from datasets_rl import cli

    torch.set_num_threads(1)  # threads do not survive a fork
    os.fsync = lambda handle: None  # noqa: ARG005 - as in conftest.py
    for module in ("hypothesis", "pytest"):  # for functions of test modules
        importlib.import_module(module)
    for package in (datasets_rl, cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.app.main(["config", "path"])  # for its first command, Typer imports more; this one looks up no source


def _spare_the_children():
    """Leave what was imported out of the collections and the finalizers of children, which would copy its memory."""
    gc.collect()
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False


if __name__ == "__main__":
    _import_everything()
    _spare_the_children()
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
