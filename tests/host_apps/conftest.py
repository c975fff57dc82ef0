"""One process per third-party app."""

from collections.abc import Iterator

import pytest

from tests.host_apps.matrix import APPS, App
from tests.host_apps.process import Server
from tests.host_apps.venvs import python_of


@pytest.fixture(scope="session", params=APPS, ids=lambda app: app.name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    app: App = request.param
    with Server(app, tmp_path_factory.mktemp(app.name), python_of(app.name)) as running:
        yield running
