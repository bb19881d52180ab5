"""What the tests of a store's bad days share: a proxy before S3, and a process that knows no other way."""

from collections.abc import Iterator

import pytest

from outlast.storage import Store
from outlast.storage.remote import ObjectStore
from support.faults import FaultyProxy
from support.s3 import S3Server


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.host, s3_server.port) as between:
        yield between


@pytest.fixture
def far(s3_environment: pytest.MonkeyPatch, proxy: FaultyProxy) -> pytest.MonkeyPatch:
    """This process reaches S3 through the proxy alone, and is impatient."""
    s3_environment.setenv("AWS_ENDPOINT_URL", proxy.url)
    s3_environment.setattr(Store, "first_pause_seconds", 0.01)
    s3_environment.setattr(Store, "retry_seconds", 0.15)
    s3_environment.setattr(ObjectStore, "silence_seconds", 1.0)
    return s3_environment
