"""The web application: who may ask, what may be sent, and messages for everything else."""

import asyncio
import io
import json
import re
import socket

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from capsroute.explorer.pictures import Refused, as_message, from_message
from capsroute.explorer.server import LARGEST_QUESTION, LARGEST_UPLOAD, STATIC, _body, listen, make_app


@pytest.fixture
def client(one_digit):
    return TestClient(make_app(one_digit), base_url="http://127.0.0.1:8765")


def png(mode: str = "L", size: tuple[int, int] = (20, 20), colour=0) -> bytes:
    content = io.BytesIO()
    Image.new(mode, size, colour).save(content, "PNG")
    return content.getvalue()


def test_a_drawing_is_answered(client, one_digit):
    image = torch.rand(1, 32, 32)
    answer = client.post("/api/predict", json={"image": as_message(image), "centre": False})
    assert answer.status_code == 200
    seen = from_message(answer.json()["seen"])
    assert seen.shape == (1, 8, 8)
    assert answer.json()["dynamic"] == pytest.approx(one_digit.model(seen[None]).scores[0].tolist(), abs=0.02)
    routed = client.post("/api/route", json={"image": answer.json()["seen"]})
    assert len(routed.json()["lengths"]) == 3
    (capsule,) = answer.json()["found"]
    picture = client.post("/api/reconstruct", json={"class": capsule["class"], "pose": capsule["pose"]}).json()
    assert picture["picture"] == capsule["picture"]


def test_the_page_needs_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    for file in STATIC.iterdir():
        assert client.get(f"/static/{file.name}").headers["content-security-policy"] == policy
        assert re.findall(r"\w+:?//\S+", file.read_text()) == [], f"{file.name} names an address"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", ""])
def test_only_this_machines_names_are_answered(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "localhost"])
def test_this_machines_names(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_a_named_host_is_answered_when_told_so(one_digit):
    client = TestClient(make_app(one_digit, "gpu.lab"), base_url="http://gpu.lab:80")
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("predict", b"not json"),
        ("predict", b"\xff\xfe"),
        ("predict", b"[]"),
        ("predict", b"[" * 100_000),
        ("predict", b"{}"),
        ("predict", json.dumps({"image": {"width": 1, "height": 1, "channels": 1, "data": "AAAA"}}).encode()),
        ("route", b"{}"),
        ("reconstruct", b'{"class": 3}'),
        ("reconstruct", b'{"class": 3, "pose": ["a"]}'),
        ("reconstruct", b'{"class": 3, "pose": [NaN, 0, 0, 0, 0, 0, 0, 0]}'),
        ("reconstruct", b'{"class": 30, "pose": [0, 0, 0, 0, 0, 0, 0, 0]}'),
        ("reconstruct", b'{"class": 1, "pose": []}'),
        ("upload", b""),
        ("upload", b"rubbish"),
        ("upload", png("I;16")),
        ("upload", png()[:40]),
    ],
)
def test_rubbish_gets_a_message(client, path, body):
    answer = client.post(f"/api/{path}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize(("path", "most"), [("predict", LARGEST_QUESTION), ("upload", LARGEST_UPLOAD)])
def test_what_is_too_large_gets_a_message(client, path, most):
    answer = client.post(f"/api/{path}", content=b"0" * (most + 1))
    assert answer.status_code == 400
    assert "too large" in answer.json()["error"]


def test_what_is_too_large_is_not_read_to_its_end():
    class Endless:
        parts = 0

        async def stream(self):
            while True:
                self.parts += 1
                yield b"0" * 1000

    request = Endless()
    with pytest.raises(Refused, match="too large"):
        asyncio.run(_body(request, 5000))
    assert request.parts == 6


def test_an_upload_is_made_to_fit(client):
    image = from_message(client.post("/api/upload", content=png("RGB", (40, 20), (255, 255, 255))).json()["image"])
    assert torch.equal(image, torch.ones(1, 8, 8))


def test_dark_on_light_is_turned_round_for_digits(one_digit):
    client = TestClient(make_app(type(one_digit)(**{**vars(one_digit), "centred": True})), base_url="http://localhost")
    picture = Image.new("L", (60, 60), 255)
    picture.paste(0, (25, 10, 35, 50))
    content = io.BytesIO()
    picture.save(content, "PNG")
    image = from_message(client.post("/api/upload", content=content.getvalue()).json()["image"])
    assert image[0, 4, 4] > 0.5  # the stroke
    assert image[0, 0, 0] == 0  # the paper


def test_questions_are_posted(client):
    assert client.get("/api/predict").status_code == 405
    assert client.get("/static/../server.py").status_code == 404


def test_listening_is_local_and_says_when_a_port_is_taken():
    with listen("127.0.0.1", 0) as opened:
        host, port = opened.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ValueError, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)
        with socket.create_connection((host, port), timeout=5):
            pass
