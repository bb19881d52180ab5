"""The verbs about streaming: bench."""

from functools import partial

import click

from outlast.cli.printing import echo, echo_json, json_option, print_fields


@click.group()
def stream() -> None:
    """Measure how a data set is streamed."""


@stream.command("bench")
@click.argument("manifest")
@click.option(
    "--seconds", type=click.FloatRange(min=0.5), default=20.0, show_default=True, help="For all of it."
)
@click.option("--batch", type=click.IntRange(1), default=256, show_default=True, help="Examples in a batch.")
@click.option("--length", type=click.IntRange(1), default=512, show_default=True, help="Of text: tokens.")
@click.option(
    "--image-size", type=click.IntRange(1), default=224, show_default=True, help="Of images: pixels."
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How long a training step takes, for the waiting share.",
)
@click.option("--split", default="train", show_default=True, help="Of the manifest.")
@click.option(
    "--cache-dir", help="Keep remote shards here.  [default: a temporary folder, deleted afterwards]"
)
@json_option
def bench(
    manifest: str,
    seconds: float,
    batch: int,
    length: int,
    image_size: int,
    step_seconds: float,
    split: str,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Measure a data set of text or images: the whole stream; store or disk, decoding and memory alone.

    Says in a sentence what limits it, and what to change.
    """
    from outlast.images.manifest import is_image_set
    from outlast.stream.bench import measure_stream
    from outlast.stream.config import StreamConfig

    measure = partial(measure_stream, seconds=seconds, step_seconds=step_seconds, split=split)
    if is_image_set(manifest):
        from outlast.images.config import ImagesConfig, ImageStreamConfig
        from outlast.images.stream import ImageStream

        config = ImageStreamConfig(
            manifest=manifest,
            packing="images",
            global_batch_size=batch,
            images=ImagesConfig(image_size=image_size),
            cache_dir=cache_dir,
        )
        rates = measure(config, open_stream=ImageStream, work="decoding").to_dict()
    else:
        rates = measure(
            StreamConfig(
                manifest=manifest, global_batch_size=batch, sequence_length=length, cache_dir=cache_dir
            )
        ).to_dict()
    if as_json:
        echo_json(rates)
        return
    verdict, source = rates.pop("verdict"), rates.pop("source")
    shown = {name.replace("_", " ").replace("store", source): value for name, value in rates.items()}
    print_fields(shown, as_json=False)
    echo(verdict)
