"""A client of `fork_server.py`, which runs `rlds` in child processes that can be killed."""

import json
import os
import subprocess
import sys
from pathlib import Path


class Server:
    """A server process that has imported every module and forks a child process for each command.

    `python` is the path of the Python that runs it; with `lying`, every lock always succeeds.
    """

    def __init__(self, python=sys.executable, *, lying=False):
        self.locks = "locks that lie" if lying else "locks"
        program = [python, str(Path(__file__).with_name("faults") / "fork_server.py"), *["lying"] * lying]
        # A fork copies the tables of fewer, larger pages.
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, argv, home, fatal=0):
        """Run `rlds` with `argv`; with `fatal` n, kill it before its n-th change of the disk.

        Returns the report of the server: died, code, changes and text.
        """
        answer = self._answer([argv], home, fatal)
        return {"died": answer["died"], "changes": answer["changes"], **answer["ends"][0]}

    def run_in_turn(self, commands, home):
        """Run `rlds` with the words of each command, one after the other in one process; return code and text of each."""
        return self._answer(commands, home, 0)["ends"]

    def _answer(self, commands, home, fatal):
        self.process.stdin.write(json.dumps({"commands": commands, "home": str(home), "fatal": fatal}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        """End the server process."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()
