"""What objects that hold content show of themselves: a debugger, or whoever reports a crash, shows the variables of each frame."""


def withheld(self: object) -> str:
    """Return the name of an object's type (for ``__repr__``)."""
    return f"<{type(self).__name__}>"
