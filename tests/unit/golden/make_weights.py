# Makes weights.safetensors with the safetensors package, whose readers and writers are not ours.
import numpy
from safetensors.numpy import save_file

save_file(
    {
        "tensor.0": numpy.array([[-2.5]], numpy.float32),
        "tensor.1": (numpy.arange(14, dtype=numpy.float32) / 8 - 1).reshape(2, 7),
        "tensor.2": (numpy.arange(1030, dtype=numpy.float32) / 64).astype(numpy.float16).reshape(1, 1030),
    },
    "weights.safetensors",
    metadata={"written by": "safetensors"},
)
