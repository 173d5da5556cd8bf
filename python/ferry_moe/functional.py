# SPDX-License-Identifier: Apache-2.0
"""Calls of the library on arrays: torch tensors, anything with __dlpack__ (NumPy, CuPy), or writable buffers of Python.

BF16 arrays are tensors of torch.bfloat16, or arrays of unsigned 16-bit integers that hold the bits (`to_bf16` and
`from_bf16` convert NumPy arrays). Weights of experts are given in one of these ways; the last dimension is contiguous:

    gate_up   [local experts, 2 I, H], gate above up    or a list with one [2 I, H] per local expert
              or a tuple (gate, up) of [local experts, I, H], or of lists of [I, H]
    down      [local experts, H, I]                     or a list of [H, I]
    shared_gate_up, shared_down                         [2 S, H] or (gate, up), and [H, S]

Gradients are given in the same ways. Nothing is copied.
"""
import ctypes as C
import sys

from . import _types as T
from ._library import check, fail, load_library
from .dlpack import Array
from .layer import remember

_byref = C.byref
_NAMES = ("gate_up", "down", "shared_gate_up", "shared_down")
_torch, _tensor = None, ()  # torch and the class of its tensors, once one may have come
_codes = {}  # torch's dtypes -> the library's


def _know(torch):
    global _torch, _tensor
    _codes.update({torch.bfloat16: T.BF16, torch.float32: T.F32, torch.float16: T.F16, torch.float64: T.F64,
                   torch.int32: T.I32, torch.int64: T.I64})
    _torch, _tensor = torch, torch.Tensor


def _code(array):
    return array.dtype if isinstance(array, Array) else _codes.get(array.dtype)


def _array(value, stream=None):
    if isinstance(value, _tensor):
        return value
    if _torch is None and sys.modules.get("torch"):
        _know(sys.modules["torch"])
        return _array(value, stream)
    return Array(value, stream)


def _device_of(array):
    device = array.device
    return device if isinstance(device, str) else str(device)


def _type_name(array):
    if not isinstance(array, Array):
        return str(array.dtype)
    return T.TYPES.get(array.dtype) or str(getattr(array.source, "dtype", "of another type"))


def _check_shape(name, array, shape, *codes):
    if tuple(array.shape) != tuple(shape) or _code(array) not in codes:
        wants_bits = isinstance(array, Array) and array.dtype != T.BF16 and codes == (T.BF16,)
        hint = ", which NumPy holds as bits in uint16: ferry_moe.to_bf16 makes them" if wants_bits else ""
        raise ValueError(f"ferry_moe: {name} is {list(array.shape)} {_type_name(array)}, expected {list(shape)} "
                         f"{' or '.join(T.TYPES[c] for c in codes)}{hint}")


def _check_contiguous(name, array):
    step = 1
    for size, stride in zip(reversed(array.shape), reversed(array.stride())):
        if size != 1 and stride != step and 0 not in array.shape:
            raise ValueError(f"ferry_moe: {name} is not contiguous")
        step *= size


def _row_stride(name, array):
    """The stride between rows of [N, H]."""
    (rows, columns), (row, column) = array.shape, array.stride()
    if rows and column != 1 and columns != 1:
        raise ValueError(f"ferry_moe: the last dimension of {name} is not contiguous")
    if rows > 1 and row < columns:  # an expanded array; the library takes 0 for contiguous rows
        raise ValueError(f"ferry_moe: rows of {name} are {row} elements apart, expected at least {columns}")
    return row if rows > 1 else columns


def _output_address(name, array, layer, count, size):
    """The address of `count` words of `size` bytes that the call writes; `size` 1: words of any kind."""
    each = array.itemsize if isinstance(array, Array) else array.element_size()
    have = each
    for extent in array.shape:
        have *= extent
    if have < count * size or size not in (1, each):
        raise ValueError(f"ferry_moe: {name} has {have} bytes in words of {each}, expected {count} of {size}")
    _check_contiguous(name, array)
    _check_device(name, array, layer)
    return array.data_ptr()


def _check_device(name, array, layer):
    place = layer.group.device.name
    if _device_of(array) != place:
        raise ValueError(f"ferry_moe: {name} is on {_device_of(array)}, the layer on {place}")


