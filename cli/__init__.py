"""The command line ``rlds``: a command a file in ``commands/``, one printer, one table from errors to exit codes.

The folder ships as ``datasets_rl.cli``. Its modules import each other relatively, so that type checkers, which see the
folder under its own name, check them too.
"""
