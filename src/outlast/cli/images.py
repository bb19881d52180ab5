"""The verbs ``outlast shards import``, ``images`` and ``repack``: parse, one library call, print."""

from typing import Any

import click

from outlast.cli.printing import print_data_set, verify_option

_on_bad_option = click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What becomes of an example without image or label, and of a link or an absolute name in a tar: an "
    "error, or left out and counted.",
)
_processes_option = click.option(
    "--processes", type=click.IntRange(min=1), help="Shards in work at once.  [default: one for each core]"
)


@click.command("import")
@click.argument("tars", nargs=-1, required=True)
@click.option("--out", required=True, help="Folder or URL for indexes, manifest and what lies elsewhere.")
@click.option("--validation", multiple=True, metavar="TAR", help="Of the held-out split; may be given again.")
@click.option("--test", multiple=True, metavar="TAR", help="Of the test split; may be given again.")
@click.option("--image", help="Fields of an image, the first one present.  [default: ppm;jpg;jpeg;png]")
@click.option(
    "--label",
    help="Fields of a label: an integer as text, or FIELD:KEY of a JSON object.  [default: cls;json:label]",
)
@click.option("--copy", is_flag=True, help="Copy tars that are named by a URL into --out, too.")
@_on_bad_option
@_processes_option
@verify_option
def import_tars(
    tars: tuple[str, ...],
    out: str,
    validation: tuple[str, ...],
    test: tuple[str, ...],
    processes: int | None,
    verify: bool,
    copy: bool,
    **rules: Any,
) -> None:
    """Make a data set of WebDataset tars, or of any tars that hold images with labels.

    TAR is a path or URL and may use braces, train-{000000..000639}.tar, or be a pattern in quotes,
    's3://bucket/train-*.tar'. Tars that lie in --out stay as they are; so do those named by a URL, which are
    read where they lie, unless --copy is given. Others are copied there. The same line again continues a
    killed import.
    """
    from outlast.images.import_tars import import_tars as import_all
    from outlast.images.records import FieldRules

    given = {name: value for name, value in rules.items() if value is not None}
    splits = {"train": tars, "validation": validation, "test": test}
    url = import_all(splits, out, FieldRules(**given), copy=copy, num_processes=processes, verify=verify)
    print_data_set(url, "RUN.toml")


@click.command("images")
@click.argument("source")
@click.option("--out", required=True, help="Folder or URL for tars, indexes and manifest.")
@click.option("--validation", metavar="SOURCE", help="Of the held-out split.  [default: no such split]")
@click.option("--test", metavar="SOURCE", help="Of the test split.  [default: no such split]")
@click.option(
    "--images-per-shard",
    type=click.IntRange(min=1, max=2**20),
    default=10_000,
    show_default=True,
    help="At most.",
)
@click.option("--shard-bytes", type=click.IntRange(min=1), default=2**28, show_default=True, help="At most.")
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Mix the files of a split before they are divided; rows of tables keep their order.",
)
@click.option("--seed", default=0, show_default=True, help="Of the mixing.")
@_on_bad_option
@_processes_option
@verify_option
def pack_images(
    source: str,
    out: str,
    validation: str | None,
    test: str | None,
    images_per_shard: int,
    shard_bytes: int,
    shuffle: bool,
    seed: int,
    on_bad: Any,
    processes: int | None,
    verify: bool,
) -> None:
    """Make a data set of images: a folder with a folder for each class, a list, or tables.

    A list is a .csv, .tsv or .jsonl file with the columns image and label; tables are Parquet files, or a
    folder of one split that the library datasets saved. Images are stored as they are, in tars that
    WebDataset and plain tar read. The same line again continues a killed build.
    """
    from outlast.images.pack import PackConfig
    from outlast.images.pack import pack_images as pack

    config = PackConfig(
        most_images=images_per_shard,
        most_bytes=shard_bytes,
        seed=seed if shuffle else None,
        on_bad=on_bad,
    )
    given = {"train": source, "validation": validation, "test": test}
    sources = {split: path for split, path in given.items() if path}
    print_data_set(pack(sources, out, config, num_processes=processes, verify=verify), "RUN.toml")


@click.command("repack")
@click.argument("manifest")
@click.option("--out", required=True, help="Folder or URL for tars, indexes and manifest.")
@click.option(
    "--store",
    type=click.Choice(["pixels"]),
    default="pixels",
    show_default=True,
    expose_value=False,
    help="Decoded pictures, the one way there is.",
)
@click.option(
    "--short-side",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="A picture whose shorter side is longer is shrunk.",
)
@click.option(
    "--max-pixels",
    type=click.IntRange(min=1),
    default=2**26,
    show_default=True,
    help="A picture of more pixels stays as it is.",
)
@_processes_option
@verify_option
def repack_images(
    manifest: str, out: str, short_side: int, max_pixels: int, processes: int | None, verify: bool
) -> None:
    """Store a data set of images anew, to be read faster: the same examples, labels and order.

    Pictures are decoded once and shrunk. What cannot be decoded stays as it is. The same line again continues
    a killed run.
    """
    from outlast.images.pixels import RawPixels
    from outlast.images.repack import repack_images as repack

    pixels = RawPixels(short_side=short_side, max_pixels=max_pixels)
    print_data_set(repack(manifest, out, pixels, num_processes=processes, verify=verify), "RUN.toml")
