"""Files of torch.save made without PyTorch: a pickle assembled instruction by instruction, in a zip."""

import struct
import zipfile
from pathlib import Path

import numpy as np

_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "uint16": "BFloat16Storage", "int64": "LongStorage"}


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    size = max(1, (value.bit_length() + 8) // 8)
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def group(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def storage(key: str, kind: str, count: int) -> bytes:
    return group(text("storage"), name("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(key: str, kind: str, count: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    view = (storage(key, kind, count), number(offset), group(*map(number, shape)), group(*map(number, strides)))
    hooks = name("collections", "OrderedDict") + b")R"
    return name("torch._utils", "_rebuild_tensor_v2") + group(*view, b"\x89", hooks) + b"R"


def program(tensors: dict[str, bytes]) -> bytes:
    items = b"".join(text(key) + value for key, value in tensors.items())
    return b"\x80\x02" + name("collections", "OrderedDict") + b")R(" + items + b"u."


def write_zip(path: Path, pickle: bytes, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        for key, content in records.items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def write_torch(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """As torch.save of a state dict, uint16 standing for bfloat16."""
    pickled = {}
    for i, (key, array) in enumerate(tensors.items()):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        pickled[key] = tensor(str(i), _STORAGES[str(array.dtype)], array.size, array.shape, strides)
    return write_zip(path, program(pickled), {str(i): array.tobytes() for i, array in enumerate(tensors.values())})
