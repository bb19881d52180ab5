"""A device without enough memory: told with its remedy wherever jax notices it; other errors stay theirs."""

import jax
import jax.numpy as jnp
import pytest

from outlast.errors import RunError
from outlast.training.out_of_memory import explained_memory

MORE_THAN_THERE_IS = 2**48  # more bytes than a process can address, so no machine tries


@explained_memory()
def wait_for_too_much() -> None:
    jax.jit(lambda x: jnp.full(MORE_THAN_THERE_IS, x))(1.0).block_until_ready()


def test_too_little_memory_is_explained() -> None:
    for _ in range(2):  # the decorator serves more than one call
        with pytest.raises(RunError, match="too little memory: RESOURCE_EXHAUSTED: Out of memory") as caught:
            wait_for_too_much()
        for key in ("num_microbatches", "remat", "global_batch_size", "sequence_length"):
            assert key in str(caught.value)


def test_what_else_goes_wrong_on_a_device_stays_what_it_is() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"), explained_memory():
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: something else")
