"""The stream from TensorFlow: text or images, and a resume that needs one integer.

    python examples/stream_from_tensorflow.py MANIFEST --steps 100
    python examples/stream_from_tensorflow.py MANIFEST --steps 100 --start-step 100

MANIFEST is the manifest.json of `outlast prepare` (text), `outlast shards import` or `outlast shards images`.
The step is all there is to save: TensorFlow's own checkpoints of iterators are not needed.
"""

import argparse
import hashlib
import itertools

import outlast


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest")
    parser.add_argument("--images", type=int, metavar="SIZE", help="the data set holds images")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--start-step", type=int, default=0)
    arguments = parser.parse_args()

    options = {"global_batch_size": arguments.batch, "seed": 1, "start_step": arguments.start_step}
    if arguments.images:
        batches = outlast.open_images(arguments.manifest, image_size=arguments.images, **options)
    else:
        batches = outlast.open_stream(arguments.manifest, sequence_length=64, **options)
    first = next(batches)  # before TensorFlow is loaded: a mistake in the arguments shows at once

    import tensorflow as tf

    dataset = tf.data.Dataset.from_generator(
        lambda: itertools.chain([first], batches),
        output_signature={name: tf.TensorSpec(array.shape, array.dtype) for name, array in first.items()},
    ).prefetch(2)
    for step, batch in enumerate(dataset.take(arguments.steps), arguments.start_step):
        if arguments.images:
            batch["images"] = tf.keras.applications.imagenet_utils.preprocess_input(
                tf.cast(batch["images"], tf.float32), mode="torch"
            )
        content = b"".join(batch[name].numpy().tobytes() for name in first)
        shapes = (f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
        print(step, *shapes, hashlib.sha256(content).hexdigest()[:12])


if __name__ == "__main__":
    main()
