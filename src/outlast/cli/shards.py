"""The verbs about shards: show, verify, pair, and those of the formats they are exchanged in."""

import click

from outlast.cli.images import import_tars, pack_images, repack_images
from outlast.cli.printing import echo, echo_json, json_option, print_fields, print_problems, verify_option
from outlast.cli.tfrecord import export_tfrecord, import_tfrecord
from outlast.errors import one_line


@click.group()
def shards() -> None:
    """Look at shards; exchange them with other trainers."""


@shards.command("show")
@click.argument("manifest")
@click.option("--dropped", is_flag=True, help="Show what cleaning dropped and changed, with examples.")
@json_option
def shards_show(manifest: str, dropped: bool, as_json: bool) -> None:
    """Describe a data set."""
    from outlast.images.manifest import is_image_set
    from outlast.images.verify import describe_images, summarize_images
    from outlast.shards.describe import describe_manifest, summarize

    if dropped:
        from outlast.cleaning.report import describe_report
        from outlast.prepare.finish import read_cleaning_report

        report = read_cleaning_report(manifest)
        if as_json:
            echo_json(report)
        else:
            echo("\n".join(map(one_line, describe_report(report))))
        return
    if is_image_set(manifest):
        found = describe_images(manifest)
        print_fields(found if as_json else summarize_images(found), as_json)
        return
    description = describe_manifest(manifest)
    print_fields(description if as_json else summarize(description), as_json)


@shards.command("verify")
@click.argument("manifest")
@json_option
def shards_verify(manifest: str, as_json: bool) -> int:
    """Check every byte of every shard against the manifest.

    Exit code 1 where something is wrong.
    """
    from outlast.images.manifest import is_image_set
    from outlast.images.verify import verify_images
    from outlast.shards.verify import verify_manifest

    verify = verify_images if is_image_set(manifest) else verify_manifest
    return print_problems(verify(manifest), as_json)


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
@verify_option
def shards_pair(
    manifest: str,
    lengths: tuple[int, ...],
    passes: int,
    short_probability: float,
    seed: int,
    processes: int | None,
    task: str | None,
    verify: bool,
) -> None:
    """Add sentence pairs of a length to a data set.

    No text is copied: pairs are offsets. Continues where a killed run stopped.
    """
    from outlast.build.tasks import parse_task
    from outlast.prepare.pairs import add_pairs
    from outlast.shards.config import PairsConfig, ShardsConfig, resolve_num_processes

    config = PairsConfig(lengths=lengths, num_passes=passes, short_probability=short_probability, seed=seed)
    num_processes = resolve_num_processes(ShardsConfig(num_processes=processes))
    is_done = add_pairs(manifest, config, num_processes=num_processes, task=parse_task(task), verify=verify)
    echo(manifest if is_done else "this share is done; the manifest follows with the last one")


shards.add_command(import_tars)
shards.add_command(pack_images)
shards.add_command(repack_images)
shards.add_command(export_tfrecord)


shards.add_command(import_tfrecord)
