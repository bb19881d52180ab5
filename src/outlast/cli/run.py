"""The verbs about a run and what comes of it: import, train, evaluate, export, fill-mask."""

import json
from pathlib import Path
from typing import Any

import click

from outlast.cli.printing import (
    checkpoint_options,
    echo,
    echo_json,
    json_option,
    print_fields,
    print_table,
    recipe_arguments,
    set_option,
)
from outlast.logs import tell_end


@click.command()
@recipe_arguments
@click.option(
    "--run-dir", required=True, help="Folder or URL of the run; the same line again goes on with it."
)
@click.option(
    "--initialize-from",
    metavar="RUN_DIR",
    help="Start a new run from the parameters of another one, or of an import; a run that goes on ignores "
    "it.  [default: random parameters]",
)
@click.option(
    "--initialize-step",
    type=int,
    metavar="N",
    help="Of its checkpoints take that of this step.  [default: the newest]",
)
@click.option("--initialize-best", is_flag=True, help="Of its checkpoints take the best one.")
@click.option(
    "--other-tokenizer",
    is_flag=True,
    help="Start from them although the data were prepared with another tokenizer.",
)
def train(recipe: Path, overrides: tuple[str, ...], run_dir: str, **start: Any) -> None:
    """Train, or go on training, until the recipe's last step.

    Exit code 75: preempted, everything is saved, run the same line again.
    """
    from outlast.training.preemption import Notice

    with Notice() as notice:  # listens before jax is imported, which takes seconds
        from outlast.recipe import read_recipe
        from outlast.run.checkpoints import commands_behind
        from outlast.run.train import train_run

        read = read_recipe(recipe, overrides)
        train_run(read, run_dir, **start, notice=notice)
    tell_end(f"the run is complete: {run_dir}", *commands_behind(run_dir))


def _export_line(run_dir: str) -> tuple[str, ...]:
    return ("export", run_dir, f"{run_dir.rstrip('/').rpartition('/')[2]}-model")


@click.command()
@click.argument("run_dir")
@checkpoint_options
@click.option("--follow", is_flag=True, help="Go on with each new checkpoint, to the run's last step.")
@click.option(
    "--timeout-seconds",
    default=3600.0,
    show_default=True,
    help="With --follow: the longest wait for a new checkpoint, in seconds.",
)
@set_option
@json_option
def evaluate(
    run_dir: str,
    step: int | None,
    best: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    follow: bool,
    timeout_seconds: float,
) -> None:
    """Evaluate a run's newest checkpoint, or another one, on the whole held-out split.

    The loss is in nats per predicted token, of pictures per picture. --set training.evaluation_examples=N
    reads only N examples, spread evenly, as evaluations during training may.
    """
    from outlast.run.evaluate import evaluate_run, follow_run

    if follow and (best or step is not None):
        raise click.UsageError("--follow evaluates each new checkpoint: leave --step and --best out.")
    if follow:
        for result in follow_run(run_dir, overrides, timeout_seconds=timeout_seconds):
            _print_evaluation(result, as_json)
    else:
        _print_evaluation(evaluate_run(run_dir, overrides, step=step, best=best), as_json)
    if not as_json:
        which = ["--best"] if best else [] if step is None else ["--step", str(step)]
        tell_end(f"evaluated: {run_dir}", (*_export_line(run_dir), *which))


def _print_evaluation(result: dict[str, Any], as_json: bool) -> None:
    """Print an evaluation; as text, each source of a mixture has a line."""
    sources: dict[str, dict[str, float]] = {} if as_json else result.get("sources", {})
    lines = {
        f"source {name}": f"loss {fields['loss']:.6g}, {fields['num_predictions']} predictions"
        for name, fields in sources.items()
    }
    print_fields({**{k: v for k, v in result.items() if as_json or k != "sources"}, **lines}, as_json)


@click.command()
@click.argument("run_dir")
@click.argument("out", type=click.Path(path_type=Path))
@checkpoint_options
def export(run_dir: str, out: Path, step: int | None, best: bool) -> None:
    """Write a run's newest checkpoint, or another one, as a Hugging Face model folder.

    Needs the run directory alone; the data set may be gone.
    """
    from outlast.run.export import export_run
    from outlast.storage.regular import read_whole

    out = export_run(run_dir, out, step=step, best=best)
    echo(out)
    is_of_images = (out / "preprocessor_config.json").exists()
    command = () if is_of_images else (("fill-mask", out, "Text with a [MASK]."),)
    of: dict[str, Any] = json.loads(read_whole(out / "outlast.json"))["provenance"]
    tell_end(f"exported step {of['step']}, {of['checkpoint']}: {out}", *command)


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Tokenizer's file or folder.  [default: the one in FOLDER]",
)
def import_(folder: Path, out: str, tokenizer: Path | None) -> None:
    """Make a Hugging Face model the start of further training.

    FOLDER holds config.json, model.safetensors and the tokenizer of a BERT, RoBERTa, BigBird or ModernBERT,
    or the image processor of a ResNet. OUT is what `train --initialize-from` takes; OUT/recipe.toml holds the
    tables for the recipe.
    """
    from outlast.run.import_model import import_model

    echo(import_model(folder, out, tokenizer=tokenizer))
    start = ("train", "RUN.toml", "--run-dir", "RUN", "--initialize-from", out)
    tell_end(f"imported: {out}; the tables for RUN.toml are in {out.rstrip('/')}/recipe.toml", start)


@click.command("fill-mask")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, required=True)
@click.option("--top", default=5, show_default=True, help="Answers per mask.")
@json_option
def fill_mask(model: Path, texts: tuple[str, ...], top: int, as_json: bool) -> None:
    """Answer what stands at [MASK], with an exported model.

    Scores are probabilities. With --json, one line for each text: a list of answers for each mask.
    """
    from outlast.inference.text import fill_mask as answer

    for text, masks in zip(texts, answer(model, list(texts), top=top), strict=True):
        if as_json:
            echo_json(masks)
        else:
            echo(text)
            for answers in masks:
                rows = [(f"{row['score']:.3f}", repr(row["token_str"]), row["sequence"]) for row in answers]
                print_table(("score", "token", "sequence"), rows)
