"""Who may ask what, from where."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_engine.runtime import Runtime

CHAT = "/v1/chat/completions"
OPEN = ["/health", "/ready"]
WITH_API_KEY = ["/v1/models", "/v1/models/fake-model", "/metrics"]
WITH_ADMIN_KEY = ["/v1/snapshot", "/v1/requests", "/v1/logs"]
NOBODY: dict[str, str] = {}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def statuses(runtime: Runtime, headers: dict[str, str]) -> dict[str, set[int]]:
    with httpx.Client(base_url=runtime.address or "", headers=headers) as client:
        return {
            "open": {client.get(path).status_code for path in OPEN},
            "api": {client.get(path).status_code for path in WITH_API_KEY}
            | {
                client.post(
                    CHAT, json={"messages": [{"role": "user", "content": "x"}]}
                ).status_code,
                client.post("/v1/completions", json={"prompt": "x"}).status_code,
                client.post("/tokenize", json={"prompt": "x"}).status_code,
                client.post("/detokenize", json={"tokens": [99]}).status_code,
            },
            "admin": {client.get(path).status_code for path in WITH_ADMIN_KEY},
            # 404 is what an allowed request gets: there is no such request.
            "abort": {client.delete("/v1/requests/none").status_code},
        }


def allowed(api: bool, admin: bool) -> dict[str, set[int]]:
    return {
        "open": {200},
        "api": {200 if api else 401},
        "admin": {200 if admin else 401},
        "abort": {404 if admin else 401},
    }


def test_no_keys(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server()
    assert statuses(runtime, NOBODY) == allowed(True, True)
    assert statuses(runtime, bearer("anything")) == allowed(True, True)


def test_api_key_alone(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(api_key="s3cret-é")
    wrong = ["s3cret", "s3cret-éé", "", "S3CRET-É"]
    sent = [{"x-api-key": key.encode()} for key in wrong]
    for headers in (NOBODY, {"authorization": "Basic s3cret-é".encode()}, *sent):
        assert statuses(runtime, headers) == allowed(False, False)  # type: ignore[arg-type]
    for headers in (
        {"authorization": "Bearer s3cret-é".encode()},
        {"authorization": "bearer  s3cret-é".encode()},
        {"x-api-key": "s3cret-é".encode()},
        {"authorization": b"Bearer wrong", "x-api-key": "s3cret-é".encode()},
    ):
        assert statuses(runtime, headers) == allowed(True, True)  # type: ignore[arg-type]


def test_both_keys(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(api_key="user", admin_key="root")
    assert statuses(runtime, NOBODY) == allowed(False, False)
    assert statuses(runtime, bearer("user")) == allowed(True, False)
    assert statuses(runtime, bearer("root")) == allowed(True, True)
    assert statuses(runtime, {"x-api-key": "root"}) == allowed(True, True)


def test_admin_key_alone_leaves_the_model_open(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(admin_key="root")
    assert statuses(runtime, NOBODY) == allowed(True, False)
    assert statuses(runtime, bearer("root")) == allowed(True, True)


def test_refusal_says_what_is_needed(
    start_server: Callable[..., Runtime], assert_error: Callable[..., Any]
) -> None:
    runtime = start_server(api_key="user", admin_key="root")
    response = httpx.get(f"{runtime.address}/v1/models")
    assert "API key" in assert_error(response, 401, "invalid_api_key")["message"]
    assert response.headers["www-authenticate"] == "Bearer"
    response = httpx.get(f"{runtime.address}/v1/logs", headers=bearer("guess-4711"))
    assert "admin key" in assert_error(response, 401, "invalid_api_key")["message"]
    assert "4711" not in response.text
    assert all("4711" not in entry.message for entry in runtime.logs.entries())


def test_health_shows_less_without_a_key(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(api_key="user")
    seen = httpx.get(f"{runtime.address}/health").json()
    assert set(seen) == {"status", "model", "device", "active_adapter"}
    assert seen == {
        "status": "ok",
        "model": "fake-model",
        "device": "cpu",
        "active_adapter": None,
    }
    known = httpx.get(f"{runtime.address}/health", headers=bearer("user")).json()
    assert {"dtype", "backend", "state", "notes", "uptime_s", "max_model_len"} <= set(known)
    assert httpx.head(f"{runtime.address}/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("127.0.0.1", 200),
        ("127.8.8.8:1", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST.:{port}", 200),
        ("app.localhost", 200),
        ("[::1]:{port}", 200),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example#127.0.0.1", 403),
        ("notlocalhost", 403),
        ("10.0.0.1", 403),
        ("0.0.0.0", 403),
        ("localhost:port", 403),
        ("", 403),
    ],
)
def test_host_header(http: httpx.Client, host: str, status: int) -> None:
    port = http.base_url.port
    response = http.get("/health", headers={"host": host.format(port=port)})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "forbidden"


def test_two_hosts_are_refused(server: Runtime) -> None:
    port = httpx.URL(server.address or "").port
    assert port is not None
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(request)
        status_line = raw.recv(4_096).split(b"\r\n")[0]
    assert status_line.split()[1] in (b"400", b"403")


LOCAL_ORIGINS = [
    "http://localhost:3000",
    "https://localhost",
    "http://127.0.0.1:8080",
    "http://[::1]:5173",
    "http://app.localhost",
]
FOREIGN_ORIGINS = [
    "https://evil.example",
    "http://localhost.evil.example",
    "http://evil.example:3000",
    "null",
    "file://",
    "http://127.0.0.1@evil.example",
    "javascript://localhost",
    "http://",
    "",
]
HELLO_BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("origin", LOCAL_ORIGINS)
def test_local_origins_may_read_everything(http: httpx.Client, origin: str) -> None:
    headers = {"origin": origin}
    for response in (
        http.post(CHAT, json=HELLO_BODY, headers=headers),
        http.post(CHAT, json={**HELLO_BODY, "stream": True}, headers=headers),
        http.post(CHAT, content=b"{", headers=headers),
        http.get("/nope", headers=headers),
        http.get("/health", headers=headers),
        http.request("OPTIONS", CHAT, headers=headers),
        http.get("/health", headers={**headers, "host": "evil.example"}),
    ):
        assert response.headers["access-control-allow-origin"] == origin
        assert "origin" in response.headers["vary"].lower()
    preflight = http.request(
        "OPTIONS",
        CHAT,
        headers={
            **headers,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        },
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_foreign_origins(http: httpx.Client, origin: str, assert_error: Callable[..., Any]) -> None:
    headers = {"origin": origin}
    preflight = {**headers, "access-control-request-method": "POST"}
    for response in (
        http.post(CHAT, json=HELLO_BODY, headers=headers),
        http.post("/tokenize", json={"prompt": "x"}, headers=headers),
        http.delete("/v1/requests/none", headers=headers),
        http.request("OPTIONS", CHAT, headers=preflight),
    ):
        assert_error(response, 403, "forbidden")
        assert "access-control-allow-origin" not in response.headers
    readable = http.get("/health", headers=headers)
    assert readable.status_code == 200
    assert "access-control-allow-origin" not in readable.headers


def test_same_origin_is_not_foreign(start_server: Callable[..., Runtime]) -> None:
    runtime = start_server(host="0.0.0.0", api_key="user")
    port = httpx.URL(runtime.address or "").port
    headers = {"host": "box.example:80", "origin": "http://box.example:80", **bearer("user")}
    url = f"http://127.0.0.1:{port}{CHAT}"
    assert httpx.post(url, json=HELLO_BODY, headers=headers).status_code == 200
    headers["origin"] = "http://other.example"
    assert httpx.post(url, json=HELLO_BODY, headers=headers).status_code == 403


def test_unix_socket(start_server: Callable[..., Runtime], tmp_path: Path) -> None:
    path = tmp_path / "soup.sock"
    runtime = start_server(uds=path)
    assert runtime.address == f"unix:{path}"
    assert path.stat().st_mode & 0o777 == 0o600
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path)), base_url="http://soup"
    ) as client:
        assert client.get("/health").status_code == 200
        answer = client.post(CHAT, json={**HELLO_BODY, "stream": True})
        assert answer.text.endswith("data: [DONE]\n\n")
    runtime.stop()
    assert not path.exists()
