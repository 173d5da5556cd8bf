# SPDX-License-Identifier: Apache-2.0
"""Layers: sizes that all ranks agree on, and the memory of calls. Contexts: what a forward leaves for its backward."""
import ctypes as C
import itertools
import weakref

from . import _types as T
from ._handle import Handle, SharedByCopies, Unpicklable, close_with
from ._library import check, fail, load_library, make

_numbers = itertools.count(1)
_layers = weakref.WeakValueDictionary()  # by number: how compiled graphs name a layer
_contexts = {}  # by number: how a saved tensor names a context
_byref = C.byref


def find_layer(number):
    layer = _layers.get(number)
    if layer is None:
        fail(T.E_STATE, f"layer {number} is gone: a compiled graph has outlived it")
    return layer


def find_context(number):
    context = _contexts.get(number)
    if context is None:
        fail(T.E_STATE, "the context of this forward is gone: its layer was destroyed, or a hook has moved the tensor "
                        "that names it to other memory; keep saved tensors where they are")
    return context


def remember(where, key, value):
    """In a bounded dict, of what can be made again."""
    if len(where) >= 1024:
        where.clear()
    where[key] = value


class Context(Unpicklable):
    """What a forward leaves for its backward. Lives as long as Python keeps it.

    memory: None, and the library allocates it, or `plan.context_memory_bytes + 256` bytes of a tensor on the device.
    """
    __slots__ = ("layer", "memory", "dynamic", "rows", "_address", "_leaves")

    def __init__(self, layer, memory=None):
        self._address = None
        lib, handle, pointer = load_library(), layer._handle, C.c_void_p()
        aligned = None if memory is None else -(-memory.data_ptr() // 256) * 256
        check(lib.ferry_context_create(handle.pointer, aligned, _byref(pointer)))
        self.layer, self.memory, self._leaves = layer, memory, handle.leaves
        self.dynamic = False  # N was known on the device only
        self.rows = None  # of the arrays of the forward that filled it
        self._address = address = pointer.value
        self._leaves[address] = lib.ferry_context_destroy

    @property
    def pointer(self):
        if self._address not in self._leaves:
            fail(T.E_STATE, "this context was destroyed, or its layer was")
        return self._address

    def destroy(self):
        address, self._address = self._address, None
        if address is not None:
            destroy = self._leaves.pop(address, None)
            if destroy is not None:
                destroy(address)

    __del__ = destroy


class ContextKey(C.Structure):
    """The number of a context in memory that a tensor can be made of. The context goes with it: its memory at once; the
    rest is spared for the next one in the same place, as allocators give places again and making one takes the host
    time."""
    _fields_ = [("number", C.c_int64)]

    def __del__(self):
        context = _contexts.pop(self.number)
        layer, place = context.layer, context.memory.data_ptr()
        context.layer = context.memory = None
        if place:  # a tensor on "meta" has none
            remember(layer.spare, place, context)


def new_context(layer, memory):
    """A context in this memory, which is its own, and its key."""
    context = layer.spare.pop(memory.data_ptr(), None)
    if context is None:
        context = Context(layer, memory)
    else:
        load_library().ferry_context_clear(context.pointer)
        context.layer, context.memory, context.dynamic, context.rows = layer, memory, False, None
    number = next(_numbers)
    _contexts[number] = context
    return context, ContextKey(number)


class Layer(SharedByCopies):
    """An expert-parallel MoE layer of one shape on a Group. Collective: all ranks give the same.

    hidden, intermediate    sizes of a token and of an expert
    experts, top_k          experts of all ranks, and experts of a token
    max_tokens              most tokens that a rank passes in a call
    shared                  intermediate size of the shared expert; 0: none
    swiglu_limit            L > 0: gate = min(gate, L), up within -L..L; 0: no clamp
    expert_rank             rank of each expert; None: contiguous blocks, the first E mod R ranks one more
    context_rows            rows of which a context saves x, gate and up; -1: by rule; 0: none, a backward computes them
                            again (the library's own activation checkpointing)
    minibatch_rows, ring_rows, max_bytes, pull_warps, fan_out, comm_sms, sm_margin, tune_file
                            as in ferry_layer_config; they never change results
    """

    def __init__(self, group, hidden, intermediate, experts, top_k, *, max_tokens, shared=0, swiglu_limit=0.0,
                 expert_rank=None, context_rows=-1, minibatch_rows=0, ring_rows=0, max_bytes=0, pull_warps=0, fan_out=0,
                 comm_sms=0, sm_margin=0, tune_file=None):
        lib = load_library()
        config = make(T.LayerConfig)
        config.hidden, config.intermediate, config.shared = hidden, intermediate, shared
        config.experts, config.slots, config.max_tokens = experts, top_k, max_tokens
        config.swiglu_limit = swiglu_limit
        config.context_rows, config.minibatch_rows, config.ring_rows = context_rows, minibatch_rows, ring_rows
        config.max_bytes = max_bytes
        config.pull_warps, config.fan_out, config.comm_sms, config.sm_margin = pull_warps, fan_out, comm_sms, sm_margin
        if expert_rank is not None:
            if len(expert_rank) != experts:
                raise ValueError(f"ferry_moe: expert_rank has {len(expert_rank)} entries, expected {experts}")
            ranks = (C.c_int32 * experts)(*expert_rank)
            config.expert_rank = C.addressof(ranks)
        if tune_file is not None:
            config.tune_file = str(tune_file).encode()
        pointer = C.c_void_p()
        with group.turn:
            group._check(lib.ferry_layer_create(group.pointer, C.byref(config), C.byref(pointer)))
        self._handle = Handle("layer", pointer, "ferry_layer_destroy", group._handle)
        self._close = close_with(self, self._handle)
        self.group = group
        self.hidden, self.intermediate, self.shared = hidden, intermediate, shared
        self.experts, self.top_k, self.max_tokens = experts, top_k, max_tokens
        self.swiglu_limit = swiglu_limit
        self.plan = T.Plan()
        check(lib.ferry_layer_get_plan(pointer, C.byref(self.plan)))
        self.local_experts = self.plan.local_experts
        self.expert_ids = [lib.ferry_layer_expert_id(pointer, group.rank, i) for i in range(self.local_experts)]
        self.context_bytes = self.plan.context_memory_bytes
        self.context_room = (self.context_bytes + 257) // 2  # in elements of BF16, wherever they begin
        self.number = next(_numbers)
        _layers[self.number] = self
        # Filled anew by each call, in its turn.
        self.forward_args, self.backward_args = make(T.ForwardArgs), make(T.BackwardArgs)
        self.seen = None  # the shapes, types and places of the last forward's arrays: forward_args tells the rest
        self.described = {}  # weights that calls have met
        self.spare = {}  # contexts without memory, by the address where they had it
        self._number_tokens()

    def _number_tokens(self):
        """Where calls read N: entry n is n, so that calls in flight and captured graphs keep theirs."""
        count = max(self.max_tokens, 63) + 1
        if self.group.device.kind == "cpu":
            self.tokens = (C.c_int32 * count)(*range(count))
            self.tokens_at, self.empty_at = C.addressof(self.tokens), None
            return
        import torch
        self.tokens = torch.arange(count, dtype=torch.int32, device=self.group.device.name)
        # Calls may come on any stream. Not the device: waiting for it would spoil another thread's capture there.
        torch.cuda.current_stream(self.tokens.device).synchronize()
        # An empty array has no address; on a device it gets one that is not NULL.
        self.tokens_at = self.empty_at = self.tokens.data_ptr()

    @property
    def pointer(self):
        return self._handle.pointer

    @property
    def alive(self):
        return self._handle.alive

    @property
    def turn(self):
        """Held during a call: threads that share a group take turns."""
        return self._handle.turn

    def poll(self):
        """The pending report of an earlier call as a Report (its `status` is a number), or None. Never blocks."""
        report = T.Report()
        return report if load_library().ferry_layer_poll(self.pointer, C.byref(report)) else None

    def stats(self):
        """Counters of this rank, of its last finished call."""
        stats = T.Stats()
        check(load_library().ferry_layer_stats(self.pointer, C.byref(stats)))
        return stats

    def destroy(self):
        """Destroys the layer and its contexts: local, never waits for a peer. Using it later is an error."""
        self._close()

    def __repr__(self):
        return (f"ferry_moe.Layer(hidden {self.hidden}, intermediate {self.intermediate}, {self.experts} experts, "
                f"top {self.top_k}, at most {self.max_tokens} tokens{'' if self.alive else ', destroyed'})")
