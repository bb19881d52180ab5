"""The verb about tokenizers: import."""

from pathlib import Path

import click

from outlast.cli.printing import echo


@click.group()
def tokenizer() -> None:
    """Use a tokenizer from elsewhere."""


@tokenizer.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", required=True, help="Folder or URL for the tokenizer: tokenizer.path in a recipe.")
@click.option(
    "--append-missing",
    is_flag=True,
    help="Give special pieces that it lacks new ids after its last one.  [default: an error names them]",
)
def tokenizer_import(path: Path, out: str, append_missing: bool) -> None:
    """Make a tokenizer of a file or folder of other libraries; its ids stay as they are.

    PATH is a sentencepiece model, a tokenizer.json, a vocab.txt with its tokenizer_config.json, a vocab.json
    with its merges.txt, or the folder of one of them.
    """
    from outlast.huggingface.digests import check_tokenizer
    from outlast.storage import open_store, split_url
    from outlast.tokenizer.importing import import_tokenizer

    folder, name = split_url(out.rstrip("/"))
    check_tokenizer(path)
    import_tokenizer(path, open_store(folder), name, append_missing=append_missing)
    echo(out)
