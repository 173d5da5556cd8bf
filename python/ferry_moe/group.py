# SPDX-License-Identifier: Apache-2.0
"""Groups: the ranks that share the experts of a layer, as a communicator of the library."""
import ctypes as C
import sys

from . import _types as T
from ._handle import Handle, SharedByCopies, close_with
from ._library import check, load_library, make


class Device:
    """Where a group computes: `kind` is "cpu" or "cuda". Taken from a torch.device, its name, or its parts."""

    def __init__(self, device):
        name = str(device)
        self.kind, _, index = name.partition(":")
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"ferry_moe: device {name!r}, expected cpu or cuda")
        self.index = int(index) if index and self.kind == "cuda" else 0
        if self.kind == "cuda" and not index:
            import torch
            self.index = torch.cuda.current_device()
        self.name = f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    def __repr__(self):
        return self.name


def _default_device():
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def _distributed():
    """torch.distributed, where it is in use."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


class _Exchange:
    """The all-gather through which ranks find each other: one of torch.distributed, among the ranks of its group."""

    def __init__(self, dist, process_group):
        import torch
        self.dist, self.group, self.torch = dist, process_group, torch
        self.rank, self.nranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise ValueError("ferry_moe: this process is no member of the process group; only members make a Group")
        on_gpu = str(dist.get_backend(process_group)) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.error = None
        self.callback = T.ALLGATHER(self._allgather)

    def _allgather(self, _user, mine, everyone, size):
        try:
            torch = self.torch
            sent = torch.frombuffer((C.c_uint8 * size).from_address(mine), dtype=torch.uint8).to(self.device)
            parts = [torch.empty_like(sent) for _ in range(self.nranks)]
            self.dist.all_gather(parts, sent, group=self.group)
            received = torch.cat(parts).cpu()
            C.memmove(everyone, received.data_ptr(), size * self.nranks)
            return 0
        except BaseException as error:  # nothing may pass through C; it is raised behind the call that fails now
            self.error = error
            return 1


class _Alone:
    """The all-gather of one rank."""
    rank, nranks, error = 0, 1, None

    def __init__(self):
        self.callback = T.ALLGATHER(self._allgather)

    @staticmethod
    def _allgather(_user, mine, everyone, size):
        C.memmove(everyone, mine, size)
        return 0


class Group(SharedByCopies):
    """Ranks that share the experts, one per process, all on one machine. Making one is collective.

    process_group   a process group of torch.distributed, such as a sub-group of `new_group` or a mesh dimension; None:
                    all processes where torch.distributed is in use, else this process alone
    device          "cpu", "cuda" or "cuda:1"; None: the current CUDA device where there is one, else the CPU
    comm_workers, compute_workers, enter_timeout, progress_timeout    as in ferry_comm_config, 0: its defaults
    """

    def __init__(self, process_group=None, device=None, *, comm_workers=0, compute_workers=0, enter_timeout=0.0,
                 progress_timeout=0.0, _alone=False, _env=None):
        lib = load_library()
        self.device = Device(_default_device() if device is None else device)
        self.process_group = process_group
        config = make(T.CommConfig)
        config.backend = T.CUDA if self.device.kind == "cuda" else T.CPU
        config.device = self.device.index
        config.comm_workers, config.compute_workers = comm_workers, compute_workers
        config.enter_timeout_s, config.progress_timeout_s = enter_timeout, progress_timeout
        self._exchange, parent = None, None
        if _env is not None:
            parent, config.bootstrap = _env
        else:
            dist = _distributed()
            self._exchange = _Alone() if _alone or dist is None else _Exchange(dist, process_group)
            config.bootstrap = T.Bootstrap(self._exchange.rank, self._exchange.nranks, self._exchange.callback, None, 0)
        pointer = C.c_void_p()
        self._check(lib.ferry_comm_create(C.byref(config), C.byref(pointer)))
        self._handle = Handle("group", pointer, "ferry_comm_destroy", parent, (self._exchange, config))
        self._close = close_with(self, self._handle)
        self.rank, self.size = lib.ferry_comm_rank(pointer), lib.ferry_comm_size(pointer)
        self._layers = {}

    @classmethod
    def single(cls, device=None, **options):
        """A group of this process alone, also where torch.distributed is in use."""
        return cls(None, device, _alone=True, **options)

    @classmethod
    def from_env(cls, device=None, timeout=0.0, **options):
        """All processes of a job, found through the variables that torchrun sets; needs no torch.distributed."""
        pointer, bootstrap = C.c_void_p(), T.Bootstrap()
        check(load_library().ferry_env_bootstrap_create(timeout, C.byref(pointer), C.byref(bootstrap)))
        env = Handle("bootstrap", pointer, "ferry_env_bootstrap_destroy")
        try:
            return cls(None, device, _env=(env, bootstrap), **options)
        except BaseException:
            env.close()
            raise

    def _check(self, status):
        """As `check`; what went wrong in an exchange of torch.distributed is the cause."""
        try:
            check(status)
        except T.FerryError as error:
            cause = self._exchange.error if self._exchange else None
            raise error from cause

    @property
    def pointer(self):
        return self._handle.pointer

    @property
    def turn(self):
        return self._handle.turn

    def layer(self, **config):
        """The group's layer of this configuration (see Layer), made at the first request: collective then. Blocks of a
        model that are alike share it, and with it its memory."""
        from .layer import Layer
        if config.get("expert_rank") is not None:
            config["expert_rank"] = tuple(int(r) for r in config["expert_rank"])
        key = tuple(sorted(config.items()))
        layer = self._layers.get(key)
        if layer is None or not layer.alive:
            layer = self._layers[key] = Layer(self, **config)
        return layer

    def barrier(self):
        """Collective: returns when every rank has called it. On CUDA it orders the host side only."""
        with self.turn:
            check(load_library().ferry_barrier(self.pointer))

    def error(self):
        """The status that ended the communicator (a deadline, a dead peer), or None. After one, destroy it."""
        status = load_library().ferry_comm_error(self.pointer)
        return "FERRY_" + T.STATUS.get(status, str(status)) if status else None

    def destroy(self):
        """Destroys the group's layers and the group: local, never waits for a peer. Using it later is an error."""
        self._close()

    def __repr__(self):
        state = f"rank {self.rank} of {self.size}, {self.device}" if self._handle.alive else "destroyed"
        return f"ferry_moe.Group({state})"


_groups = {}


def default_group(process_group=None, device=None):
    """The Group of a process group and device, made at the first request (collective then) and kept to the end."""
    device = Device(_default_device() if device is None else device)
    dist = _distributed()
    member = process_group if process_group is not None or dist is None else dist.group.WORLD
    found = _groups.get((id(member), device.name))
    if found is None or not found[1]._handle.alive:
        # The process group is kept too: its identity is the key.
        found = _groups[id(member), device.name] = (member, Group(process_group, device.name))
    return found[1]
