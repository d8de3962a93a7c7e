"""The API against its own description: whatever fits the schema, or nearly does, is never answered with a 5xx."""

import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import LiveBroker
from courtier.api.client import Client, NoBroker, RequestRefused
from courtier.api.openapi import OPERATIONS, openapi_document

# What ends or blocks the broker that is tested: not for a fuzzer.
LEFT_OUT = {"/v1/shutdown", "/v1/jobs/{job}/wait", "/v1/jobs/{job}/attach"}
SCHEMA = schemathesis.openapi.from_dict(openapi_document())


def _operations() -> list[object]:
    return [result.ok() for result in SCHEMA.get_all_operations() if result.ok().path not in LEFT_OUT]


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_no_request_of_the_schema_is_a_5xx(broker: LiveBroker, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(_operations()))
    case = data.draw(operation.as_strategy())  # type: ignore[attr-defined]
    request = case.as_transport_kwargs(base_url="http://localhost")

    prepared = requests.Request(
        **{k: v for k, v in request.items() if k in ("method", "url", "params", "json", "data")}
    )
    try:
        url = prepared.prepare()
    except (requests.exceptions.RequestException, UnicodeError, ValueError):
        return
    status = _status(broker.client, str(url.method), str(url.path_url), url.body)
    assert status < 500, (url.method, url.path_url, url.body)


def _status(client: Client, method: str, path: str, body: object) -> int:
    content = body.encode() if isinstance(body, str) else body
    connection, response = client._send_bytes(method, path, content, 30)  # type: ignore[arg-type]
    try:
        response.read()
        return response.status
    finally:
        connection.close()


def test_description_has_every_route(broker: LiveBroker) -> None:
    served = broker.client.call("GET", "/openapi.json")
    assert {(method, path) for method, path, *_ in OPERATIONS} == {
        (method, path) for path, methods in served["paths"].items() for method in methods
    }
    for method, path, *_ in OPERATIONS:
        if path in LEFT_OUT:
            continue
        try:
            broker.client.raw(method.upper(), path.replace("{job}", "999999"), {} if method == "post" else None)
        except RequestRefused as refused:
            assert refused.error["code"] not in ("path_unknown", "method_not_allowed"), path
        except NoBroker:
            raise AssertionError(path) from None
