# SPDX-License-Identifier: Apache-2.0
"""The structures and numbers of ferry.h in the words of ctypes; `load_library` compares sizes with the library."""
import ctypes as C

STATUS = {0: "OK", 10: "E_INVALID", 11: "E_UNSUPPORTED", 12: "E_MISMATCH", 13: "E_STATE", 20: "E_MEMORY",
          21: "E_SYSTEM", 22: "E_CUDA", 30: "E_BAD_ID", 31: "E_TOO_MANY_TOKENS", 40: "E_TIMEOUT",
          41: "E_PEER", 90: "E_INTERNAL"}
OK, E_STATE, E_BAD_ID, E_TOO_MANY_TOKENS = 0, 13, 30, 31  # those that this package decides by itself
BF16, F32, F16, F64, I32, I64 = 1, 2, 3, 4, 10, 11
TYPES = {BF16: "BF16", F32: "F32", F16: "F16", F64: "F64", I32: "I32", I64: "I64"}
CPU, CUDA = 0, 1
DATA, WEIGHT, ALL = 1, 2, 3


class FerryError(RuntimeError):
    """What the library says: `status` is the name ("FERRY_E_TIMEOUT"), the message its sentence."""

    def __init__(self, status, sentence):
        super().__init__(f"{status}: {sentence}")
        self.status = status


class Matrices(C.Structure):
    _fields_ = [("base", C.c_void_p), ("table", C.c_void_p), ("expert_stride", C.c_int64), ("row_stride", C.c_int64),
                ("dtype", C.c_int)]


ALLGATHER = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t)


class Bootstrap(C.Structure):
    _fields_ = [("rank", C.c_int), ("nranks", C.c_int), ("allgather", ALLGATHER), ("user", C.c_void_p),
                ("same_process", C.c_int)]


class Allocator(C.Structure):
    _fields_ = [("alloc", C.c_void_p), ("free", C.c_void_p), ("user", C.c_void_p)]


class Observer(C.Structure):
    _fields_ = [("event", C.c_void_p), ("user", C.c_void_p)]


class CommConfig(C.Structure):
    _fields_ = [("size", C.c_size_t), ("backend", C.c_int), ("bootstrap", Bootstrap), ("device", C.c_int),
                ("comm_workers", C.c_int), ("compute_workers", C.c_int), ("isa", C.c_int),
                ("enter_timeout_s", C.c_double), ("progress_timeout_s", C.c_double), ("allocator", Allocator),
                ("observer", Observer)]


class LayerConfig(C.Structure):
    _fields_ = [("size", C.c_size_t), ("hidden", C.c_int64), ("intermediate", C.c_int64), ("shared", C.c_int64),
                ("experts", C.c_int64), ("slots", C.c_int64), ("max_tokens", C.c_int64), ("expert_rank", C.c_void_p),
                ("swiglu_limit", C.c_float), ("minibatch_rows", C.c_int64), ("ring_rows", C.c_int64),
                ("context_rows", C.c_int64), ("precision", C.c_int), ("order", C.c_int), ("max_bytes", C.c_int64),
                ("pull_warps", C.c_int), ("fan_out", C.c_int), ("comm_sms", C.c_int), ("sm_margin", C.c_int),
                ("tune_file", C.c_char_p)]


class Plan(C.Structure):
    _fields_ = [("size", C.c_size_t), ("local_experts", C.c_int64), ("minibatch_rows", C.c_int64),
                ("ring_rows", C.c_int64), ("context_rows", C.c_int64), ("max_rows", C.c_int64),
                ("symmetric_bytes", C.c_int64), ("ring_bytes", C.c_int64), ("table_bytes", C.c_int64),
                ("layer_bytes", C.c_int64), ("context_bytes", C.c_int64), ("context_memory_bytes", C.c_int64),
                ("multiprocessors", C.c_int), ("pull_warps", C.c_int), ("fan_out", C.c_int), ("comm_sms", C.c_int),
                ("comm_workers", C.c_int), ("tuned", C.c_int)]


class Weights(C.Structure):
    _fields_ = [(name, Matrices) for name in ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")]


class Gradient(C.Structure):
    _fields_ = [("to", Matrices), ("beta", C.c_float)]


class Gradients(C.Structure):
    _fields_ = [(name, Gradient) for name in ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")]


class LoadStruct(C.Structure):
    _fields_ = [("rows", C.c_int64), ("busiest_rows", C.c_int64), ("busiest_rank", C.c_int32),
                ("busiest_expert", C.c_int32), ("overload", C.c_float), ("expert_overload", C.c_float),
                ("empty_experts", C.c_int32), ("spare", C.c_int32), ("histogram", C.c_int32 * 16)]


class ForwardArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("num_tokens", C.c_void_p), ("x", C.c_void_p), ("x_stride", C.c_int64),
                ("ids", C.c_void_p), ("ids_dtype", C.c_int), ("weights", C.c_void_p), ("params", Weights),
                ("out", C.c_void_p), ("out_stride", C.c_int64), ("context", C.c_void_p), ("stream", C.c_void_p),
                ("expert_rows", C.c_void_p), ("load", C.c_void_p)]


class BackwardArgs(C.Structure):
    _fields_ = [("size", C.c_size_t), ("context", C.c_void_p), ("parts", C.c_int), ("dout", C.c_void_p),
                ("dout_stride", C.c_int64), ("params", Weights), ("dx", C.c_void_p), ("dx_stride", C.c_int64),
                ("dweights", C.c_void_p), ("grads", Gradients), ("stream", C.c_void_p), ("ready", C.c_void_p),
                ("ready_value", C.c_uint32)]


class Report(C.Structure):
    _fields_ = [("size", C.c_size_t), ("status", C.c_int), ("count", C.c_int64), ("rank", C.c_int),
                ("token", C.c_int64), ("slot", C.c_int64), ("id", C.c_int64)]


class Stats(C.Structure):
    _fields_ = [("size", C.c_size_t)] + [(name, C.c_int64) for name in (
        "rows", "macrobatches", "steps", "ring_high_water", "pulls", "recomputed_rows", "bytes_schedule", "bytes_pull",
        "bytes_pull_remote", "bytes_push", "bytes_push_remote", "bytes_sum", "flop", "current_bytes", "peak_bytes")]
