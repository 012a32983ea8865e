"""The web application: who may ask, what may be sent, and messages for everything else."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
import time

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from capsroute.cli.explore import opening
from capsroute.explorer import server
from capsroute.explorer.engine import Refused
from capsroute.explorer.server import HEADERS, LARGEST_QUESTION, STATIC, _body, listen, make_app, make_server

SMALL = "/networks/small"
HANGS = 60  # seconds after which a server that does not answer is given up; it closes idle connections after 75


@pytest.fixture
def client(one_digit):
    return TestClient(make_app({"small": one_digit}), base_url="http://127.0.0.1:8765")


def floats(response):
    assert response.status_code == 200, response.text
    return torch.from_numpy(np.frombuffer(response.content, "<f4").copy())


def test_images_are_answered_with_what_is_wanted(client, one_digit):
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    expected = one_digit.model(images.float() / 255)
    content = images.numpy().tobytes()
    poses, scores = floats(client.post(f"{SMALL}/look?want=poses,scores", content=content)).split([3 * 80, 3 * 10])
    torch.testing.assert_close(scores.view(3, 10), expected.scores.detach())
    torch.testing.assert_close(poses.view(3, 10, 8), expected.poses.flatten(2).detach())


def test_everything_is_answered_where_nothing_is_named(client):
    shapes = client.get(f"{SMALL}/about.json").json()["outputs"]
    assert list(shapes) == ["scores", "poses", "votes"]
    answer = floats(client.post(f"{SMALL}/look", content=bytes(64)))
    assert len(answer) == sum(int(np.prod(shape)) for shape in shapes.values())


def test_a_capsule_is_painted(client, one_digit):
    output = one_digit.model(torch.rand(1, 1, 8, 8), labels=torch.tensor([4]))
    alone = np.zeros((1, 1, 10, 8), "<f4")
    alone[0, 0, 4] = output.poses[0, 4, 0].detach()
    painted = floats(client.post(f"{SMALL}/paint", content=alone.tobytes()))
    torch.testing.assert_close(painted.view(1, 1, 8, 8), output.reconstruction.detach())


def test_the_page_needs_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "http" not in page.headers["content-security-policy"]
    for file in STATIC.iterdir():
        assert client.get(f"/static/{file.name}").status_code == 200
        assert re.findall(r"\w+:?//\S+", file.read_text()) == [], f"{file.name} names an address"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/networks.json", 200),
        ("GET", "/static/explorer.js", 200),
        ("GET", "/nothing", 404),
        ("GET", "/static/nothing.js", 404),
        ("GET", "/static/../server.py", 404),
        ("GET", f"{SMALL}/look", 405),
        ("POST", "/networks.json", 405),
        ("PUT", "/", 405),
        ("POST", f"{SMALL}/look", 400),
        ("GET", "/networks/other/about.json", 400),
    ],
)
def test_every_answer_has_the_security_headers(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", ""])
def test_only_this_machines_names_are_answered(client, host):
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "localhost"])
def test_this_machines_names(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_a_named_host_is_answered_when_told_so(one_digit):
    client = TestClient(make_app({"small": one_digit}, "gpu.lab"), base_url="http://gpu.lab:80")
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://127.0.0.1.evil.example:8765", "http://127.0.0.1:9999", "http://[::1", "null", ""],
)
def test_questions_from_pages_of_others_are_refused(client, origin):
    answer = client.post(f"{SMALL}/look", content=bytes(64), headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_questions_from_our_own_page_are_answered(client):
    own = {"Origin": "http://127.0.0.1:8765"}
    assert client.post(f"{SMALL}/look", content=bytes(64), headers=own).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("small/look", b""),
        ("small/look", b"not an image"),
        ("small/look", bytes(63)),
        ("small/look", bytes(64 * 17)),
        ("small/look?want=weights", bytes(64)),
        ("small/look?want=scores,scores", bytes(64)),
        ("small/look?want=", bytes(64)),
        ("other/look", bytes(64)),
        ("small/paint", b""),
        ("small/paint", json.dumps({"class": True, "pose": [0] * 8}).encode()),
        ("small/paint", json.dumps({"class": 3, "pose": [int("9" * 400)] * 8}).encode()),
        ("small/paint", json.dumps({"width": int("9" * 4000)}).encode()),
        ("small/paint", np.full((1, 1, 10, 8), np.nan, "<f4").tobytes()),
        ("small/paint", np.full((1, 1, 10, 8), np.inf, "<f4").tobytes()),
    ],
)
def test_rubbish_gets_a_message(client, path, body):
    answer = client.post(f"/networks/{path}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_network_without_a_decoder_paints_nothing(one_digit):
    one_digit.model.register_module("decoder", None)
    client = TestClient(make_app({"small": one_digit}), base_url="http://localhost")
    answer = client.post(f"{SMALL}/paint", content=bytes(4 * 80))
    assert (answer.status_code, answer.json()["error"]) == (400, "This network has no decoder.")


def test_what_is_too_large_gets_a_message(client):
    answer = client.post(f"{SMALL}/look", content=b"0" * (LARGEST_QUESTION + 1))
    assert answer.status_code == 400
    assert "too large" in answer.json()["error"]


def test_pictures_are_decoded_by_the_browser_never_here(client):
    # A picture of 54 KB may unpack to half a gigabyte: there is nothing here that would.
    assert client.post("/api/upload", content=b"\x89PNG").status_code == 404
    assert not any("PIL" in file.read_text() for file in STATIC.parent.glob("*.py"))


def test_what_is_too_large_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(server, "LARGEST_QUESTION", 5000)

    class Endless:
        parts = 0

        async def stream(self):
            while True:
                self.parts += 1
                yield b"0" * 1000

    request = Endless()
    with pytest.raises(Refused, match="too large"):
        asyncio.run(_body(request))
    assert request.parts == 6


def test_a_question_that_never_ends_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(server, "READ_SECONDS", 0.05)

    class Stalled:
        async def stream(self):
            yield b"0"
            await asyncio.sleep(60)

    with pytest.raises(Refused, match="whole question within"):
        asyncio.run(_body(Stalled()))


def test_listening_is_local_and_says_when_a_port_is_taken():
    with listen("127.0.0.1", 0) as opened:
        host, port = opened.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ValueError, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)
        with socket.create_connection((host, port), timeout=HANGS):
            pass
    with pytest.raises(ValueError, match=r"--host: cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)  # of no machine
    with pytest.raises(ValueError, match="--host: expected an address"):
        listen("", 0)


@pytest.fixture
def running(one_digit, monkeypatch):
    """The port of a server with little patience."""
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    opened = listen("127.0.0.1", 0)
    served = make_server(make_app({"small": one_digit}))
    thread = threading.Thread(target=served.run, kwargs={"sockets": [opened]})
    thread.start()
    yield opened.getsockname()[1]
    served.should_exit = True
    thread.join()


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: loc", b"GET /networks.json HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"]
)
def test_half_open_connections_are_closed(running, sent):
    closed = contextlib.suppress(ConnectionResetError, BrokenPipeError)
    with socket.create_connection(("127.0.0.1", running), timeout=HANGS) as connection, closed:
        connection.sendall(sent)
        while connection.recv(65536):
            pass


def trickle(connection, content: bytes) -> None:
    for byte in content:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def test_bytes_now_and_then_gain_nothing(running):
    with socket.create_connection(("127.0.0.1", running), timeout=HANGS) as connection, pytest.raises(OSError):
        trickle(connection, b"GET /networks.json HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"0" * 200)


def test_whoever_pauses_between_questions_is_not_cut_off(running, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", HANGS)
    connection = http.client.HTTPConnection("127.0.0.1", running, timeout=HANGS)
    connection.connect()
    own = connection.sock
    for patience, pause in ((HANGS, 0), (0.2, 0), (0.2, 0.5)):  # longer than half a question may take
        monkeypatch.setattr(server, "PATIENCE", patience)
        time.sleep(pause)
        connection.request("GET", "/networks.json")
        assert connection.getresponse().read().startswith(b"{")
    assert connection.sock is own  # never opened anew
    connection.close()


def test_a_name_that_is_everywhere_says_what_it_opens():
    assert len(opening("127.0.0.1", 80, ["digits"])) == 1
    lines = " ".join(opening("0.0.0.0", 80, ["digits"]))
    assert "open to everyone" in lines
    assert "without a password" in lines
    assert "digits" in lines
