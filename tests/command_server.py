"""The client of `fork_server.py`: runs `rlds` in children that may be killed."""

import json
import subprocess
import sys
from pathlib import Path


class Server:
    """A process that has imported everything and forks a child for each command."""

    def __init__(self):
        program = [sys.executable, str(Path(__file__).with_name("faults") / "fork_server.py")]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, argv, home, fatal=0):
        """Run a command; before its change of the disk number `fatal` it is killed."""
        self.process.stdin.write(json.dumps({"argv": argv, "home": str(home), "fatal": fatal}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        """End the process."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()
