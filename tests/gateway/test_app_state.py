"""What handlers may take as parameters is in the state of the web application."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

import pytest

from cluster.trust.addresses import Target
from gateway import app_state
from gateway.app import create_web, open_services
from gateway.settings import MarketplaceSettings, Settings
from tests.databases import prepared

DEPENDENCIES: Mapping[str, Any] = {
    name: alias
    for name, alias in vars(app_state).items()
    if get_origin(alias) is Annotated and alias is not app_state.Payments
}


@pytest.mark.anyio
async def test_every_parameter_is_there_with_its_type(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, marketplace=MarketplaceSettings(enabled=True))
    async with open_services(settings, prepared(tmp_path)) as services:
        web: Any = create_web(services, Target("127.0.0.1", 1))
        request = SimpleNamespace(app=web._app)
        for name, alias in DEPENDENCIES.items():
            kind, depends = get_args(alias)
            found = await depends.dependency(request)
            if isinstance(get_origin(kind) or kind, type):
                assert isinstance(found, get_origin(kind) or kind), name
        assert len(DEPENDENCIES) > 20
