"""What the verbs share: options that several take, and how results are printed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from outlast.errors import EXIT_DONE, EXIT_FAILURE, one_line, printable_json, printable_text
from outlast.logs import tell_end

_Command = Callable[..., Any]


def echo(text: object, *, err: bool = False) -> None:
    """Print a result, or with ``err`` an error; the one way in which a verb prints. What a name or a text of
    the data tells a terminal to do is shown, not done.
    """
    click.echo(printable_text(str(text)), err=err)


def echo_json(value: Any) -> None:
    """Print a value as a line of JSON, in which what a terminal would take for an order is escaped."""
    click.echo(printable_json(json.dumps(value, ensure_ascii=False)))


def recipe_arguments(command: _Command) -> _Command:
    """Give a verb the argument RECIPE and the option --set."""
    return click.argument("recipe", type=click.Path(path_type=Path))(set_option(command))


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override a key of the recipe; may be given again. What is no TOML value is a string.",
)


def checkpoint_options(command: _Command) -> _Command:
    """Give a verb the options --step and --best."""
    step = click.option(
        "--step", type=int, metavar="N", help="Take the checkpoint of this step.  [default: the newest]"
    )
    best = click.option(
        "--best", is_flag=True, help="Take the one whose evaluation was best by checkpoint.best_metric."
    )
    return step(best(command))


verify_option = click.option(
    "--verify",
    is_flag=True,
    help="Where the result is complete already, compare the digest of every file, not its size alone.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def format_size(size_bytes: int | None) -> str:
    """Format a number of bytes, unknown as a question mark."""
    from outlast.logs import format_count

    return "?" if size_bytes is None else f"{format_count(size_bytes)}B"


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    """Print names and values, one a line, or as JSON."""
    if as_json:
        echo_json(fields)
        return
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        shown = f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
        echo(f"{one_line(name):<{width}}  {shown}")


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_data_set(manifest: str, recipe: str | Path, *, is_named: bool = False) -> None:
    """Print the URL of a data set that was made, and say how a run is trained on it.

    Args:
        is_named: whether the recipe names this very data set.
    """
    echo(manifest)
    named = () if is_named else ("--set", f"stream.manifest={manifest}")
    tell_end("the data set is complete", ("train", recipe, "--run-dir", "run", *named))


def print_problems(
    problems: Sequence[str], as_json: bool, *, not_looked_at: Sequence[str] | None = None
) -> int:
    """Print what is wrong, or that nothing is; return the exit code.

    Args:
        not_looked_at: what is there and has no digest; None: the verb does not say.
    """
    if as_json:
        free = {} if not_looked_at is None else {"not_looked_at": list(not_looked_at)}
        echo_json({"problems": list(problems), **free})
    else:
        echo("\n".join(map(one_line, problems)) if problems else "every byte is as it was written")
        if not_looked_at:
            echo(f"not looked at, for it is for people and has no digest: {', '.join(not_looked_at)}")
    return EXIT_FAILURE if problems else EXIT_DONE
