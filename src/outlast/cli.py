"""The command line: one function per verb. Parse, one library call, print.

Results go to standard output (``--json`` for scripts), everything else to standard error. Exit codes: 0 done,
1 failure, 2 usage or configuration, 75 preempted and resumable, 130 interrupted. Heavy imports stand inside
the verbs, so that ``outlast --help`` answers at once and the data half runs without jax.
"""

import json
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from outlast import __version__
from outlast.errors import EXIT_DONE, EXIT_FAILURE, EXIT_INTERRUPTED, OutlastError
from outlast.interchange.commands import export_tfrecord, import_tfrecord

_Command = Callable[..., Any]


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code.

    ``--debug``, anywhere among the arguments, adds the traceback of an error and the messages of level DEBUG.
    """
    debug = "--debug" in arguments
    words = [argument for argument in arguments if argument != "--debug"]
    try:
        return main.main(words, prog_name="outlast", standalone_mode=False, obj=debug) or EXIT_DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("outlast: interrupted; the same line again goes on with what is finished", err=True)
        return EXIT_INTERRUPTED
    except OutlastError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"outlast: {error}", err=True)
        return error.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        click.echo(
            f"outlast: unexpected {type(error).__name__}: {error}\n  do:       run again with --debug",
            err=True,
        )
        return EXIT_FAILURE


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.pass_obj
def main(debug: bool | None) -> None:
    """Train your own encoder, from raw text to a Hugging Face model, on machines that can be taken away.

    A recipe (TOML) describes data and run. Any key of it can be set with --set table.key=value. --debug,
    anywhere, shows the traceback of an error and, of train, each step and each part of a save.
    """
    from outlast.logs import set_up

    set_up(debug=bool(debug))


def _recipe_arguments(command: _Command) -> _Command:
    return click.argument("recipe", type=click.Path(path_type=Path))(_set_option(command))


_set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override a key of the recipe; may be given again. What is no TOML value is a string.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@main.command()
@_recipe_arguments
@click.option("--out", required=True, help="Folder or URL for the files: train.00000 and so on.")
@click.option(
    "--num-files",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Files that each split is divided into.",
)
@click.option(
    "--by",
    type=click.Choice(["documents", "bytes"]),
    default="documents",
    show_default=True,
    help="What the files share evenly.",
)
def corpus(recipe: Path, overrides: tuple[str, ...], out: str, num_files: int, by: Any) -> None:
    """Write the corpus as text: a sentence on each line, a blank line between documents.

    Needs the recipe's first table alone; corpus.sentences says what a sentence is (none: a line).
    """
    from outlast.corpus.write import write_corpus
    from outlast.recipe import read_recipe

    write_corpus(read_recipe(recipe, overrides).corpus, out, num_files=num_files, by=by)
    click.echo(out)


@main.command()
@_recipe_arguments
@click.option("--out", required=True, help="Folder or URL for tokenizer, shards and manifest.")
@click.option(
    "--task", metavar="I/N", help="Build only this share of the shards: 0/8 to 7/8.  [default: all of them]"
)
def prepare(recipe: Path, overrides: tuple[str, ...], out: str, task: str | None) -> None:
    """Make tokenizer and token shards from raw text.

    Continues where a killed run stopped.
    """
    from outlast.prepare import parse_task, prepare_data
    from outlast.recipe import read_recipe

    parsed = read_recipe(recipe, overrides)
    manifest = prepare_data(
        parsed.corpus, parsed.tokenizer, parsed.shards, out, cleaning=parsed.cleaning, task=parse_task(task)
    )
    click.echo(manifest if manifest else "this share is done; the manifest follows with the last one")


@main.command()
@_recipe_arguments
@click.option(
    "--run-dir", required=True, help="Folder or URL of the run; the same line again goes on with it."
)
@click.option(
    "--initialize-from",
    metavar="RUN_DIR",
    help="Start a new run from the parameters of another one; a run that goes on ignores it.  "
    "[default: random parameters]",
)
def train(recipe: Path, overrides: tuple[str, ...], run_dir: str, initialize_from: str | None) -> None:
    """Train, or go on training, until the recipe's last step.

    Exit code 75: preempted, everything is saved, run the same line again.
    """
    from outlast.recipe import read_recipe
    from outlast.run import train_run

    train_run(read_recipe(recipe, overrides), run_dir, initialize_from=initialize_from)


@main.command()
@click.argument("run_dir")
@click.option("--follow", is_flag=True, help="Go on with each new checkpoint, to the run's last step.")
@click.option(
    "--timeout-seconds",
    default=3600.0,
    show_default=True,
    help="With --follow: the longest wait for a new checkpoint, in seconds.",
)
@_set_option
@_json_option
def evaluate(
    run_dir: str, overrides: tuple[str, ...], as_json: bool, follow: bool, timeout_seconds: float
) -> None:
    """Evaluate a run's newest checkpoint on the held-out split.

    The loss is in nats per predicted token.
    """
    from outlast.run import evaluate_run, follow_run

    if not follow:
        _print_fields(evaluate_run(run_dir, overrides), as_json)
        return
    for result in follow_run(run_dir, overrides, timeout_seconds=timeout_seconds):
        _print_fields(result, as_json)


@main.command()
@click.argument("run_dir")
@click.argument("out", type=click.Path(path_type=Path))
def export(run_dir: str, out: Path) -> None:
    """Write a run's newest checkpoint as a Hugging Face model folder.

    Needs the run directory alone; the data set may be gone.
    """
    from outlast.run import export_run

    click.echo(export_run(run_dir, out))


@main.command("fill-mask")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, required=True)
@click.option("--top", default=5, show_default=True, help="Answers per mask.")
@_json_option
def fill_mask(model: Path, texts: tuple[str, ...], top: int, as_json: bool) -> None:
    """Answer what stands at [MASK], with an exported model.

    Scores are probabilities. With --json, one line for each text: a list of answers for each mask.
    """
    from outlast.inference import fill_mask as answer

    for text, masks in zip(texts, answer(model, list(texts), top=top), strict=True):
        if as_json:
            click.echo(json.dumps(masks, ensure_ascii=False))
        else:
            click.echo(text)
            for answers in masks:
                rows = [(f"{row['score']:.3f}", repr(row["token_str"]), row["sequence"]) for row in answers]
                _print_table(("score", "token", "sequence"), rows)


@main.group()
def shards() -> None:
    """Look at shards; exchange them with other trainers."""


@shards.command("show")
@click.argument("manifest")
@click.option("--dropped", is_flag=True, help="Show what cleaning dropped and changed, with examples.")
@_json_option
def shards_show(manifest: str, dropped: bool, as_json: bool) -> None:
    """Describe a data set."""
    from outlast.shards.summary import summarize
    from outlast.shards.verify import describe_manifest, read_cleaning_report

    if dropped:
        from outlast.cleaning.report import describe_report

        report = read_cleaning_report(manifest)
        click.echo(json.dumps(report, ensure_ascii=False) if as_json else "\n".join(describe_report(report)))
        return
    description = describe_manifest(manifest)
    _print_fields(description if as_json else summarize(description), as_json)


@shards.command("verify")
@click.argument("manifest")
@_json_option
def shards_verify(manifest: str, as_json: bool) -> int:
    """Check every byte of every shard against the manifest.

    Exit code 1 where something is wrong.
    """
    from outlast.shards.verify import verify_manifest

    return _print_problems(verify_manifest(manifest), as_json)


@shards.command("pair")
@click.argument("manifest")
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(5, 65_535),
    multiple=True,
    required=True,
    help="Tokens in an example, the three special ones included; may be given again.",
)
@click.option(
    "--passes",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="How often the corpus is cut, each time at other places.",
)
@click.option(
    "--short-probability",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Share of the documents, drawn in each pass, that are cut shorter.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random numbers.")
@click.option("--processes", type=click.IntRange(1), help="Side by side.  [default: one for each core]")
@click.option(
    "--task", metavar="I/N", help="Build only this share of the tables: 0/8 to 7/8.  [default: all of them]"
)
def shards_pair(
    manifest: str,
    lengths: tuple[int, ...],
    passes: int,
    short_probability: float,
    seed: int,
    processes: int | None,
    task: str | None,
) -> None:
    """Add sentence pairs of a length to a data set.

    No text is copied: pairs are offsets. Continues where a killed run stopped.
    """
    from outlast.prepare import parse_task
    from outlast.shards.config import PairsConfig, ShardsConfig, resolve_num_processes
    from outlast.shards.pair_build import add_pairs

    config = PairsConfig(lengths=lengths, num_passes=passes, short_probability=short_probability, seed=seed)
    num_processes = resolve_num_processes(ShardsConfig(num_processes=processes))
    is_done = add_pairs(manifest, config, num_processes=num_processes, task=parse_task(task))
    click.echo(manifest if is_done else "this share is done; the manifest follows with the last one")


shards.add_command(export_tfrecord)
shards.add_command(import_tfrecord)


@main.group()
def checkpoint() -> None:
    """Look at a run's checkpoints."""


