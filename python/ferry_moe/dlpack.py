# SPDX-License-Identifier: Apache-2.0
"""Arrays of any library, seen through DLPack or Python's buffers: address, shape, strides, type and place."""
import ctypes as C
import sys

from . import _types as T


class _Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32), ("ndim", C.c_int32),
                ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


_pointer_of = C.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = C.c_void_p, [C.py_object, C.c_char_p]

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
# Unsigned integers of 16 bits are how libraries without BF16 carry its bits.
_CODES = {(_BFLOAT, 16): T.BF16, (_UINT, 16): T.BF16, (_FLOAT, 32): T.F32, (_FLOAT, 16): T.F16, (_FLOAT, 64): T.F64,
          (_INT, 32): T.I32, (_INT, 64): T.I64}
_FORMATS = {"H": T.BF16, "f": T.F32, "d": T.F64, "i": T.I32, "l": T.I64, "q": T.I64}
_PLACES = {1: "cpu", 2: "cuda", 3: "cpu"}


class Array:
    """With the names of a torch tensor's parts; `dtype` is the library's number, 0 for what it does not know."""

    def __init__(self, source, stream=None):
        self.source = source
        try:
            if hasattr(source, "__dlpack__"):
                self._from_dlpack(source.__dlpack__() if stream is None else source.__dlpack__(stream=stream))
            else:
                self._from_buffer(memoryview(source))
        except BufferError as error:
            raise ValueError(f"ferry_moe: the array cannot be shared: {error}") from error
        except TypeError as error:
            raise TypeError(f"ferry_moe: {type(source).__name__} is no array: expected a torch tensor, an object with "
                            f"__dlpack__, or a writable buffer ({error})") from error

    def _from_buffer(self, view):
        self.shape, self.device, self.itemsize = view.shape, "cpu", view.itemsize
        self.dtype = _FORMATS.get(view.format, 0)
        self._strides = tuple(s // view.itemsize for s in view.strides)
        self.kept = C.c_char.from_buffer(view) if view.nbytes else view
        self._address = C.addressof(self.kept) if view.nbytes else 0

    def _from_dlpack(self, capsule):
        self.kept = capsule  # it keeps what it describes
        t = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
        self.shape = tuple(t.shape[i] for i in range(t.ndim))
        self.dtype = _CODES.get((t.code, t.bits), 0) if t.lanes == 1 else 0
        self.itemsize = t.bits * t.lanes // 8
        place = _PLACES.get(t.device_type, f"device type {t.device_type}")
        self.device = f"cuda:{t.device_id}" if place == "cuda" else place
        self._address = (t.data or 0) + t.byte_offset
        if t.strides:
            self._strides = tuple(t.strides[i] for i in range(t.ndim))
        else:
            strides, step = [], 1
            for size in reversed(self.shape):
                strides.append(step)
                step *= size
            self._strides = tuple(reversed(strides))

    def data_ptr(self):
        return self._address

    def stride(self):
        return self._strides

    def like(self):
        """An array of the source's library, shape and type."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(self.source, numpy.ndarray):
            raise TypeError(f"ferry_moe: give out: arrays of {type(self.source).__module__} are not made here")
        return numpy.empty_like(self.source, order="C")
