"""The verbs about a run's checkpoints: list, verify, digest, recover."""

from typing import Any

import click

from outlast.cli.printing import (
    checkpoint_options,
    echo,
    echo_json,
    format_size,
    json_option,
    print_problems,
    print_table,
)


@click.group()
def checkpoint() -> None:
    """Look at a run's checkpoints."""


@checkpoint.command("list")
@click.argument("run_dir")
@json_option
def checkpoint_list(run_dir: str, as_json: bool) -> None:
    """List the committed checkpoints, newest first.

    With the metric that says which is the best, over how many held-out examples, and why each is kept.
    """
    from outlast.run.checkpoints import list_checkpoints

    rows = list_checkpoints(run_dir)
    if as_json:
        echo_json(rows)
        return
    metric = next((row["metric"] for row in rows if row["metric"]), "metric")
    header = ("step", "attempt", "size", metric, "examples", "which", "kept because", "state")
    print_table(header, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    evaluation: dict[str, Any] = row["evaluation"] or {}
    value = evaluation.get(row["metric"])
    return (
        str(row["step"]),
        str(row["attempt"]),
        format_size(row["size_bytes"]),
        "-" if value is None else f"{value:.4f}",
        str(evaluation.get("num_examples", "-")),
        ", ".join(name for name in ("newest", "best") if row[name]) or "-",
        ", ".join(row["kept_because"]) or "-",
        row["state"],
    )


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
@checkpoint_options
@json_option
def checkpoint_digest(run_dir: str, step: int | None, best: bool, as_json: bool) -> None:
    """Print a checkpoint's step and the sha256 over its parameters in name order."""
    from outlast.run.checkpoints import digest_run

    digest = digest_run(run_dir, step=step, best=best)
    if as_json:
        echo_json(digest)
    else:
        echo(f"{digest['step']} {digest['sha256']}")


@checkpoint.command("recover")
@click.argument("run_dir")
@click.option(
    "--go-on-from",
    type=click.IntRange(0),
    metavar="STEP",
    help="Give up what is lost, and let the run go on from this step.  [default: nothing is given up]",
)
@json_option
def checkpoint_recover(run_dir: str, go_on_from: int | None, as_json: bool) -> int:
    """Make lost commits again, as far as the data are whole.

    For a run that stops since its newest checkpoint is gone. Nothing is deleted. Exit code 1 where it is
    still missing.
    """
    from dataclasses import asdict

    from outlast.checkpoint.recover import recover_run
    from outlast.logs import log

    found = recover_run(run_dir, go_on_from=go_on_from, report=log.warning)
    if as_json:
        echo_json(asdict(found))
    else:
        echo(f"rebuilt: {_listed(found.rebuilt)}; checkpoints that are there: {_listed(found.steps)}")
        if found.lost_step is not None and found.steps:
            give_up = f"outlast checkpoint recover {run_dir} --go-on-from {found.steps[-1]}"
            echo(f"Step {found.lost_step} is still missing. To give it up: {give_up}")
        elif found.lost_step is not None:
            echo(f"Step {found.lost_step} is lost with all before it: start anew with another --run-dir.")
    return 1 if found.lost_step is not None else 0


def _listed(steps: list[int]) -> str:
    return ", ".join(f"step {step}" for step in steps) or "none"
