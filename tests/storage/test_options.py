"""Storage options: pylance's names in, the client's words out, and no secret in any text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import options as table
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.options import ClientSettings, StorageOptions, is_loopback, resolve, translate
from holdfast.storage import open_store

ROOT = Path(__file__).resolve().parents[2]
REMOTE = ("s3", "gs", "az")
BACKENDS = (*REMOTE, "file", "memory")
CLIENT_VALUES = {
    "connect_timeout": "5s",
    "pool_idle_timeout": "1m 30s",
    "pool_max_idle_per_host": "4",
    "proxy_ca_certificate": "",
    "proxy_excludes": "localhost",
    "proxy_url": "http://127.0.0.1:1",
    "timeout": "30s",
    "user_agent": "me",
}
# What makes a store of each backend that can be opened.
BASE = {
    "s3": {"access_key_id": "id", "secret_access_key": "key"},
    "gs": {"bearer_token": "x"},
    "az": {"account_name": "acc", "account_key": "a2V5"},
}


def spellings(backend: str, name: str) -> Iterator[str]:
    for prefix in ("", *table._PREFIXES[backend]):
        yield prefix + name
        yield (prefix + name).upper()


def value_for(name: str) -> str:
    if name in table._FLAGS:
        return "true"
    return "https://host:9000" if name in {"endpoint", "base_url"} else "value"


def translated(backend: str, **options: str) -> ClientSettings:
    return translate(backend, StorageOptions(options))


CONFIG = [(b, n) for b in REMOTE for n in table._CONFIG[b]]
ALIASES = [(b, a, n) for b in REMOTE for a, n in table._ALIASES[b].items()]


# Translation


@pytest.mark.parametrize(("backend", "name"), CONFIG)
def test_a_name_is_known_in_all_its_spellings(backend: str, name: str) -> None:
    for spelling in spellings(backend, name):
        settings = translated(backend, **{spelling: value_for(name)})
        assert settings.config == {name: value_for(name)}
        assert not settings.client or settings.client == {"allow_http": True}


@pytest.mark.parametrize(("backend", "alias", "name"), ALIASES)
def test_an_alias_means_its_name_in_all_its_spellings(backend: str, alias: str, name: str) -> None:
    assert name in table._CONFIG[backend]
    for spelling in spellings(backend, alias):
        assert translated(backend, **{spelling: value_for(name)}).config == {name: value_for(name)}


@pytest.mark.parametrize(
    ("backend", "given", "name"),
    [
        ("s3", "aws_access_key_id", "access_key_id"),
        ("s3", "AWS_SECRET_ACCESS_KEY", "secret_access_key"),
        ("s3", "aws_endpoint_url", "endpoint"),
        ("s3", "endpoint_url", "endpoint"),
        ("s3", "aws_endpoint_url_s3", "endpoint"),
        ("s3", "aws_token", "session_token"),
        ("s3", "aws_endpoint_url_sts", "endpoint_url_sts"),
        ("s3", "aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
        ("gs", "google_service_account_path", "service_account"),
        ("gs", "google_storage_token", "bearer_token"),
        ("gs", "service_account_key", "service_account_key"),
        ("az", "azure_storage_account_name", "account_name"),
        ("az", "azure_storage_sas_token", "sas_key"),
        ("az", "azure_sas_token", "sas_key"),
        ("az", "azure_storage_access_key", "account_key"),
        ("az", "azure_tenant_id", "tenant_id"),
        ("az", "azure_storage_authority_id", "tenant_id"),
    ],
)
def test_pylances_own_spellings(backend: str, given: str, name: str) -> None:
    assert translated(backend, **{given: value_for(name)}).config == {name: value_for(name)}


@pytest.mark.parametrize("backend", REMOTE)
@pytest.mark.parametrize("name", sorted(table._CLIENT))
def test_a_client_option_never_reaches_the_config(backend: str, name: str) -> None:
    target = table._CLIENT[name]
    value = "true" if target in table._FLAGS else CLIENT_VALUES[target]
    for spelling in spellings(backend, name):
        settings = translated(backend, **{spelling: value})
        assert settings.config == {}
        assert settings.client == {target: True if target in table._FLAGS else value}


@pytest.mark.parametrize(("backend", "name"), CONFIG)
def test_no_entry_of_the_table_is_unknown_to_the_client(backend: str, name: str) -> None:
    """Open with every name: a value may be refused in our words, but nothing may panic."""
    for value in ("true", "CANARY", "5", "https://host"):
        refused = refusal(f"{backend}://bucket/t", {**BASE[backend], name: value})
        assert isinstance(refused, InvalidInputError | None)
        assert "is not valid for store" not in str(refused)
        assert "CANARY" not in str(refused)
        assert refused is None or refused.__cause__ is None


def refusal(url: str, options: dict[str, str]) -> BaseException | None:
    try:
        open_store(url, options)
    except BaseException as error:  # noqa: BLE001 - a panic of the client is no Exception
        return error
    return None


@pytest.mark.parametrize("name", sorted(table._CLIENT))
def test_every_client_option_opens_a_store(name: str) -> None:
    target = table._CLIENT[name]
    value = "true" if target in table._FLAGS else CLIENT_VALUES[target]
    refused = refusal("s3://bucket/t", {**BASE["s3"], name: value})
    assert refused is None or name == "proxy_ca_certificate"  # an empty one is no certificate


def test_lance_only_options_are_accepted_and_dropped() -> None:
    for name in table._LANCE_ONLY:
        for backend in BACKENDS:
            assert translated(backend, **{name: "1"}).config == {}


def test_retries_are_numbers() -> None:
    settings = translated("s3", client_max_retries="7", client_retry_timeout="2.5")
    assert (settings.max_retries, settings.retry_timeout_seconds) == (7, 2.5)
    assert translated("s3", client_retry_timeout="0").retry_timeout_seconds == 0
    assert translated("s3").max_retries is None
    for bad in ("-1", "many", "nan", "inf", "", "1e9"):
        for name in table._RETRY:
            with pytest.raises(InvalidInputError, match=name):
                translated("s3", **{name: bad})
    with pytest.raises(InvalidInputError, match="whole number"):
        translated("s3", client_max_retries="1.5")


@pytest.mark.parametrize("value", ["true", "TRUE", "1", "yes", "on"])
def test_what_is_true(value: str) -> None:
    assert translated("s3", allow_http=value).client["allow_http"] is True
    assert translated("s3", skip_signature=value).config["skip_signature"] == "true"


@pytest.mark.parametrize("value", ["false", "0", "No", "off"])
def test_what_is_false(value: str) -> None:
    assert translated("s3", allow_http=value).client["allow_http"] is False
    assert translated("s3", skip_signature=value).config["skip_signature"] == "false"


@pytest.mark.parametrize("value", ["", "maybe", "2", "truee", "CANARY"])
def test_what_is_neither(value: str) -> None:
    for name in sorted(table._FLAGS & {*table._CLIENT, *table._CONFIG["s3"]}):
        with pytest.raises(InvalidInputError, match=f"{name} is true or false") as caught:
            translated("s3", **{name: value})
        assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("value", ["5", "soon", "", "-1s", "5s;"])
def test_a_duration_has_a_unit(value: str) -> None:
    for name in ("timeout", "connect_timeout", "request_timeout", "pool_idle_timeout"):
        with pytest.raises(InvalidInputError, match="duration"):
            translated("s3", **{name: value})
    with pytest.raises(InvalidInputError, match="whole number"):
        translated("s3", pool_max_idle_per_host=value + "x")


# Unknown and contradicting options


@pytest.mark.parametrize(
    ("backend", "given", "meant"),
    [
        ("s3", "aws_acess_key_id", "aws_access_key_id"),
        ("s3", "regoin", "region"),
        ("s3", "alow_http", "allow_http"),
        ("s3", "conect_timeout", "connect_timeout"),
        ("s3", "client_max_retry", "client_max_retries"),
        ("gs", "google_service_acount", "google_service_account"),
        ("az", "azure_storage_acount_name", "azure_storage_account_name"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(backend: str, given: str, meant: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        translated(backend, **{given: "CANARY"})
    assert f"did you mean {meant!r}?" in str(caught.value)
    assert given in str(caught.value)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "key", ["", "x", "aws_", "bucket", "aws_bucket", "prefix", "\0", "__class__"]
)
def test_what_is_not_in_the_table_is_refused(backend: str, key: str) -> None:
    with pytest.raises(InvalidInputError, match="unknown storage option"):
        translated(backend, **{key: "value"})


@pytest.mark.parametrize("backend", ["file", "memory"])
def test_local_stores_take_no_remote_options(backend: str) -> None:
    for name in ("aws_region", "allow_http", "timeout"):
        with pytest.raises(InvalidInputError, match="unknown storage option"):
            translated(backend, **{name: "x"})


def test_one_option_in_two_spellings() -> None:
    same = translated("s3", aws_region="a", region="a")
    assert same.config == {"region": "a"}
    for pair in (
        {"aws_region": "CANARY-1", "region": "CANARY-2"},
        {"aws_endpoint": "https://a", "endpoint_url": "https://b"},
        {"timeout": "5s", "request_timeout": "6s"},
    ):
        with pytest.raises(InvalidInputError, match="twice") as caught:
            translated("s3", **pair)
        assert "CANARY" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="twice"):
        StorageOptions({"Region": "a", "REGION": "b"})
    assert StorageOptions({"Region": "a", "REGION": "a"}) == {"region": "a"}


# Values from the environment


def test_env_values_are_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    options = StorageOptions({"aws_secret_access_key": "env:HOLDFAST_TEST_SECRET"})
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", "first")
    assert translate("s3", options).config == {"secret_access_key": "first"}
    monkeypatch.setenv("HOLDFAST_TEST_SECRET", "second")
    assert translate("s3", options).config == {"secret_access_key": "second"}
    assert options["aws_secret_access_key"] == "env:HOLDFAST_TEST_SECRET"
    assert "env:HOLDFAST_TEST_SECRET" in repr(options)
    assert "second" not in repr(options)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TEST_SECRET", raising=False)
    with pytest.raises(InvalidInputError) as caught:
        translated("s3", aws_secret_access_key="env:HOLDFAST_TEST_SECRET")
    assert "HOLDFAST_TEST_SECRET" in str(caught.value)
    assert "aws_secret_access_key" in str(caught.value)
    with pytest.raises(InvalidInputError):
        resolve("x", "env:")


def test_env_values_are_checked_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_ENDPOINT", "http://example.com")
    with pytest.raises(InvalidInputError, match="plain http"):
        translated("s3", endpoint="env:HOLDFAST_TEST_ENDPOINT")


# Transport


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000", "HTTP://127.0.0.7"],
)
def test_plain_http_to_this_machine_is_fine(endpoint: str) -> None:
    assert translated("s3", endpoint=endpoint).client == {"allow_http": True}


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://example.com",
        "HTTP://example.com",
        "http://10.0.0.1:9000",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://0.0.0.0:9000",
    ],
)
def test_plain_http_elsewhere_must_be_allowed(endpoint: str) -> None:
    for backend, name in (("s3", "endpoint"), ("cos", "cos_endpoint"), ("az", "endpoint")):
        with pytest.raises(InvalidInputError, match="allow_http=true"):
            translated(backend, **{name: endpoint})
        with pytest.raises(InvalidInputError, match="allow_http=true"):
            translated(backend, **{name: endpoint, "allow_http": "false"})
        assert translated(backend, **{name: endpoint, "allow_http": "true"}).config
    with pytest.raises(InvalidInputError, match="allow_http=true"):
        translated("gs", base_url=endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "example.com",
        "127.0.0.1:9000",
        "ftp://host",
        "https://",
        "http://[",
        "",
        "https://u:CANARY@h",
    ],
)
def test_an_endpoint_is_a_url_without_credentials(endpoint: str) -> None:
    with pytest.raises(InvalidInputError, match="option endpoint is a URL") as caught:
        translated("s3", endpoint=endpoint, allow_http="true")
    assert "CANARY" not in str(caught.value)


def test_https_needs_nothing() -> None:
    assert translated("s3", endpoint="https://example.com").client == {}


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("", False), ("localhos", False)],
)
def test_loopback(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted


# No secret in any text


def every_known_key() -> Iterator[tuple[str, bool]]:
    """Yield every accepted spelling, and whether its value may be shown."""
    for backend in REMOTE:
        names = {name: name for name in table._CONFIG[backend]}
        for spelled, name in {**names, **table._ALIASES[backend], **table._CLIENT}.items():
            for prefix in ("", *table._PREFIXES[backend]):
                yield prefix + spelled, name in table._PRINTABLE
    for name in table._RETRY | table._LANCE_ONLY:
        yield name, True


def test_only_printable_values_are_shown() -> None:
    hidden = set()
    for key, printable in every_known_key():
        options = StorageOptions({key.upper(): "CANARY"})
        for text in (repr(options), str(options), f"{options}"):
            assert key in text
            if not printable:
                hidden.add(key)
                assert "CANARY" not in text, key
    must_hide = ("key", "token", "secret", "sas", "password", "credential", "proxy_url", "user")
    for key, printable in every_known_key():
        if any(word in key for word in must_hide):
            assert not printable or key == "use_emulator", key
    assert len(hidden) > 80


def test_printable_values_are_shown() -> None:
    options = StorageOptions({"aws_region": "eu-1", "endpoint_url": "https://h", "timeout": "5s"})
    assert repr(options) == "StorageOptions(aws_region=eu-1, endpoint_url=https://h, timeout=5s)"


def test_unknown_keys_and_values_with_credentials_are_hidden() -> None:
    options = StorageOptions(
        {
            "my_unknown": "CANARY",
            "endpoint": "https://user:CANARY@host",
            "aws_endpoint": "https://host/?sig=CANARY",
            "region": "x@CANARY",
        }
    )
    assert "CANARY" not in repr(options)


def test_settings_hide_everything() -> None:
    settings = translated("s3", aws_secret_access_key="CANARY", proxy_url="http://u:CANARY@h")
    assert "CANARY" not in repr(settings)


def test_a_client_that_dislikes_a_value_does_not_repeat_it() -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store("az://c/t", {"account_name": "acc", "account_key": "CANARY!"})
    assert "CANARY" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="checksum algorithm") as caught:
        open_store("s3://b/t", {"aws_checksum_algorithm": "CANARY"})
    assert "CANARY" not in str(caught.value)


# Shape


@pytest.mark.parametrize("options", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}, {None: "x"}])
def test_options_are_strings(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="map strings to strings"):
        StorageOptions(options)


def test_options_are_a_mapping() -> None:
    options = StorageOptions({"Region": "a"})
    assert dict(options) == {"region": "a"}
    assert len(options) == 1
    assert StorageOptions() == {}
    assert StorageOptions(None) == {}
    assert StorageOptions(options) == options
    with pytest.raises(TypeError):
        options["region"] = "b"  # type: ignore[index]


def test_errors_here_are_ours() -> None:
    with pytest.raises(ValueError, match="unknown storage option") as caught:
        translated("s3", nothing="x")
    assert isinstance(caught.value, HoldfastError)


# The reference page


def test_the_page_lists_every_option() -> None:
    page = (ROOT / "docs/reference/storage-options.md").read_text()
    sections = {
        part.split("\n", 1)[0]: part for part in page.split("\n## ") if part.split("\n", 1)[0]
    }
    for backend in (*REMOTE, "cos", "oss"):
        section = next(text for title, text in sections.items() if f"`{backend}://`" in title)
        listed = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
        assert listed == set(table._CONFIG[backend])
        for alias in table._ALIASES[backend]:
            assert f"`{alias}`" in section
        for prefix in table._PREFIXES[backend]:
            assert f"`{prefix}`" in section
    shared = next(text for title, text in sections.items() if title.startswith("All remote"))
    listed = {line.split("`")[1] for line in shared.splitlines() if line.startswith("| `")}
    assert listed == {*table._CLIENT, *table._RETRY}
    for name in table._LANCE_ONLY:
        assert f"`{name}`" in page


def test_opening_a_store_does_not_search_the_installed_packages_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_store(tmp_path)

    def search(**_: object) -> object:
        raise AssertionError("it takes milliseconds, and a server opens stores all the time")

    monkeypatch.setattr("importlib.metadata.entry_points", search)
    open_store(tmp_path)
