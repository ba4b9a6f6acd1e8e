"""Compilation of inner loops, kept on disk where that is possible.

What the passes over an order share stays written out in each: a call per op that takes the
problem's arrays counts references to all of them, and makes a pass ten times as slow.
"""
# pyright: basic
# numba has no types of its own.

import numba


def compiled(function):
    """Compile a function of arrays; threads may run it side by side.

    The machine code is kept beside the source or in the user's cache. Where neither can be
    written, each process compiles for itself.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
