"""Outlast: train your own encoder, from raw text to a Hugging Face model, on machines that can be taken away.

    outlast.read_recipe("RUN.toml")  ->  a Recipe, which the verbs take
    outlast.prepare_data(...)        ->  tokenizer, shards, manifest
    outlast.open_stream(...)         ->  batches of numpy arrays, for JAX, PyTorch or TensorFlow
    outlast.open_images(...)         ->  the same of images
    outlast.train_run(...)           ->  a trained state, resumable at any moment
    outlast.load_model(DIR)          ->  a callable from numpy arrays to numpy arrays

A name is imported when it is first used, so ``import outlast`` is free and the data half needs no jax.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outlast.version import __version__ as __version__

if TYPE_CHECKING:
    from outlast.errors import (
        CheckpointError,
        ConfigError,
        CorpusError,
        Interrupted,
        OutlastError,
        Preempted,
        RunError,
        ShardError,
        StorageError,
        TokenizerError,
    )
    from outlast.images.stream import open_images
    from outlast.inference import fill_mask, load_model
    from outlast.prepare.build import prepare_data
    from outlast.recipe import Recipe, make_recipe, read_recipe, read_run_recipe
    from outlast.run.evaluate import evaluate_run
    from outlast.run.export import export_run
    from outlast.run.import_model import import_model
    from outlast.run.train import train_run
    from outlast.stream.loader import open_stream

_MODULES = {
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "CorpusError": "errors",
    "Interrupted": "errors",
    "OutlastError": "errors",
    "Preempted": "errors",
    "RunError": "errors",
    "ShardError": "errors",
    "StorageError": "errors",
    "TokenizerError": "errors",
    "Recipe": "recipe",
    "make_recipe": "recipe",
    "read_recipe": "recipe",
    "read_run_recipe": "recipe",
    "prepare_data": "prepare.build",
    "open_stream": "stream.loader",
    "open_images": "images.stream",
    "evaluate_run": "run.evaluate",
    "export_run": "run.export",
    "import_model": "run.import_model",
    "train_run": "run.train",
    "fill_mask": "inference",
    "load_model": "inference",
}

__all__ = [  # noqa: RUF022  (in the order of the journey)
    "Recipe",
    "make_recipe",
    "read_recipe",
    "read_run_recipe",
    "prepare_data",
    "open_stream",
    "open_images",
    "import_model",
    "train_run",
    "evaluate_run",
    "export_run",
    "load_model",
    "fill_mask",
    "OutlastError",
    "ConfigError",
    "CorpusError",
    "TokenizerError",
    "ShardError",
    "StorageError",
    "CheckpointError",
    "RunError",
    "Preempted",
    "Interrupted",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
