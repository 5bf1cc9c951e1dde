"""The command group: finds commands, and turns every failure into one line and an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from ckplan import __version__
from ckplan.cli.late_imports import defer_imports
from ckplan.cli.terminal.interruption import INTERRUPTED, end_when_stuck
from ckplan.cli.terminal.streams import Settings, say, to_stdout
from ckplan.display import one_line
from ckplan.errors import CkplanError, EnvironmentUnavailableError, ModelError
from ckplan.isolation.collecting import ALLOCATIONS
from ckplan.isolation.lifetime import asked_to_end, end_cleanly

BUG = 3
_LONGEST = 400
"""Letters of another program's message that are told."""
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free some space, or set TMPDIR to another folder"),
    errno.EACCES: "; check the permissions of it and of the folders that it lies in",
    errno.ENAMETOOLONG: "; give a shorter name",
    errno.EFBIG: "; let files be larger with `ulimit -f unlimited`",
    errno.EMFILE: "; let a process open more with `ulimit -n 65536`",
}
"""What to do where the system refuses something."""
BROKEN_PIPE = 141


class App(click.Group):
    """A group that lists its commands in the order of definition and reports failures in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order a user meets them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with _reader_may_go():
                result = super().invoke(ctx)
                sys.stdout.flush()
        except EOFError as error:  # which click would take for the end of what somebody types
            raise ValueError(f"a file ends before it should ({error})") from error
        return result

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read what is asked for; help and version are shown here."""
        with _reader_may_go(), to_stdout():
            return super().make_context(info_name, args, parent, **extra)

    def _main_shell_completion(self, *args: Any, **options: Any) -> None:
        """Answer the shell, if it asks for completions."""
        with _reader_may_go(), to_stdout():
            super()._main_shell_completion(*args, **options)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, then exit; with ``standalone_mode=False`` exceptions are the caller's, as in click."""
        settings: Settings = extra.setdefault("obj", Settings())
        settings.arguments = tuple(sys.argv[1:] if args is None else args)
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        _open_closed_streams()
        atexit.register(_forget_unwritten)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a tensor's name must not crash an ASCII terminal
        # Libraries log what they do with the names of models; without a handler Python would print that as it is.
        logging.getLogger().addHandler(logging.NullHandler())
        gc.set_threshold(ALLOCATIONS)  # looks for cycles that are garbage less often
        # The interpreter's last act is to look for such cycles among all objects, half a second for a large model, and
        # then the system takes the memory back anyway.
        atexit.register(gc.freeze)
        # The matrices of planning are small: a second thread of numpy's products mostly waits, and its waiting takes a
        # tenth of the processor's time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        defer_imports()
        end_cleanly()
        end_when_stuck()
        sys.exit(exit_code_of(partial(_leaving, run), settings))


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """End quietly where the reader of stdout went away (``| head``): no failure of ours to talk about."""
    try:
        yield
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)
        raise SystemExit(BROKEN_PIPE) from None


def _forget_unwritten() -> None:
    """Give up what found no room, or no reader: Python would end with 120 in place of the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _lead_nowhere(stream)


def _lead_nowhere(stream: TextIO) -> None:
    """Lead a stream to nowhere: what is still buffered must not raise again when the interpreter shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Lead streams that the caller has closed (``>&-``) to nowhere.

    Python has none then, and the next file that is opened would get the stream's number: what a library prints would be
    written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def _leaving(run: Callable[[], Any]) -> Any:
    """Call ``run``; where it was asked to end, it leaves by that and not by what a library made of it."""
    try:
        return run()
    except Exception:
        # The import of a library in C, say, makes an ImportError of whatever is raised within.
        if (number := asked_to_end()) is not None:
            raise SystemExit(128 + number) from None
        raise


def exit_code_of(run: Callable[[], Any], settings: Settings) -> int:
    """Call ``run``, report what it raises on stderr in one line, and return the process's exit code."""
    try:
        result = run()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except click.ClickException as error:
        message = error.format_message()
        if not message.endswith(".."):  # as in INPUT=N,N,...
            message = message.removesuffix(".")
        context = getattr(error, "ctx", None)
        message = f"{message}; see `{context.command_path} --help`" if context else message
        return fail(message, error.exit_code, settings, type(error).__name__)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except CkplanError as error:
        if settings.debug:
            tell_traceback()
        return fail(str(error), error.exit_code, settings, type(error).__name__)
    except Exception as error:
        if settings.debug:
            tell_traceback()
        if isinstance(error, MemoryError | OSError):
            message = _of_system(error) if isinstance(error, OSError) else "out of memory"
            kind = EnvironmentUnavailableError
            return fail(message, kind.exit_code, settings, kind.__name__)
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("ckplan"):
            message = f"Python package {error.name} is not installed; install ckplan again with what it needs"
            kind = EnvironmentUnavailableError
            return fail(message, kind.exit_code, settings, kind.__name__)
        message = _blame(settings.arguments)
        if message:
            return fail(message, ModelError.exit_code, settings, ModelError.__name__)
        advice = "" if settings.debug else "; this is a bug; re-run with --debug and report what it shows"
        return fail(f"{type(error).__name__}: {str(error)[:_LONGEST]}{advice}", BUG, settings, "bug")


def _of_system(error: OSError) -> str:
    """What the system refused, of which file if it is one, and what to do."""
    named = error.strerror and isinstance(error.filename, str)
    message = f"{error.strerror}: {error.filename}" if named else str(error)
    return message + _REMEDIES.get(error.errno or 0, "")


def _blame(arguments: Sequence[str]) -> str:
    """What is wrong with the first file among the arguments that is no valid model; empty if there is none."""
    for argument in arguments:
        file = Path(argument)
        if "\0" not in argument and file.suffix == ".onnx" and file.is_file():
            from ckplan.model.validity import CHECK_IT, complaint

            reason = complaint(file)
            if reason:
                return f"{file} is not valid: {one_line(reason, _LONGEST)}; {CHECK_IT}"
    return ""


def tell_traceback() -> None:
    """Show where the exception that is handled came from."""
    for line in traceback.format_exc().splitlines():
        say(line)


def fail(message: str, code: int, settings: Settings, kind: str) -> int:
    """Say one line on stderr, with --json an object with ``error`` on stdout as well, and return the code."""
    line = " ".join(message.split())
    if "--json" in settings.arguments and not settings.told:
        from ckplan.report import SCHEMA
        from ckplan.report.untrusted import json_text

        error = {"kind": kind, "message": line, "exit_code": code}
        with suppress(OSError):  # what failed counts, and is told on stderr
            click.echo(json_text({"schema": SCHEMA, "error": error}, indent=2))
    say(f"ckplan: error: {line}")
    return code


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
def cli() -> None:
    """Train ONNX models in a fraction of the memory.

    ckplan reads a forward ONNX model, builds its training graph, plans which activations to keep and which to
    recompute, and writes a file that keeps to the plan in stock onnxruntime.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 model invalid or unsupported, 4 budget infeasible,
    5 something is missing on this machine.
    """
