"""``python -m datasets_rl``: the command rlds."""

from importlib import import_module

if __name__ == "__main__":
    # Type checkers know the folder of the command line under another name.
    raise SystemExit(import_module("datasets_rl.cli.app").main())