@checkpoint.command("list")
@click.argument("run_dir")
@_json_option
def checkpoint_list(run_dir: str, as_json: bool) -> None:
    """List the committed checkpoints, newest first."""
    from outlast.checkpoint.inspect import describe_commits

    rows = describe_commits(run_dir)
    if as_json:
        click.echo(json.dumps(rows))
    else:
        cells = [
            (str(row["step"]), str(row["attempt"]), _size(row["size_bytes"]), row["state"]) for row in rows
        ]
        _print_table(("step", "attempt", "size", "state"), cells)


@checkpoint.command("verify")
@click.argument("run_dir")
@_json_option
def checkpoint_verify(run_dir: str, as_json: bool) -> int:
    """Check every byte of every committed checkpoint.

    Exit code 1 where something is wrong.
    """
    from outlast.checkpoint.inspect import verify_run

    return _print_problems(verify_run(run_dir), as_json)


@checkpoint.command("digest")
@click.argument("run_dir")
@_json_option
def checkpoint_digest(run_dir: str, as_json: bool) -> None:
    """Print the newest step and the sha256 over its parameters in name order."""
    from outlast.checkpoint.inspect import digest_run

    digest = digest_run(run_dir)
    click.echo(json.dumps(digest) if as_json else f"{digest['step']} {digest['sha256']}")


def _number(count: float) -> str:
    from outlast.logs import format_count

    return format_count(count)


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{_number(size_bytes)}B"


def _print_fields(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(fields, ensure_ascii=False))
        return
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(
            f"{name:<{width}}  {value:.6g}" if isinstance(value, float) else f"{name:<{width}}  {value}"
        )


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_problems(problems: Sequence[str], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"problems": list(problems)}, ensure_ascii=False))
    else:
        click.echo("\n".join(problems) if problems else "every byte is as it was written")
    return EXIT_FAILURE if problems else EXIT_DONE
