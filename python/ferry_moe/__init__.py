# SPDX-License-Identifier: Apache-2.0
"""Ferry's expert-parallel Mixture-of-Experts layer in Python: no compile step, the library is called through ctypes.

`Group` (ranks), `Layer` (sizes and memory), `functional.forward` and `functional.backward` work on any arrays;
`moe` (differentiable), `FerryMoE` (a module), `Router` and `Load` need PyTorch; `patch` and `unpatch` transformers too.
"""
from . import functional
from ._library import load_library, version
from ._types import ALL, DATA, WEIGHT, FerryError
from .functional import from_bf16, to_bf16
from .group import Group, default_group
from .layer import Context, Layer

_WITH_TORCH = {"moe": "autograd", "FerryMoE": "module", "Router": "router", "Load": "load", "patch": "patching",
               "unpatch": "patching"}

__all__ = ["ALL", "DATA", "WEIGHT", "Context", "FerryError", "Group", "Layer", "default_group", "from_bf16",
           "functional", "load_library", "to_bf16", "version", *_WITH_TORCH]


def __getattr__(name):
    """What needs PyTorch is imported when it is first asked for; the version is that of the library."""
    if name == "__version__":
        return version()
    module = _WITH_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'ferry_moe' has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module("." + module, __name__), name)
