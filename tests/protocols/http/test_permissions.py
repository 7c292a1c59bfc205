"""What concerns the broker as a whole is shown to those who may see it, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from smista.engine import Broker
from smista.errors import AccessDenied
from smista.log import MemoryLog
from smista.protocols.http.app import HttpApp
from smista.protocols.http.metrics import SharedPage
from smista.service.permission import Permission
from smista.service.principal import Principal, anyone
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import DEFAULT_NAMESPACE
from tests.bulk.fake_reader import FakeReader
from tests.protocols.http.test_app import Client

Granted = tuple[Permission, str | None, str | None]
MONITOR, READ = (Permission.MONITOR, None, None), (Permission.READ, None, None)
LESSER: set[Granted] = {(permission, DEFAULT_NAMESPACE, None) for permission in Permission}


class Limited(Service):
    """Everybody who has a session may do this, and nothing else."""

    granted: set[Granted] = LESSER

    def session(self, principal: Principal, namespace: str = DEFAULT_NAMESPACE) -> Session:
        return super().session(principal._replace(grants=self), namespace)

    def allow(self, permission: Permission, namespace: str | None, name: str | None) -> bool:
        return (permission, namespace, name) in self.granted


@pytest.fixture
async def service() -> AsyncIterator[Limited]:
    async with await Broker.open(MemoryLog()) as broker:
        yield Limited(broker, log_reader=FakeReader())


@pytest.fixture
def app(service: Limited) -> HttpApp:
    app = HttpApp()
    app.service = service
    return app


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/metrics", MONITOR),
        ("GET", "/v1/log/range", MONITOR),
        ("GET", "/v1/log/plan", READ),
        ("HEAD", "/v1/log", READ),
        ("GET", "/v1/info", MONITOR),
    ],
)
async def test_who_may_not_see_all_of_it_is_refused(
    app: HttpApp, service: Limited, method: str, path: str, needed: Granted
) -> None:
    client = Client(app, method, path)
    await client.served
    assert client.status == 403
    if method == "GET":
        assert client.value["error"]["code"] == "access_denied"
        assert f"to {needed[0].value} the broker as a whole" in client.value["error"]["message"]
    service.granted = {needed}
    client = Client(app, method, path)
    await client.served
    assert client.status == 200


async def test_nobody_gets_the_metrics_that_are_made_for_somebody_else(service: Limited) -> None:
    service.granted = set()
    shared, refused = SharedPage(), service.session(anyone("http"))
    allowed = Service.session(service, anyone("http"))
    made, error = await asyncio.gather(shared.parts(allowed), shared.parts(refused), return_exceptions=True)
    assert isinstance(made, list)
    assert isinstance(error, AccessDenied)