def _fill(name, to, value, layer, shape, half=None, codes=(T.BF16,)):
    """Describes one stacked array, or a list with one matrix per expert. `half` 0 or 1: the upper or the lower half of
    the rows. Returns what must live until the call is made."""
    experts, rows, columns = shape
    skip = 0
    if half is not None:
        skip, rows = half * rows, 2 * rows
    if isinstance(value, list):
        if len(value) != experts:
            raise ValueError(f"ferry_moe: {name} has {len(value)} matrices, expected {experts}, one per local expert")
        matrices = [_array(m) for m in value]
        stride = _row_stride(name, matrices[0]) if matrices else columns
        for m in matrices:
            _check_shape(name, m, (rows, columns), *codes)
            _check_device(name, m, layer)
            if _row_stride(name, m) != stride:
                raise ValueError(f"ferry_moe: matrices of {name} have different strides between rows")
        size = _bytes(matrices[0]) if matrices else 0
        table = (C.c_void_p * max(experts, 1))(*[m.data_ptr() + skip * stride * size for m in matrices])
        to.base, to.table, to.row_stride = None, C.addressof(table), stride
        to.dtype = _code(matrices[0]) if matrices else T.BF16
        return table, [m for m in matrices if isinstance(m, Array)]
    array = _array(value)
    lone = experts == 1 and len(array.shape) == 2  # such as a shared expert's matrix
    _check_shape(name, array, (rows, columns) if lone else (experts, rows, columns), *codes)
    _check_device(name, array, layer)
    strides = array.stride()
    if strides[-1] != 1 and columns != 1:
        raise ValueError(f"ferry_moe: the last dimension of {name} is not contiguous")
    to.base, to.table = array.data_ptr() + skip * strides[-2] * _bytes(array) or None, None
    to.expert_stride, to.row_stride, to.dtype = 0 if lone else strides[0], strides[-2], _code(array)
    return array if isinstance(array, Array) else None


def _bytes(array):
    return 4 if _code(array) == T.F32 else 2


def _fill_pair(name, gate, up, value, layer, shape, **more):
    if isinstance(value, tuple):
        return (_fill(f"gate of {name}", gate, value[0], layer, shape, **more),
                _fill(f"up of {name}", up, value[1], layer, shape, **more))
    return [_fill(name, to, value, layer, shape, half=half, **more) for half, to in enumerate((gate, up))]


def _key(value):
    """What tells one set of matrices from another, as flat as it was given. Arrays that are no tensors are told by
    themselves: AttributeError."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        return tuple([_key(v) for v in value])
    return value.data_ptr(), value.shape, value.stride(), value.dtype, value.device


def _weights(layer, gate_up, down, shared_gate_up, shared_down):
    """The weights as the library wants them. Those of tensors are described once, and found by address and shape."""
    try:
        key = (_key(gate_up), _key(down), _key(shared_gate_up), _key(shared_down))
    except AttributeError:
        key = None
    found = layer.described.get(key)
    if found is None:
        found = T.Weights()
        found.kept = _fill_weights(layer, found, gate_up, down, shared_gate_up, shared_down)
        if key is not None:
            remember(layer.described, key, found)
    return found


def _fill_weights(layer, to, gate_up, down, shared_gate_up, shared_down):
    """Returns what must live as long as the description."""
    e, h, i, s = layer.local_experts, layer.hidden, layer.intermediate, layer.shared
    kept = [_fill_pair("gate_up", to.gate, to.up, gate_up, layer, (e, i, h)),
            _fill("down", to.down, down, layer, (e, h, i))]
    if s:
        if shared_gate_up is None or shared_down is None:
            raise ValueError("ferry_moe: the layer has a shared expert: give shared_gate_up and shared_down")
        kept += [_fill_pair("shared_gate_up", to.shared_gate, to.shared_up, shared_gate_up, layer, (1, s, h)),
                 _fill("shared_down", to.shared_down, shared_down, layer, (1, h, s))]
    return kept


def _fill_gradient(name, targets, value, beta, layer, shape):
    """One gradient, or with two targets those of gate and up; None: not wanted."""
    for target in targets:
        target.beta = beta
        if value is None:
            target.to.base = target.to.table = None
    if value is None:
        return None
    codes = {"codes": (T.F32, T.BF16)}
    if len(targets) == 2:
        return _fill_pair(name, targets[0].to, targets[1].to, value, layer, shape, **codes)
    return _fill(name, targets[0].to, value, layer, shape, **codes)


def current_stream(layer):
    """The stream on which PyTorch would enqueue on the layer's device; None on the CPU and without PyTorch."""
    torch = sys.modules.get("torch")
    if layer.group.device.kind == "cpu" or torch is None:
        return None
    return torch._C._cuda_getCurrentRawStream(layer.group.device.index)


