"""The OpenAPI description, made from the same types that the routes decode and encode: it cannot say anything else."""

from functools import lru_cache
from typing import Any

import msgspec

from courtier import __version__
from courtier.api import schema

REFUSALS = (400, 401, 403, 404, 409, 413, 422, 507)
_JOB = {
    "name": "job",
    "in": "path",
    "required": True,
    "description": "a job's or an array's number",
    "schema": {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
}


_GPU = {**_JOB, "name": "gpu", "description": "a GPU's index"}


def _query(name: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    limits = {"minimum": 0, "maximum": (1 << 63) - 1} if kind == "integer" else {}
    return {"name": name, "in": "query", "schema": {"type": kind, **limits, **more}}


_STATES = _query("state")
# (method, path, what it does, parameters, body, answer)
OPERATIONS: tuple[tuple[str, str, str, list[dict[str, Any]], Any, Any], ...] = (
    ("get", "/healthz", "whether the broker answers", [], None, schema.Health),
    ("post", "/v1/jobs", "submit a job or an array", [], schema.SubmitBody, schema.Submitted),
    (
        "get",
        "/v1/jobs",
        "active jobs in the order of service",
        [
            _STATES,
            _query("user"),
            _query("name"),
            _query("ids"),
            _query("limit", "integer"),
            _query("all", enum=["0", "1"]),
        ],
        None,
        schema.ManyJobs,
    ),
    ("get", "/v1/jobs/{job}", "one job", [_JOB], None, schema.OneJob),
    ("get", "/v1/jobs/{job}/why", "why it waits", [_JOB], None, schema.Why),
    ("post", "/v1/jobs/{job}/cancel", "cancel, or send a signal", [_JOB], schema.CancelBody, schema.ManyJobs),
    ("post", "/v1/jobs/{job}/hold", "keep from being placed", [_JOB], None, schema.ManyJobs),
    ("post", "/v1/jobs/{job}/release", "end a hold", [_JOB], None, schema.ManyJobs),
    ("post", "/v1/jobs/{job}/requeue", "run again", [_JOB], None, schema.ManyJobs),
    ("post", "/v1/jobs/{job}/set", "change", [_JOB], schema.ChangeBody, schema.ManyJobs),
    (
        "get",
        "/v1/jobs/{job}/wait",
        "long poll until it has started or ended",
        [_JOB, _query("timeout_ms", "integer"), _query("until", enum=["ended", "started"])],
        None,
        schema.WaitAnswer,
    ),
    (
        "get",
        "/v1/jobs/{job}/attach",
        "where its supervisor listens",
        [_JOB, _query("timeout_ms", "integer")],
        None,
        schema.AttachAnswer,
    ),
    (
        "get",
        "/v1/jobs/{job}/logs",
        "its output",
        [
            _JOB,
            _query("stream", enum=["stdout", "stderr"]),
            _query("attempt", "integer"),
            _query("offset", "integer"),
            _query("tail_lines", "integer"),
            _query("follow", enum=["0"]),
        ],
        None,
        bytes,
    ),
    (
        "get",
        "/v1/history",
        "ended jobs, the newest last",
        [_query("since_ms", "integer"), _query("user"), _STATES, _query("name"), _query("limit", "integer")],
        None,
        schema.ManyJobs,
    ),
    (
        "get",
        "/v1/events",
        "what happened",
        [
            _query("job", "integer"),
            _query("after", "integer"),
            _query("limit", "integer"),
            _query("follow", enum=["0"]),
        ],
        None,
        schema.ManyEvents,
    ),
    ("get", "/v1/gpus", "GPUs as they are", [], None, schema.ManyGpus),
    ("post", "/v1/gpus/{gpu}/drill", "trouble on a simulated GPU", [_GPU], schema.DrillBody, schema.ManyGpus),
    ("get", "/v1/doctor", "what is wrong and what to do", [], None, schema.Doctor),
    ("post", "/v1/shutdown", "end the broker", [], schema.ShutdownBody, schema.Health),
)


@lru_cache(maxsize=1)
def openapi_document() -> dict[str, Any]:
    """OpenAPI 3.1 of every route."""
    types = [schema.ErrorBody]
    types += [t for row in OPERATIONS for t in row[4:] if t is not None and t is not bytes and t not in types]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, summary, parameters, body, answer in OPERATIONS:
        paths.setdefault(path, {})[method] = _operation(summary, parameters, body, answer, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Courtier", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(
    summary: str, parameters: list[dict[str, Any]], body: Any, answer: Any, by_type: dict[Any, Any]
) -> dict[str, Any]:
    if answer is bytes:
        good = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    else:
        good = {"application/json": {"schema": by_type[answer]}}
    error = {"application/json": {"schema": by_type[schema.ErrorBody]}}
    responses = {str(code): {"description": "refused", "content": error} for code in REFUSALS}
    responses["200"] = {"description": "done", "content": good}
    if answer is schema.Submitted:
        responses["201"] = {"description": "accepted, and on disk", "content": good}
    operation: dict[str, Any] = {"summary": summary, "parameters": parameters, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": by_type[body]}}}
    return operation
