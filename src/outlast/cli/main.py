"""The command line: one function per verb. Parse, one library call, print.

Results go to standard output (``--json`` for scripts), everything else to standard error. Exit codes: 0 done,
1 failure, 2 usage or configuration, 75 preempted and resumable, 130 interrupted. Heavy imports stand inside
the verbs, so that ``outlast --help`` answers at once and the data half runs without jax.
"""

import io
import os
import signal
import threading
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

import click

from outlast.cli.checkpoint import checkpoint
from outlast.cli.corpus import corpus, prepare
from outlast.cli.printing import echo
from outlast.cli.recipe import init, recipe
from outlast.cli.run import evaluate, export, fill_mask, import_, train
from outlast.cli.shards import shards
from outlast.cli.stream import stream
from outlast.cli.tokenizer import tokenizer
from outlast.cli.verify import verify
from outlast.errors import (
    EXIT_DONE,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    OutlastError,
    explained,
    one_line,
)
from outlast.version import __version__


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code.

    ``--debug``, anywhere among the arguments, adds the traceback of an error and the messages of level DEBUG.
    """
    debug = "--debug" in arguments
    words = [argument for argument in arguments if argument != "--debug"]
    if not debug:
        os.environ["RUST_BACKTRACE"] = "0"  # a library's panic is told in words; forty lines would bury them
    try:
        with _told_of_sigterm():
            return main.main(words, prog_name="outlast", standalone_mode=False, obj=debug) or EXIT_DONE
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = click.NoSuchOption(error.option_name, possibilities=_nearest_option(error), ctx=error.ctx)
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        was_told = isinstance(error, _Told) or isinstance(error.__cause__, _Told)
        how = "asked to end" if was_told else "interrupted"
        echo(f"outlast: {how}; the same line again goes on with what is finished", err=True)
        return EXIT_PREEMPTED if was_told else EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            echo(traceback.format_exc(), err=True)
        known = error if isinstance(error, OutlastError) else explained(error)
        unexpected = (
            f"unexpected {type(error).__name__}: {one_line(str(error))}\n  do:       run again with --debug"
        )
        echo(f"outlast: {known or unexpected}", err=True)
        return known.exit_code if known else EXIT_FAILURE


class _Told(KeyboardInterrupt):
    """SIGTERM: somebody takes the machine away. What ends a verb in the middle ends it as Ctrl-C does."""


@contextmanager
def _told_of_sigterm() -> Generator[None]:
    """Make SIGTERM an exception, unless somebody listens already. Training listens in its own way, inside."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def tell(*_: object) -> None:
        raise _Told

    signal.signal(signal.SIGTERM, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _nearest_option(error: click.NoSuchOption) -> list[str]:
    """Return the option that an unknown one is a mistyping of, none where it is of none: click's own guess
    counts the dashes as letters in common, and so takes ``--step`` for ``--help``.
    """
    command = error.ctx.command if error.ctx else main
    known = [name for param in command.params for name in param.opts if name.startswith("--")]
    words = {name.lstrip("-"): name for name in (*known, "--help")}
    return [words[word] for word in get_close_matches(error.option_name.lstrip("-"), words, n=1)]


class Journey(click.Group):
    """Verbs in the order in which they are used, as they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Journey, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.pass_obj
def main(debug: bool | None) -> None:
    """Train your own encoder, from raw text to a Hugging Face model, on machines that can be taken away.

    A recipe (TOML) describes data and run. Any key of it can be set with --set table.key=value. --debug,
    anywhere, shows the traceback of an error and, of train, each step and each part of a save.
    """
    from outlast.logs import set_up

    set_up(debug=bool(debug))


for verb in (
    init,
    recipe,
    corpus,
    prepare,
    shards,
    tokenizer,
    stream,
    import_,
    train,
    checkpoint,
    evaluate,
    export,
    fill_mask,
    verify,
):
    main.add_command(verb)
