"""The verbs ``outlast shards export-tfrecord`` and ``import-tfrecord``: parse, one library call, print."""

import click

from outlast.cli.printing import echo, print_data_set, verify_option

_processes_option = click.option(
    "--processes", type=click.IntRange(min=1), help="Files in work at once.  [default: one for each core]"
)


@click.command("export-tfrecord")
@click.argument("manifest")
@click.option("--out", required=True, help="Folder or URL for the files and their manifest.")
@click.option(
    "--features",
    type=click.Choice(["bert", "bigbird", "tokens", "classifier"]),
    required=True,
    help="What a record holds: BERT's 7 features with static masks, BigBird's 6, ids and attention mask "
    "alone, or a classifier's 5.",
)
@click.option("--split", default="train", show_default=True, help="Of the data set.")
@click.option(
    "--packing",
    type=click.Choice(["blocks", "pairs"]),
    help="Runs of tokens, or the data set's pairs, every pass of them.  [default: pairs where there are some "
    "and the features have a place for them]",
)
@click.option(
    "--sequence-length", type=click.IntRange(min=1), help="Tokens of a record.  [default: 128, or the data's]"
)
@click.option(
    "--special-tokens/--no-special-tokens",
    default=True,
    show_default=True,
    help="Frame records as [CLS] tokens [SEP].",
)
@click.option(
    "--mask-probability",
    type=float,
    default=0.15,
    show_default=True,
    help="Share of a record's tokens that are predicted.",
)
@click.option(
    "--max-predictions",
    type=click.IntRange(min=1),
    help="Prediction slots of a record.  [default: probability times length]",
)
@click.option(
    "--whole-words",
    is_flag=True,
    help="Predict all tokens of a word or none; the data must tell where words begin (shards.words).",
)
@click.option(
    "--random-special-ids",
    is_flag=True,
    help="Let random replacements be special ids, too, as BERT's own code does.",
)
@click.option("--seed", default=0, show_default=True, help="Of masks and order.")
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Records in the order of training's first epoch, or in that of the manifest.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zlib"]),
    default="none",
    show_default=True,
    help="Of the files.",
)
@click.option(
    "--records-per-shard",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Of every file but the last.",
)
@_processes_option
@verify_option
def export_tfrecord(manifest: str, out: str, processes: int | None, verify: bool, **options: object) -> None:
    """Write a data set as TFRecord files for other trainers.

    Files are named dataset-<number>-<records>.tfrecord. The same line again continues a killed export.
    """
    from outlast.interchange.export_config import ExportConfig
    from outlast.interchange.export_tfrecord import export_tfrecord as export

    echo(export(manifest, out, ExportConfig(**options), num_processes=processes, verify=verify))  # pyright: ignore[reportArgumentType]


@click.command("import-tfrecord")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", required=True, help="Folder or URL for tokenizer, shards and manifest.")
@click.option("--tokenizer", required=True, help="Folder of the tokenizer that the records were made with.")
@click.option(
    "--as",
    "target",
    type=click.Choice(["examples", "tokens"]),
    default="examples",
    show_default=True,
    help="Keep the records as they are, masks included; or undo the masks and make token shards.",
)
@click.option(
    "--validation",
    "validation_files",
    multiple=True,
    help="A file of the held-out split; may be given again.",
)
@click.option(
    "--features",
    type=click.Choice(["bert", "bigbird", "tokens", "classifier"]),
    help="What the records hold.  [default: as the first one shows]",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(min=1),
    help="Tokens that every record must have.  [default: as the first one has]",
)
@click.option(
    "--max-predictions",
    type=click.IntRange(min=1),
    help="Prediction slots that every record must have.  [default: as the first one has]",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zlib"]),
    help="Of the files.  [default: as their first bytes show]",
)
@_processes_option
@verify_option
def import_tfrecord(
    files: tuple[str, ...],
    out: str,
    tokenizer: str,
    validation_files: tuple[str, ...],
    processes: int | None,
    verify: bool,
    **options: object,
) -> None:
    """Make a data set of TFRecord files of training examples.

    The manifest.json of an export stands for all its files. The same line again continues a killed import.
    """
    from outlast.interchange.import_tfrecord import ImportConfig
    from outlast.interchange.import_tfrecord import import_tfrecord as import_files

    config = ImportConfig(**options)  # pyright: ignore[reportArgumentType]
    manifest = import_files(
        files,
        out,
        config,
        tokenizer=tokenizer,
        validation_files=validation_files,
        num_processes=processes,
        verify=verify,
    )
    print_data_set(manifest, "RUN.toml")