def _more_tokens(layer, count):
    """Holds a number of tokens over max_tokens: such a call is made all the same, it tells the other ranks."""
    if layer.group.device.kind == "cpu":
        lone = C.c_int32(count)
        return lone, C.addressof(lone)
    lone = layer.tokens.new_full((1,), count)
    return lone, lone.data_ptr()


def _given_tokens(layer, tokens, count):
    """The address of a number of tokens that the caller holds. On a device nobody looks whether the arrays have as
    many rows."""
    if tuple(tokens.shape) not in ((), (1,)) or _code(tokens) != T.I32:
        raise ValueError(f"ferry_moe: num_tokens is {list(tokens.shape)} {_type_name(tokens)}, expected one I32")
    _check_device("num_tokens", tokens, layer)
    address = tokens.data_ptr()
    if layer.group.device.kind == "cpu" and not 0 <= C.c_int32.from_address(address).value <= count:
        raise ValueError(f"ferry_moe: num_tokens is {C.c_int32.from_address(address).value}, but x has {count} rows")
    return address


def _too_many(layer, count):
    fail(T.E_TOO_MANY_TOKENS, f"this call has {count} tokens, the layer at most {layer.max_tokens}: it did nothing on "
                              f"any rank; make the layer with max_tokens={count} or more, alike on all ranks, or split "
                              f"the batch")


def forward(layer, x, ids, weights, gate_up, down, shared_gate_up=None, shared_down=None, *, out=None, context=None,
            num_tokens=None, expert_rows=None, load=None, stream=None):
    """out[t] = shared(x[t]) + sum over k of weights[t, k] * expert ids[t, k] of x[t]; collective. Returns out.

    x, out        [N, H] BF16, N at most max_tokens; out: written, made when None
    ids           [N, K] I32 or I64 of all experts, -1: none
    weights       [N, K] F32
    context       a Context when a backward will follow
    num_tokens    I32 scalar on the layer's device: N when it is known there only; rows behind it are left alone
    expert_rows   [E] I32, written: rows that each expert receives from all ranks
    load          104 bytes, written: a ferry_load (see ferry_moe.Load)
    stream        of CUDA; None: PyTorch's current one
    """
    lib, handle = load_library(), layer._handle
    with handle.turn:
        a, pointer = layer.forward_args, handle.pointer
        if stream is None:
            stream = current_stream(layer)
        x, ids, weights = _array(x, stream), _array(ids, stream), _array(weights, stream)
        given = out is not None
        if not given:  # torch.empty with a shape takes the host three times as long
            out = _torch.empty_like(x) if isinstance(x, _tensor) else x.like()
        made = _array(out, stream)
        # Most calls come with arrays like those of the one before: then only addresses are new.
        seen = (x.shape, x.stride(), x.dtype, x.device, ids.shape, ids.stride(), ids.dtype, ids.device, weights.shape,
                weights.stride(), weights.dtype, weights.device,
                given and (made.shape, made.stride(), made.dtype, made.device))
        count = x.shape[0]
        if seen != layer.seen:
            layer.seen = None
            a.x_stride, a.ids_dtype, a.out_stride = _check_forward(layer, count, x, ids, weights, made)
            layer.seen = seen
        a.params = _weights(layer, gate_up, down, shared_gate_up, shared_down)
        held = None
        if num_tokens is not None:
            held = _array(num_tokens, stream)
            a.num_tokens = _given_tokens(layer, held, count)
        elif count <= layer.max_tokens:
            a.num_tokens = layer.tokens_at + 4 * count
        else:
            held, a.num_tokens = _more_tokens(layer, count)
        empty = layer.empty_at
        a.x, a.ids, a.weights = x.data_ptr() or empty, ids.data_ptr() or empty, weights.data_ptr() or empty
        a.out = made.data_ptr() or empty
        a.context, a.stream = None if context is None else context.pointer, stream
        a.expert_rows = a.load = None
        if expert_rows is not None:
            expert_rows = _array(expert_rows, stream)
            a.expert_rows = _output_address("expert_rows", expert_rows, layer, layer.experts, 4)
        if load is not None:
            load = _array(load, stream)
            a.load = _output_address("load", load, layer, C.sizeof(T.LoadStruct), 1)
        status = lib.ferry_forward(pointer, _byref(a))
    del held
    if context is not None and (status == T.OK or status == T.E_BAD_ID and layer.group.device.kind == "cpu"):
        context.rows = count
    if count > layer.max_tokens and num_tokens is None and status in (T.OK, T.E_TOO_MANY_TOKENS):
        _too_many(layer, count)
    check(status)
    return out


