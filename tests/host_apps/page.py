"""The table of the third-party apps, for ``docs/reference/support-matrix.md`` (``python -m tests.frameworks.page``)."""

from typing import Final

from tests.host_apps.matrix import APPS
from tests.host_apps.venvs import version_of
from tests.matrix import lines_of

_HEAD: Final = (
    "package",
    "version",
    'tool calls, `"replay"`',
    '`"forward"`',
    "a handler that raises",
    "... in the midst",
    "client leaves: the handler",
)


def table() -> str:
    """Return the table, and below it what to mind."""
    rows = [
        (app.package, version_of(app.name, app.package), app.replay, app.forward, app.raises, app.breaks, app.gone)
        for app in APPS
    ]
    return "\n".join([*lines_of(_HEAD, rows), "", *(f"- *{app.package}*: {app.mind}" for app in APPS)]) + "\n"
