# SPDX-License-Identifier: Apache-2.0
"""How evenly the rows of a forward fall on experts and ranks: numbers that stay on the device until they are read."""
import ctypes as C

import torch

from . import _types as T

_TYPES = {C.c_int64: torch.int64, C.c_int32: torch.int32, C.c_float: torch.float32, C.c_int32 * 16: torch.int32}
_PARTS = {name: (getattr(T.LoadStruct, name).offset, getattr(T.LoadStruct, name).size, _TYPES[kind])
          for name, kind in T.LoadStruct._fields_ if name != "spare"}


class Load:
    """Tensors on the layer's device, written in stream order by the call; equal on all ranks. Reading one into Python
    (`float(load.overload)`, `load.read()`) waits for the device, looking at them does not.

    expert_rows        [E] rows that each expert receives from all ranks
    rows, busiest_rows    rows of all experts; of the rank that has most
    busiest_rank, busiest_expert
    overload, expert_overload    busiest rank / mean rank, busiest expert / mean expert; 1 is even
    empty_experts      experts without rows
    histogram          [16]: experts with i/4 to (i + 1)/4 of the mean expert's rows, the last: that and more
    """
    BYTES = C.sizeof(T.LoadStruct)

    def __init__(self, expert_rows, struct):
        self.expert_rows, self.struct = expert_rows, struct

    def __getattr__(self, name):
        if name not in _PARTS:
            raise AttributeError(f"a Load has no {name!r}")
        offset, size, dtype = _PARTS[name]
        part = self.struct[offset:offset + size].view(dtype)
        return part if name == "histogram" else part[0]

    def read(self):
        """All but expert_rows as a dict of Python numbers: one copy from the device, which waits for it."""
        struct = Load(None, self.struct.cpu())
        return {name: getattr(struct, name).tolist() for name in _PARTS}
