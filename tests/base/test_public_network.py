"""Client-supplied addresses are resolved once, and connected to on the public network only."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from graph_agent.base._internal import public_network
from graph_agent.base._internal.public_network import NotPublicError, PublicTransport, is_public, is_public_url
from tests.support.a2a_servers import serving

PRIVATE = [
    *("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "240.0.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1"),
    *("2002:7f00:1::", "2002:0a00:0001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2600::5efe:7f00:1"),
    *("", "localhost", "127.1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_or_embeds_another_is_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"])
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_public(address)


class Resolver:
    """Resolves every name to the next of some addresses, and repeats the last."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.asked: list[str] = []

    def __call__(self, host: str, port: Any, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        address = self._addresses.pop(0) if len(self._addresses) > 1 else self._addresses[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]


def receiver(hits: list[str]) -> Starlette:
    async def hook(request: Request) -> Response:
        hits.append(request.headers["host"])
        return PlainTextResponse("fine")

    return Starlette(routes=[Route("/hook", hook, methods=["POST"])])


async def test_a_name_that_was_bound_anew_does_not_reach_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    hits: list[str] = []
    with serving(lambda _: receiver(hits)) as url:
        port = httpx.URL(url).port
        monkeypatch.setattr(socket, "getaddrinfo", Resolver("1.1.1.1", "127.0.0.1"))
        registered = await is_public_url(f"http://rebound.example:{port}/hook")
        async with httpx.AsyncClient(transport=PublicTransport(), trust_env=False, verify=False) as http:
            with pytest.raises(NotPublicError, match=r"'rebound.example' is not on the public network"):
                await http.post(f"http://rebound.example:{port}/hook")
    assert (registered, hits) == (True, [])


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    hits: list[str] = []
    resolver = Resolver("127.0.0.1", "127.0.0.2")
    with serving(lambda _: receiver(hits)) as url:
        port = httpx.URL(url).port
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        monkeypatch.setattr(public_network, "is_public", lambda address: address == "127.0.0.1")
        async with httpx.AsyncClient(transport=PublicTransport(), trust_env=False, verify=False) as http:
            answers = [(await http.post(f"http://checked.example:{port}/hook")).text]
            with pytest.raises(NotPublicError):
                await http.post(f"http://checked.example:{port}/hook")
    assert (answers, hits, resolver.asked.count("checked.example")) == (["fine"], [f"checked.example:{port}"], 2)


@pytest.mark.parametrize(
    "url", ["ftp://1.1.1.1/", "http://", "http://1.1.1.1:x/", "http://[::1]/", "http://2130706433/"]
)
async def test_other_urls_are_not_public(url: str) -> None:
    assert not await is_public_url(url)
