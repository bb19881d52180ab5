"""The verb ``outlast verify``: is it still what was written?"""

import click

from outlast.cli.printing import json_option, print_problems


@click.command("verify")
@click.argument("path")
@json_option
def verify(path: str, as_json: bool) -> int:
    """Check every byte of what Outlast wrote: is it still the one that was written?

    PATH is the folder or URL of a run or an import, of a data set of text or images, of a tokenizer, of an
    exported model, or of a cache of shards. Exit code 1 where something is wrong, with a line for each file;
    2 where nothing says what should lie there. What has no digest is named as not looked at.
    """
    from outlast.run.verify import not_looked_at, verify_anything

    return print_problems(verify_anything(path), as_json, not_looked_at=not_looked_at(path))
