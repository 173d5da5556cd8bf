# SPDX-License-Identifier: Apache-2.0
"""Handles of the library: children go before their parent, each once, in whatever order Python lets go of owners."""
import weakref

from ._library import fail, load_library


class Handle:
    """A pointer of the library with the function that destroys it."""

    def __init__(self, name, pointer, destroy, parent=None, keep=()):
        self.name = name
        self._pointer = pointer
        self._destroy = getattr(load_library(), destroy)
        self._parent = parent
        self._children = set()
        self.leaves = {}  # addresses of contexts -> the function that destroys them: lighter than children
        self._keep = keep  # what the library may use until then
        if parent is not None:
            parent._children.add(self)

    @property
    def pointer(self):
        if self._pointer is None:
            fail(13, f"this {self.name} was destroyed")
        return self._pointer

    @property
    def alive(self):
        return self._pointer is not None

    def close(self):
        pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        for child in list(self._children):
            child.close()
        while self.leaves:
            address, destroy = self.leaves.popitem()
            destroy(address)
        self._destroy(pointer)
        self._keep = ()
        if self._parent is not None:
            self._parent._children.discard(self)


def own(owner, handle):
    """Closes the handle when `owner` goes, at the latest before the interpreter ends. Returns what closes it now."""
    return weakref.finalize(owner, handle.close)
