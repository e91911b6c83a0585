"""The Typer app, which collects the commands, adds the global options, and prints results and errors."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import os
import shlex
import sys
import time
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, TracebackType
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # re-exported by Typer without a mark
from typing_extensions import get_type_hints

from datasets_rl.errors import (
    EnvironmentWarning,
    RecordingWarning,
    UnknownFinalWarning,
    UnsearchedWarning,
    UntrustedSettingsWarning,
)

from . import commands
from .commands import command_names, subcommand_names
from .errors import INTERRUPTED, USAGE, Explanation
from .help_page import add_help
from .options import GLOBALS, REPORTED, Shell, convert_memory_errors
from .output import Lines, Result
from .remedies import spell_action
from .shells import COMPLETE

T = TypeVar("T")

_EPILOG = "Every command also takes --json, -q, -v, --no-color, --root DIR."
_WITHOUT_DATA = {"completion", "config", "doctor", "help"}
"""Commands that also work with invalid settings, because such commands do not change the data folder."""
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# The base class of Typer's usage errors, for which Typer does not have a public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: The words after ``rlds``. By default the words of this process.
    """
    if argv is None:
        sys.excepthook = _report_unexpected
    words = list(sys.argv[1:] if argv is None else argv)
    shell = Shell(words)
    if COMPLETE in os.environ:
        return _print_candidates(shell)
    # An error in the options themselves is reported before the options are parsed.
    shell.printer.json = "--json" in words
    try:
        with convert_memory_errors():
            code = _run_words(shell, words)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader has enough, like `head`. Typer makes a SystemExit of this error when it prints help. What is
        # left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _report_interrupt(shell)
    except REPORTED as error:
        if shell.debug:
            shell.printer.traceback(error)
        return _report_failure(shell, shell.explained(error))
    except _UsageError as error:
        # Where Typer stopped before the command took its options, the error knows the command.
        context = getattr(error, "ctx", None)
        if context is not None and context.parent is not None:
            shell.command = _command_path(context)
        return _report_failure(shell, _explain_usage_error(error, words))
    return code


_TYPER: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def make_app(names: Sequence[str] = ()) -> typer.Typer:
    """Return the Typer app with these commands, by default all."""
    app = typer.Typer(**_TYPER)
    app.callback(invoke_without_command=True, help=_HELP, epilog="Exit codes: rlds help exit-codes")(
        _make_group_callback(None)
    )
    for name in names or command_names():
        module = importlib.import_module(f"{commands.__name__}.{name}")
        if not (below := subcommand_names(name)):
            _add_command(app, name, module)
            continue
        group = typer.Typer(**_TYPER)
        group.callback(invoke_without_command=True, help=module.HELP, epilog=_EPILOG)(
            _make_group_callback(getattr(module, "run", None))
        )
        for one in below:
            _add_command(group, one, importlib.import_module(f"{module.__name__}.{one}"))
        app.add_typer(group, name=name)
    return app


def _add_command(app: typer.Typer, name: str, module: ModuleType) -> None:
    settings = getattr(module, "CONTEXT", None)
    more: Sequence[inspect.Parameter] = getattr(module, "source_options", tuple)()
    app.command(name, epilog=_EPILOG, context_settings=settings)(_wrap_command(module.run, more))


@functools.cache
def make_command(*names: str) -> Any:
    """Return the command line that Typer makes of the app, with the declared help of its arguments.

    Typer writes ``{ID...}...`` and the Python type for an argument with the metavar ``ID...``. Typer also shows a default
    for an option without a default.

    Args:
        names: The commands to include. By default all commands, which take a tenth of a second to import.
    """
    names = names or command_names()
    command = typer.main.get_command(make_app(names))
    for one in _commands_below(command):
        for parameter in one.params:
            if parameter.param_type_name == "argument":
                parameter.get_usage_pieces = functools.partial(_call_first, [parameter.metavar])
                parameter.get_help_record = functools.partial(_call_first, (parameter.metavar, parameter.help))
            elif parameter.default in (None, "", []):
                parameter.show_default = False
    groups = {name: getattr(importlib.import_module(f"{commands.__name__}.{name}"), "GROUP", "") for name in names}
    add_help(command, groups)
    return command


def _commands_below(command: Any) -> Iterator[Any]:
    for one in getattr(command, "commands", {}).values():
        yield one
        yield from _commands_below(one)


def _call_first(value: T, _: object) -> T:
    return value


