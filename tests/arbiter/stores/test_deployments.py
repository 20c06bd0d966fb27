"""Commit stores as they are deployed: standbys, proxies, TLS, Sentinel."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import servers
from holdfast.arbiter import CommitStore, Key, SupportsSetUp, connect_commit_store, new_token
from holdfast.errors import HoldfastError, UnavailableError
from standbys import PostgresPair, postgres_pair

pytestmark = pytest.mark.requirement("C5")


def series() -> str:
    return f"{new_token()}/versions"


@contextlib.contextmanager
def opened(url: str) -> Iterator[CommitStore]:
    with contextlib.closing(connect_commit_store(url)) as store:
        yield store


def use(store: CommitStore) -> None:
    """Set a store up and let every verb do its work."""
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    key = Key(series(), 0)
    assert store.put_if_absent(key, b"a") is None
    assert store.compare_and_set(key, b"a", b"b")
    assert [entry.value for entry in store.scan(key.series)] == [b"b"]
    assert store.collect(key.series, 0) == 1
    assert store.boundary(key.series) == 0


# A synchronous standby


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    """A PostgreSQL that answers when its standby has the decision, and that standby."""
    with postgres_pair("synchronous_standby_names=*") as pair:
        yield pair


def cancel_waits(pair: PostgresPair, done: threading.Event) -> int:
    """Cancel, as an administrator, every wait for the standby until `done`."""
    cancelled = 0
    with psycopg.connect(pair.primary.url, autocommit=True) as admin:
        while not done.is_set():
            found = admin.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ).fetchall()
            cancelled += len(found)
            time.sleep(0.02)
    return cancelled


def test_a_cancelled_wait_for_the_standby_is_an_unknown_outcome(pair: PostgresPair) -> None:
    key = Key(series(), 0)
    with opened(pair.primary.url) as store:
        use(store)
        pair.replica.kill()
        done = threading.Event()
        outcome: list[object] = []

        def put() -> None:
            try:
                outcome.append(store.put_if_absent(key, b"mine"))
            except HoldfastError as error:
                outcome.append(error)
            done.set()

        thread = threading.Thread(target=put)
        thread.start()
        assert cancel_waits(pair, done) >= 1
        thread.join()
        assert isinstance(outcome[0], UnavailableError), "acknowledged without the standby"
        pair.replica.start()
        assert store.put_if_absent(key, b"other") == b"mine"
        assert store.put_if_absent(Key(key.series, 1), b"next") is None


def test_what_was_acknowledged_is_on_the_standby(pair: PostgresPair) -> None:
    name = series()
    with opened(pair.primary.url) as store:
        use(store)
        identity = store.identity()
        for number in range(20):
            assert store.put_if_absent(Key(name, number), b"%d" % number) is None
    pair.primary.kill()
    pair.promote()
    with opened(pair.replica.url) as promoted:
        assert promoted.identity() == identity
        assert [entry.number for entry in promoted.scan(name)] == list(range(20))


# A proxy that pools sessions


def test_pgbouncer_that_pools_sessions(postgres: servers.Server, tmp_path: Path) -> None:
    program = servers.find_program("pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port = servers.free_port()
    folder = Path(servers._new_folder("pgbouncer", postgres.account))
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"""[databases]
postgres = host=127.0.0.1 port={postgres.port} user=holdfast password='{servers.PASSWORD}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = session
unix_socket_dir =
"""
    )
    config.chmod(0o644)
    url = f"postgresql://holdfast@127.0.0.1:{port}/postgres"

    def answers() -> bool:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    proxy = servers.Server(
        url=url,
        admin_url=url,
        port=port,
        folder=folder,
        account=postgres.account,
        answers=answers,
        command=[program, str(config)],
    )
    proxy.start()
    try:
        with opened(url) as store:
            use(store)
            assert store.identity() == connect_commit_store(postgres.url).identity()
    finally:
        proxy.stop()


# TLS


@pytest.fixture(scope="module")
def certificate() -> Iterator[Path]:
    """Make a certificate for this machine that is its own authority."""
    folder = servers._new_folder("tls", None)  # pytest's own are closed to other accounts
    folder.chmod(0o755)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast tests")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    yield folder
    shutil.rmtree(folder)


def keep_for(certificate: Path, name: str, account: str) -> Path:
    """Copy the certificate for a server that runs as another user and wants its key private."""
    folder = certificate / name
    shutil.copytree(certificate, folder, ignore=shutil.ignore_patterns("for-*"))
    with contextlib.suppress(LookupError, PermissionError):
        for file in (folder, *folder.iterdir()):
            shutil.chown(file, account)
    (folder / "key.pem").chmod(0o600)
    return folder


def check_tls(url: Callable[[str], str], certificate: Path) -> None:
    """Use a store by TLS, and refuse a server whose certificate is another's."""
    with opened(url(str(certificate / "cert.pem"))) as store:
        use(store)
    other = certificate / "other.pem"
    if not other.exists():
        other.write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    with opened(url(str(other))) as store, pytest.raises(HoldfastError) as caught:
        store.identity()
    assert servers.PASSWORD not in str(caught.value)


def test_tls_to_postgresql(certificate: Path) -> None:
    servers.require("postgres")
    folder = keep_for(certificate, "for-postgres", "postgres")
    settings = [f"ssl_cert_file={folder}/cert.pem", f"ssl_key_file={folder}/key.pem"]
    with servers.running("postgres", "ssl=on", *settings) as server:
        check_tls(lambda ca: f"{server.url}?sslmode=verify-full&sslrootcert={ca}", certificate)


def test_tls_to_mariadb(certificate: Path) -> None:
    folder = keep_for(certificate, "for-mariadb", "mysql")
    settings = [f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem"]
    with servers.running("mariadb", *settings) as server:
        check_tls(lambda ca: f"{server.url}?ssl_ca={ca}", certificate)


def test_tls_to_redis(certificate: Path) -> None:
    port = servers.free_port()
    settings = ["--tls-port", str(port), "--tls-cert-file", str(certificate / "cert.pem")]
    settings += ["--tls-key-file", str(certificate / "key.pem"), "--tls-auth-clients", "no"]
    settings += ["--tls-ca-cert-file", str(certificate / "cert.pem")]
    with servers.running("redis", *settings) as server:
        address = server.url.replace("redis://", "rediss://").replace(f":{server.port}", f":{port}")
        check_tls(lambda ca: f"{address}?ssl_ca_certs={ca}", certificate)


# Sentinel


def test_a_sentinel_is_refused_with_the_reason(tmp_path: Path) -> None:
    servers.require("redis")
    port = servers.free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor lake 127.0.0.1 1 1\n")
    program = servers.find_program("redis-server")
    process = subprocess.Popen(
        [str(program), str(config), "--sentinel"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with opened(f"redis://127.0.0.1:{port}/0") as store:
            assert isinstance(store, SupportsSetUp)
            problems = None
            for _ in range(200):
                with contextlib.suppress(UnavailableError):
                    problems = store.check()
                    break
                time.sleep(0.05)
            assert problems is not None
            assert "Sentinel" in problems[0]
            with pytest.raises(HoldfastError, match="Sentinel"):
                store.set_up()
    finally:
        process.kill()
        process.wait()
