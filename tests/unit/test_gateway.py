"""A cluster behind a gateway: TLS with its own CA, client certificates, a path prefix, a cookie of the single sign-on."""

import asyncio
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from plugin_core import RayCluster, RunConfig, TrainSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.find import find_cluster
from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError
from plugin_core.specs.references import CLUSTERS

COOKIE = "sso=abc"


def pem(folder: Path, name: str, signed_by: Any = None) -> tuple[Path, Any]:
    """A file with a key and its certificate, signed by another one or by itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (signed_by[0].subject, signed_by[1]) if signed_by else (subject, key)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    builder = builder.not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = builder.add_extension(names, False).add_extension(x509.BasicConstraints(signed_by is None, None), True)
    made = builder.sign(signer, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (file := folder / f"{name}.pem").write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
    return file, (made, key)


class Gateway:
    """An HTTPS server that passes `/ray/…` on to a cluster, to clients with a certificate of the CA and the cookie."""

    def __init__(self, target: str, folder: Path):
        self.target = target
        self.ca, ca = pem(folder, "ca")
        self.client, _ = pem(folder, "client", ca)
        server, _ = pem(folder, "server", ca)
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        self._tls.load_cert_chain(server)
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True, name="gateway")

    def __enter__(self) -> "Gateway":
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/ray/{path:.*}", self._pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.address = f"https://127.0.0.1:{runner.addresses[0][1]}/ray"
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._done.wait()
        await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        if request.headers.get("Cookie") != COOKIE:
            return web.Response(status=403, text="log in")
        url = f"{self.target}/{request.match_info['path']}"
        headers = {"Content-Type": request.content_type}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, url, params=request.query, data=await request.read(), headers=headers
            ) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(metrics={"loss": 0.5}) as fake:
        yield fake


@pytest.fixture
def gateway(fake: FakeCluster, tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(fake.address, tmp_path) as gateway:
        yield gateway


def spec(tmp_path: Path) -> TrainSpec:
    (code := tmp_path / "code").mkdir()
    (code / "steps.py").write_text("def loop(config): ...")
    return TrainSpec(
        framework="python",
        train_loop_per_worker="steps:loop",
        runtime_env={"working_dir": str(code)},
        run_config=RunConfig(name="a", storage_path=str(tmp_path / "runs")),
    )


def test_a_step_runs_behind_a_gateway(gateway: Gateway, fake: FakeCluster, tmp_path: Path) -> None:
    options = {"verify": str(gateway.ca), "cert": str(gateway.client), "headers": {"Cookie": COOKIE}}
    cluster = RayCluster(f"{gateway.address}/", **options)  # type: ignore[arg-type]
    assert run(spec(tmp_path), cluster).metrics == {"loss": 0.5}
    assert len(fake.packages) == 1, "the code was uploaded through the gateway too"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"cert": None}, ClusterUnreachableError, "cannot be reached"),
        ({"cert": "/none.pem"}, ClusterRefusedError, r"cert: got '/none.pem', which cannot be read .* a PEM file"),
        (
            {"cert": "ca without a key"},
            ClusterRefusedError,
            "cert: got .* expected a PEM file with a certificate and its key",
        ),
        ({"verify": True}, ClusterUnreachableError, "certificate verify failed"),
        ({"headers": {}}, ClusterRefusedError, "returned 403"),
        ({"address": "https://127.0.0.1:{port}"}, ClusterRefusedError, "cluster: "),
    ],
)
def test_what_a_gateway_refuses_is_told(
    gateway: Gateway, tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"verify": str(gateway.ca), "cert": str(gateway.client), "headers": {"Cookie": COOKIE}, **change}
    if given["cert"] == "ca without a key":
        text = gateway.ca.read_text()
        (keyless := tmp_path / "keyless.pem").write_text(text[text.index("-----BEGIN CERTIFICATE") :])
        given["cert"] = str(keyless)
    port = gateway.address.split(":")[2].partition("/")[0]
    address = given.pop("address", gateway.address).format(port=port)
    with pytest.raises((ClusterRefusedError, ClusterUnreachableError), match=words) as caught:
        run(spec(tmp_path), RayCluster(address, **given))
    assert isinstance(caught.value, error) or "address" in change
    assert COOKIE not in str(caught.value)


def test_without_verification_a_client_certificate_is_still_shown(gateway: Gateway, tmp_path: Path) -> None:
    cluster = RayCluster(gateway.address, cert=str(gateway.client), verify=False, headers={"Cookie": COOKIE})
    with pytest.warns(Warning, match="Unverified HTTPS request"):
        assert run(spec(tmp_path), cluster).metrics == {"loss": 0.5}


def test_an_artifact_shows_its_certificate_to_listed_clusters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = RayCluster("https://ray.example/ray", cert="/etc/me.pem").reference()
    assert getattr(find_cluster(reference), "cert", "") is None
    monkeypatch.setenv(CLUSTERS, "https://ray.example/ray")
    assert getattr(find_cluster(reference), "cert", "") == "/etc/me.pem"
