"""A device that runs out of memory, told as an error with the keys that help.

In: whatever runs compiled programs. Out: the same, or a ``RunError``. jax raises one kind of error for all
that goes wrong on a device; the status RESOURCE_EXHAUSTED tells this case. It may come while a program is
compiled, when it is started, or where its result is waited for.
"""

from collections.abc import Generator
from contextlib import contextmanager

import jax

from outlast.errors import RunError

_STATUS = "RESOURCE_EXHAUSTED"


@contextmanager
def explained_memory() -> Generator[None]:
    """Raise RunError, with what to do, where the device has too little memory. Also a decorator."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if _STATUS not in text:
            raise
        raise RunError(
            f"The device has too little memory: {text.splitlines()[0]}",
            remedy='raise training.num_microbatches, set training.remat to "layer", or raise mesh.fsdp where '
            "there are several devices: the same run goes on; or lower stream.global_batch_size or "
            "stream.sequence_length (the only two that help an evaluation), which makes it another run",
        ) from error
