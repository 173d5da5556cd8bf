# SPDX-License-Identifier: Apache-2.0
"""Finds libferry.so, declares its functions and turns a status into an exception.

The library is taken from the variable FERRY_LIBRARY, else from this package (a wheel carries it), else from where the
system finds it.
"""
import ctypes as C
import os
import pathlib

from . import _types as T

_P, _I, _L, _D = C.c_void_p, C.c_int, C.c_int64, C.c_double
_FUNCTIONS = {  # name: (result, arguments)
    "ferry_last_error": (C.c_char_p, []),
    "ferry_version": (C.c_char_p, []),
    "ferry_env_bootstrap_create": (_I, [_D, _P, _P]),
    "ferry_env_bootstrap_destroy": (None, [_P]),
    "ferry_comm_config_init": (None, [_P]),
    "ferry_comm_create": (_I, [_P, _P]),
    "ferry_comm_destroy": (None, [_P]),
    "ferry_comm_error": (_I, [_P]),
    "ferry_comm_rank": (_I, [_P]),
    "ferry_comm_size": (_I, [_P]),
    "ferry_barrier": (_I, [_P]),
    "ferry_layer_config_init": (None, [_P]),
    "ferry_layer_create": (_I, [_P, _P, _P]),
    "ferry_layer_destroy": (None, [_P]),
    "ferry_layer_get_plan": (_I, [_P, _P]),
    "ferry_layer_local_experts": (_L, [_P, _I]),
    "ferry_layer_expert_id": (_L, [_P, _I, _L]),
    "ferry_context_create": (_I, [_P, _P, _P]),
    "ferry_context_clear": (None, [_P]),
    "ferry_context_destroy": (None, [_P]),
    "ferry_forward_args_init": (None, [_P]),
    "ferry_forward": (_I, [_P, _P]),
    "ferry_backward_args_init": (None, [_P]),
    "ferry_backward": (_I, [_P, _P]),
    "ferry_layer_poll": (_I, [_P, _P]),
    "ferry_layer_stats": (_I, [_P, _P]),
}
_INIT = {T.CommConfig: "ferry_comm_config_init", T.LayerConfig: "ferry_layer_config_init",
         T.ForwardArgs: "ferry_forward_args_init", T.BackwardArgs: "ferry_backward_args_init"}
_loaded = None


def _candidates():
    named = os.environ.get("FERRY_LIBRARY")
    if named:
        return [named]
    packaged = pathlib.Path(__file__).with_name("libferry.so")
    return [str(packaged)] if packaged.exists() else ["libferry.so.0", "libferry.so"]


def _open():
    tried = []
    for name in _candidates():
        try:
            return C.CDLL(name)
        except OSError as error:
            tried.append(f"{name} ({error})")
    raise OSError("ferry_moe: no libferry.so: tried " + ", ".join(tried) +
                  "; set FERRY_LIBRARY to the path of one, or install a wheel that carries it")


def load_library():
    """The library, loaded at the first call; OSError says where it was looked for."""
    global _loaded
    if _loaded is None:
        lib = _open()
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        # A library of another version has other structures: its own init function tells.
        for kind, init in _INIT.items():
            room = C.create_string_buffer(max(4096, 2 * C.sizeof(kind)))
            getattr(lib, init)(room)
            size = C.c_size_t.from_buffer(room).value
            if size != C.sizeof(kind):
                raise OSError(f"ferry_moe: {lib._name} is version {lib.ferry_version().decode()}: its {kind.__name__} "
                              f"has {size} bytes, this package's {C.sizeof(kind)}; install both from one version")
        _loaded = lib
    return _loaded


def version():
    """Version of the library, such as "0.1.0"."""
    return load_library().ferry_version().decode()


def make(kind):
    """A structure of `kind` with its defaults."""
    made = kind()
    getattr(load_library(), _INIT[kind])(C.byref(made))
    return made


def fail(status, sentence):
    raise T.FerryError("FERRY_" + T.STATUS.get(status, f"status {status}"), sentence)


def check(status):
    """Raises FerryError with the sentence of this thread's last failure, unless the call went well."""
    if status:
        fail(status, load_library().ferry_last_error().decode(errors="replace"))
