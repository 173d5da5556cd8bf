# SPDX-License-Identifier: Apache-2.0
"""Handles of the library: children go before their parent, each once, in whatever order Python lets go of owners."""
import os
import threading
import weakref

from . import _types as T
from ._library import fail, load_library

_WAIT_S = 10.0  # for another thread's call, before what it uses is left to the end of the process
_handles = weakref.WeakSet()


class Handle:
    """A pointer of the library with the function that destroys it. Handles of one group share `turn`: the library wants
    one thread at a time there."""

    def __init__(self, name, pointer, destroy, parent=None, keep=()):
        self.name = name
        self._pointer = pointer
        self._destroy = getattr(load_library(), destroy)
        self._parent = parent
        self._children = set()
        self.leaves = {}  # addresses of contexts -> the function that destroys them: lighter than children
        self._keep = keep  # what the library may use until then
        self._end = "was destroyed"
        self.turn = threading.RLock() if parent is None else parent.turn
        if parent is not None:
            parent._children.add(self)
        _handles.add(self)

    @property
    def pointer(self):
        if self._pointer is None:
            fail(T.E_STATE, f"this {self.name} {self._end}")
        return self._pointer

    @property
    def alive(self):
        return self._pointer is not None

    def close(self):
        if not self.turn.acquire(timeout=_WAIT_S):
            return
        try:
            self._close()
        finally:
            self.turn.release()

    def _close(self):
        pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        for child in list(self._children):
            child._close()
        while self.leaves:
            address, destroy = self.leaves.popitem()
            destroy(address)
        self._destroy(pointer)
        self._keep = ()
        if self._parent is not None:
            self._parent._children.discard(self)

    def forget(self):
        """In a forked child: the threads behind the handle, and its peers, know the parent only."""
        self._pointer, self._end = None, "is the parent process's: make another one after a fork"
        self.turn = threading.RLock()  # another thread of the parent may have held it
        self.leaves.clear()


def _after_fork():
    for handle in list(_handles):
        handle.forget()


os.register_at_fork(after_in_child=_after_fork)


class Unpicklable:
    """What no file and no other process can hold."""
    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"ferry_moe: a {type(self).__name__} lives in this process, no copy of it elsewhere: save a "
                        f"model's state_dict()")


class SharedByCopies(Unpicklable):
    """What copies of a model share."""

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def close_with(owner, handle):
    """Closes the handle when `owner` goes, at the latest before the interpreter ends. Returns what closes it now."""
    return weakref.finalize(owner, handle.close)
