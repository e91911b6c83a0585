"""The command line ``rlds``: a file per command in ``commands/``, a printer, and a table of exit codes.

The folder ships as ``datasets_rl.cli``. Its modules import each other relatively, so that type checkers, which see the
folder under its own name, check the modules too.
"""
