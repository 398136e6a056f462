"""Runs a torch network on the CPU with ONNX Runtime."""

from __future__ import annotations

import inspect
import io
import warnings
from typing import Any

import numpy as np
import torch

from gristmill.errors import MissingExtraError
from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD, INPUT_ID_FIELD

# The shape of the example that is traced; both dimensions stay free in the result.
_EXAMPLE = (2, 9)


class OnnxModel:
    """A network in ONNX Runtime that is called like the torch module it was made from.

    Args:
        session: The runtime's session.
        outputs: How the outputs are handed over: `tensor`, `list`, or `tuple` (for `outputs[0]`).
    """

    device = torch.device("cpu")

    def __init__(self, session: Any, outputs: str) -> None:
        self._session = session
        self._outputs = outputs

    def __call__(self, batch: dict[str, torch.Tensor] | None = None, **named: torch.Tensor) -> Any:
        inputs = named if batch is None else batch
        arrays = {name: np.ascontiguousarray(inputs[name].numpy()) for name in (INPUT_ID_FIELD, ATTENTION_MASK_FIELD)}
        results = [torch.from_numpy(result) for result in self._session.run(None, arrays)]
        if self._outputs == "tensor":
            return results[0]
        return results if self._outputs == "list" else tuple(results)


class _Traced(torch.nn.Module):  # type: ignore[misc]
    """The network with two tensors in and plain tensors out, as a trace needs it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.kind = ""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        batch = {INPUT_ID_FIELD: input_ids, ATTENTION_MASK_FIELD: attention_mask}
        if _takes_names(self.network):
            given = self.network(**batch)
            self.kind = "tuple"
            return given[0]
        given = self.network(batch)
        self.kind = "tensor" if isinstance(given, torch.Tensor) else "list"
        return given if self.kind == "tensor" else tuple(given)


def _takes_names(network: Any) -> bool:
    return INPUT_ID_FIELD in inspect.signature(network.forward).parameters


def to_onnx_runtime(network: Any, *, threads: int) -> OnnxModel:
    """The network in ONNX Runtime.

    Args:
        network: A torch module in evaluation mode (one in training mode would be exported with its dropout).
        threads: How many threads one forward pass uses.

    Raises:
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    try:
        import onnx  # noqa: F401 (torch exports with it)
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"cpu_backend='onnx' needs the packages onnx and onnxruntime ({error.name} is not installed): "
            "pip install onnx onnxruntime.",
            module=error.name,
        ) from error
    traced = _Traced(network).eval()
    example = torch.ones(_EXAMPLE, dtype=torch.int64)
    buffer = io.BytesIO()
    free = {0: "rows", 1: "tokens"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns about every shape that Python code looks at
        torch.onnx.export(
            traced,
            (example, example),
            buffer,
            input_names=[INPUT_ID_FIELD, ATTENTION_MASK_FIELD],
            dynamic_axes={INPUT_ID_FIELD: free, ATTENTION_MASK_FIELD: free},
            opset_version=17,
            dynamo=False,
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return OnnxModel(onnxruntime.InferenceSession(buffer.getvalue(), options, providers=providers), traced.kind)
