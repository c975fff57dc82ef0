"""What becomes of objects without the garbage collector: what leads back to itself stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Let references alone decide what goes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