def _check_forward(layer, count, x, ids, weights, out):
    """What the call takes from the arrays beside their addresses."""
    _check_shape("x", x, (count, layer.hidden), T.BF16)
    _check_shape("ids", ids, (count, layer.top_k), T.I32, T.I64)
    _check_shape("weights", weights, (count, layer.top_k), T.F32)
    _check_shape("out", out, (count, layer.hidden), T.BF16)
    for name, array in (("x", x), ("ids", ids), ("weights", weights), ("out", out)):
        _check_device(name, array, layer)
    _check_contiguous("ids", ids)
    _check_contiguous("weights", weights)
    return _row_stride("x", x), _code(ids), _row_stride("out", out)


def backward(layer, context, dout, gate_up, down, shared_gate_up=None, shared_down=None, *, dx=None, dweights=None,
             d_gate_up=None, d_down=None, d_shared_gate_up=None, d_shared_down=None, beta=0.0, parts=T.ALL, stream=None,
             ready=None, ready_value=1):
    """The gradients of the forward that filled `context`, collective: written to the arrays that are given.

    dout, dx      [N, H] BF16; dx is needed for the data part
    dweights      [N, K] F32
    d_...         like the weights, BF16 or F32; a gradient becomes beta * itself + sum
    beta          0 or 1, or a dict of them by name ("gate_up", "down", "shared_gate_up", "shared_down")
    parts         DATA (dx, dweights), WEIGHT (the others) or ALL; equal on all ranks
    ready         [local experts] 32-bit words, each set to ready_value once its expert's gradients are written
    """
    lib = load_library()
    with layer.turn:
        a, pointer = layer.backward_args, layer.pointer
        if stream is None:
            stream = current_stream(layer)
        e, h, i, s = layer.local_experts, layer.hidden, layer.intermediate, layer.shared
        dout = _array(dout, stream)
        count = dout.shape[0] if context.rows is None else context.rows
        _check_shape("dout", dout, (count, h), T.BF16)
        _check_device("dout", dout, layer)
        a.context, a.parts, a.stream = context.pointer, parts, stream
        a.dout, a.dout_stride = dout.data_ptr() or layer.empty_at, _row_stride("dout", dout)
        a.dx, a.dweights = None, None
        kept = [dout]
        if dx is not None:
            dx = _array(dx, stream)
            _check_shape("dx", dx, (count, h), T.BF16)
            _check_device("dx", dx, layer)
            a.dx, a.dx_stride = dx.data_ptr() or layer.empty_at, _row_stride("dx", dx)
            kept.append(dx)
        if dweights is not None:
            dweights = _array(dweights, stream)
            _check_shape("dweights", dweights, (count, layer.top_k), T.F32)
            _check_device("dweights", dweights, layer)
            _check_contiguous("dweights", dweights)
            a.dweights = dweights.data_ptr() or layer.empty_at
            kept.append(dweights)
        a.ready, a.ready_value = None, ready_value
        if ready is not None:
            ready = _array(ready, stream)
            a.ready = _output_address("ready", ready, layer, e, 4)
        a.params = _weights(layer, gate_up, down, shared_gate_up, shared_down)
        betas = beta if isinstance(beta, dict) else dict.fromkeys(_NAMES, beta)
        g = a.grads
        for name, targets, value, shape in (
                ("gate_up", (g.gate, g.up), d_gate_up, (e, i, h)), ("down", (g.down,), d_down, (e, h, i)),
                ("shared_gate_up", (g.shared_gate, g.shared_up), d_shared_gate_up, (1, s, h)),
                ("shared_down", (g.shared_down,), d_shared_down, (1, h, s))):
            kept.append(_fill_gradient("d_" + name, targets, value, betas.get(name, 0.0), layer, shape))
        status = lib.ferry_backward(pointer, _byref(a))
    del kept
    check(status)


def to_bf16(values):
    """A NumPy array as BF16 bits (uint16), to the nearest, ties to even; NaN stays NaN."""
    import numpy as np
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(bits):
    """BF16 bits (uint16) as a NumPy array of float32."""
    import numpy as np
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
