"""Our arrays under Hugging Face's names, and back.

In: a table of parameters, and arrays by name on one side. Out: the same arrays by name on the other. Layers
are stacked here and separate there; kernels are (in, out), or (in, parts, out), here and (out, in) there;
those of convolutions (height, width, in, out) here and (out, in, height, width) there. Nothing is rounded or
cast.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from outlast.errors import OutlastError
from outlast.models.params import LAYERS_AXIS, Param, ParamTable, flatten, with_split_axis

NamedArrays: TypeAlias = dict[str, NDArray[Any]]


def to_huggingface(table: ParamTable, params: Mapping[str, NDArray[Any]]) -> NamedArrays:
    """Return the parameters under Hugging Face's names.

    Args:
        table: the model's parameters.
        params: flat; the names of ``flatten(table)``.

    Raises:
        OutlastError: parameters that are missing, unknown or of another shape.
    """
    flat: dict[str, Param] = flatten(table)
    _check_names(set(flat), set(params))
    tensors: NamedArrays = {}
    for name, param in flat.items():
        whole = with_split_axis(params[name], param.shape)
        _check_shape(name, whole.shape, param.shape)
        for hf_name, index in _places(param):
            array = whole if index is None else whole[index]
            tensors[hf_name] = np.ascontiguousarray(_to_torch(array) if param.hf_transposed else array)
    return tensors


def from_huggingface(table: ParamTable, tensors: Mapping[str, NDArray[Any]]) -> NamedArrays:
    """Return float32 parameters, flat, under our names. Tensors the table does not name are left out.

    Raises:
        OutlastError: tensors that are missing, of another shape or not finite.
    """
    flat: dict[str, Param] = flatten(table)
    places = {name: list(_places(param)) for name, param in flat.items()}
    missing = [hf_name for found in places.values() for hf_name, _ in found if hf_name not in tensors]
    if missing:
        raise OutlastError(
            f"The weights lack {len(missing)} tensors: "
            + ", ".join(missing[:5])
            + ("..." if missing[5:] else "")
        )
    params: NamedArrays = {}
    not_finite: list[str] = []
    for name, param in flat.items():
        parts: list[NDArray[Any]] = []
        for hf_name, _ in places[name]:
            tensor = tensors[hf_name].astype(np.float32)
            _check_shape(hf_name, tensor.shape, _stored_shape(param))
            if not np.isfinite(tensor).all():
                not_finite.append(hf_name)
            parts.append(_from_torch(tensor) if param.hf_transposed else tensor)
        whole = np.stack(parts) if param.stacked else np.ascontiguousarray(parts[0])
        params[name] = with_split_axis(whole, param.shape)
    if not_finite:
        raise OutlastError("Some weights are not finite: " + ", ".join(not_finite[:5]))
    return params


def huggingface_names(table: ParamTable) -> set[str]:
    """Return the names of a table's parameters in Hugging Face's models."""
    return {name for param in flatten(table).values() for name, _ in _places(param)}


def _to_torch(kernel: NDArray[Any]) -> NDArray[Any]:
    """(in, out) to (out, in), (in, parts, out) to (parts * out, in), and (height, width, in, out) to
    (out, in, height, width).
    """
    return kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.reshape(len(kernel), -1).T


def _from_torch(tensor: NDArray[Any]) -> NDArray[Any]:
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def _stored_shape(param: Param) -> tuple[int, ...]:
    """The shape of one layer's tensor, as it stands in the file."""
    shape = param.shape[1:] if param.stacked else param.shape
    if not param.hf_transposed:
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else (math.prod(shape[1:]), shape[0])


def _places(param: Param) -> Iterator[tuple[str, int | None]]:
    """The tensors of a parameter: one, or one per layer with the layer's number."""
    if not param.stacked:
        yield param.hf, None
        return
    for layer in range(param.shape[param.logical_axes.index(LAYERS_AXIS)]):
        yield param.hf.format(layer=param.first_layer + layer), layer


def _check_names(expected: set[str], found: set[str]) -> None:
    if expected != found:
        missing, unknown = sorted(expected - found), sorted(found - expected)
        raise OutlastError(f"The parameters do not fit the model: missing {missing}, unknown {unknown}.")


def _check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise OutlastError(
            f"{name} has shape {found}.", expected=f"shape {expected} from the model's configuration"
        )