def _note_warning(
    shell: Shell, noted: set[str], show: Callable[..., None], warning: Warning | str, *where: Any, **more: Any
) -> None:
    """Print a warning of this package as a note, once, with the remedy in the words of the shell."""
    if not isinstance(warning, EnvironmentWarning | RecordingWarning | UnsearchedWarning | UntrustedSettingsWarning):
        show(warning, *where, **more)
    elif (text := warning.message) not in noted:
        noted.add(text)
        remedy = warning.remedy.text_with(functools.partial(spell_action, root=shell.root))
        shell.printer.note(f"{text}{remedy and f': {remedy}'}")


_HELP = """Download, verify, describe, preprocess and sample offline-RL datasets.

\b
Examples:
  rlds list 'hopper*'
  rlds download d4rl/hopper-medium-v2
  rlds sample demo/pendulum -n 4
"""


def _run_words(shell: Shell, words: Sequence[str]) -> int:
    with warnings.catch_warnings():
        # Commands that read batches print a line instead.
        warnings.simplefilter("ignore", UnknownFinalWarning)
        warnings.simplefilter("always", EnvironmentWarning)
        warnings.simplefilter("always", RecordingWarning)
        warnings.simplefilter("always", UnsearchedWarning)
        warnings.simplefilter("always", UntrustedSettingsWarning)
        warnings.showwarning = functools.partial(_note_warning, shell, set(), warnings.showwarning)
        words = _help_words(words)
        answer = _command_of(words).main(args=words, prog_name="rlds", standalone_mode=False, obj=shell)
    if isinstance(answer, Result):
        shell.printer.show(shell.command, answer)
        if answer.then is not None:
            sys.stdout.flush()
            answer.then()
        return answer.code
    # Typer answers with the code of an early exit, as of --help, also for Ctrl-C.
    if answer == INTERRUPTED:
        raise KeyboardInterrupt
    return int(answer or 0)


def _print_candidates(shell: Shell) -> int:
    """Print the candidates for the word before the cursor, for the scripts of `shells`."""
    completion_init()
    warnings.simplefilter("ignore")  # a line of the shell is being typed
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        _command_of(line.split()[1:]).main(args=[], prog_name="rlds", complete_var=COMPLETE, obj=shell)
    except SystemExit as stop:
        return int(stop.code or 0)  # fish asks by the exit code whether there are candidates
    return 0


