"""The verbs about a run's checkpoints: list, verify, digest."""

import json

import click

from outlast.cli.printing import format_size, json_option, print_problems, print_table


@click.group()
def checkpoint() -> None:
    """Look at a run's checkpoints."""


@checkpoint.command("list")
@click.argument("run_dir")
@json_option
def checkpoint_list(run_dir: str, as_json: bool) -> None:
    """List the committed checkpoints, newest first."""
    from outlast.checkpoint.inspect import describe_commits

    rows = describe_commits(run_dir)
    if as_json:
        click.echo(json.dumps(rows))
    else:
        cells = [
            (str(row["step"]), str(row["attempt"]), format_size(row["size_bytes"]), row["state"])
            for row in rows
        ]
        print_table(("step", "attempt", "size", "state"), cells)


@checkpoint.command("verify")
@click.argument("run_dir")
@json_option
def checkpoint_verify(run_dir: str, as_json: bool) -> int:
    """Check every byte of every committed checkpoint.

    Exit code 1 where something is wrong.
    """
    from outlast.checkpoint.inspect import verify_run

    return print_problems(verify_run(run_dir), as_json)


@checkpoint.command("digest")
@click.argument("run_dir")
@json_option
def checkpoint_digest(run_dir: str, as_json: bool) -> None:
    """Print the newest step and the sha256 over its parameters in name order."""
    from outlast.checkpoint.inspect import digest_run

    digest = digest_run(run_dir)
    click.echo(json.dumps(digest) if as_json else f"{digest['step']} {digest['sha256']}")