def _command_of(words: Sequence[str]) -> Any:
    """Return the command line with the single command that the words name, or with all commands."""
    return make_command(*(one for one in _plain_words(words)[:1] if one in command_names()))


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return the words that are neither an option nor the value of ``--root``."""
    return [
        one
        for position, one in enumerate(words)
        if one[:1] != "-" and (position == 0 or words[position - 1] != "--root")
    ]


def _help_words(words: Sequence[str]) -> list[str]:
    """Turn ``help COMMAND`` into ``COMMAND --help``, and ``help`` alone into ``--help``. Other options may be present."""
    rest = _plain_words(words)
    if rest[:1] == ["help"] and not {"--version", "-V", "--help", "-h"} & set(words):
        _, *named = rest
        known = [*command_names()], [*subcommand_names(named[0])] if named else []
        if len(named) <= 2 and all(one in names for one, names in zip(named, known, strict=False)):
            return [*named, "--help"]
    return list(words)


def _wrap_command(
    function: Callable[..., Result], source_options: Sequence[inspect.Parameter]
) -> Callable[..., Result]:
    """Wrap a command's ``run`` into what Typer calls: with the global options, and the `Shell` as first argument.

    Args:
        function: The command.
        source_options: Options in addition to the parameters of the signature.
    """

    @functools.wraps(function)
    def run_command(ctx: typer.Context, **arguments: Any) -> Result:
        shell = _shell_with_options(ctx, arguments)
        if shell.version:
            return _version_result()
        if shell.command.partition(" ")[0] in _WITHOUT_DATA:
            return function(shell, **arguments)
        shell.detail(f"the data folder is {shell.settings.home}")
        shell.check_home()
        began = time.perf_counter()
        result = function(shell, **arguments)
        shell.detail(f"took {time.perf_counter() - began:.2f} s")
        return result

    hints = get_type_hints(function, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(function).parameters.values()]
    named = [one for one in own[1:] if one.kind is not inspect.Parameter.VAR_KEYWORD]
    return _declare_options(run_command, [*named, *source_options])


def _make_group_callback(function: Callable[[Shell], Result] | None) -> Callable[..., Result | None]:
    """Make the callback that runs before every command of a group, or alone if no command is named.

    Args:
        function: The function to run alone. By default, the help is printed.
    """

    def group(ctx: typer.Context, **arguments: Any) -> Result | None:
        shell = _shell_with_options(ctx, arguments)
        if ctx.invoked_subcommand is not None:
            return None
        if shell.version:
            return _version_result()
        if function is not None:
            return function(shell)
        typer.echo(ctx.get_help())
        raise typer.Exit

    return _declare_options(group, ())


def _declare_options(function: Callable[..., T], options: Sequence[inspect.Parameter]) -> Callable[..., T]:
    """Give a wrapper the signature that Typer reads: its own options and the global options."""
    shared = [
        inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[kind, typer.Option(*names, **settings)])
        for name, (kind, names, settings, default) in GLOBALS.items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    signature = inspect.Signature([context, *(one.replace(kind=_KEYWORD) for one in options), *shared])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return function


def _shell_with_options(ctx: typer.Context, arguments: dict[str, Any]) -> Shell:
    shell: Shell = ctx.obj
    shell.command = _command_path(ctx)
    shell.take(**{name: arguments.pop(name) for name in GLOBALS})
    return shell


def _command_path(context: Any) -> str:
    """Return the words that name a command: ``list``, ``cache move``, or ``rlds`` for the program itself."""
    path: str = context.command_path
    return path.partition(" ")[2] or path


def _version_result() -> Result:
    from importlib.metadata import version as installed_version

    number = installed_version("datasets-rl")
    return Result({"version": number}, [Lines((f"rlds {number}",))], quiet=[number])


def _explain_usage_error(error: Exception, words: Sequence[str]) -> Explanation:
    """Return the explanation of an error of Typer. The explanation of an invalid value names the declared values."""
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    what, _, why = getattr(error, "message", str(error)).rstrip(".").partition(". ")
    meant = ""
    if parameter is not None and not what:
        what = f"{_parameter_name(parameter)} is missing"
    elif parameter is not None and (expected := _allowed_values(context, parameter.name)):
        what, why = f"{_parameter_name(parameter)} is {_refused_value(error)}", f"expected {expected}"
    elif near := getattr(error, "possibilities", None):
        why = f"the nearest are {', '.join(sorted(near))}"
    elif below := getattr(getattr(context, "command", None), "commands", None):
        meant, why = why, f"the commands are {', '.join(sorted(below))}"
    if context is not None:
        why = why or f"the usage is {' '.join(context.get_usage().split()).removeprefix('Usage: ')}"
    # Where an option lacks its value, Typer does not report the command of the option.
    path = getattr(context, "command_path", " ".join(["rlds", *[one for one in words if one in command_names()][:1]]))
    hint = f"{meant[0].lower()}{meant[1:]} {path} --help lists all" if meant else f"{path} --help"
    return Explanation("UsageError", what, why, hint, USAGE)


def _parameter_name(parameter: Any) -> str:
    options = [name for name in parameter.opts if name[:1] == "-"]
    return str(max(options, key=len) if options else parameter.metavar.removesuffix("...").strip("[]"))


def _refused_value(error: Exception) -> str:
    """Return the value that Typer refused, in newer versions from the error of the library that checks values."""
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    return repr(details[0]["input"]) if details else "not such a value"


def _allowed_values(context: Any, name: str) -> str:
    """Return the values that the declaration of a parameter allows. Empty without a declaration."""
    path = [] if context is None else _command_path(context).split()
    if not path or path[0] not in command_names():
        return ""
    act = importlib.import_module(".".join([commands.__name__, *path])).run
    hint = get_type_hints(act, include_extras=True).get(name)
    kind, *declared = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(kind) is not Literal:
        kind = next((one for one in typing.get_args(kind) if one is not type(None)), kind)
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    least = getattr(declared[0], "min", None) if declared else None
    bound = "" if least is None else f" of at least {least}"
    return {int: f"an integer{bound}", float: f"a number{bound}"}.get(kind, "")


def _report_failure(shell: Shell, explanation: Explanation) -> int:
    shell.printer.failed(shell.command, explanation)
    return explanation.code


def _report_interrupt(shell: Shell) -> int:
    again = shlex.join(["rlds", *shell.argv])
    explanation = Explanation(
        "Interrupted",
        f"{shell.command or 'rlds'} was interrupted",
        f"the process received Ctrl-C or a signal to end, and {shell.interrupted or 'what is done is kept'}",
        f"to continue: {again}",
        INTERRUPTED,
    )
    return _report_failure(shell, explanation)


def _report_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected exception. Python then ends the process with exit code 1."""
    if any(word.startswith("-vv") for word in sys.argv) or sys.argv.count("-v") > 1 or os.environ.get("RLDS_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    why = f"{kind.__name__}: {error}"
    hint = "run the same command again with -vv, and report the output"
    Shell(sys.argv).printer.failed("", Explanation(kind.__name__, "a fault of rlds itself", why, hint, 1))
