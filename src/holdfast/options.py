"""Storage options: one dict with pylance's names, translated once, never printed in full.

`StorageOptions` keeps what the user gave. `translate` turns it into what the object-store
client takes, by the table below; nothing is passed through unknown. A value `env:NAME` is
read from the environment when a store is opened, so secrets need not travel in options.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from holdfast.errors import InvalidInputError

# Option names per backend, as the client library spells them. pylance also accepts them with
# the backend's prefix, and so do we.
_CONFIG: Mapping[str, tuple[str, ...]] = {
    "s3": (
        "access_key_id",
        "checksum_algorithm",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "default_region",
        "disable_bulk_delete",
        "disable_tagging",
        "endpoint",
        "endpoint_url_sts",
        "imdsv1_fallback",
        "metadata_endpoint",
        "region",
        "request_payer",
        "role_arn",
        "role_session_name",
        "s3_express",
        "secret_access_key",
        "server_side_encryption",
        "session_token",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_customer_key_base64",
        "sse_kms_key_id",
        "unsigned_payload",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    ),
    "gs": (
        "application_credentials",
        "base_url",
        "bearer_token",
        "service_account",
        "service_account_key",
        "skip_signature",
    ),
    "az": (
        "account_key",
        "account_name",
        "authority_host",
        "client_id",
        "client_secret",
        "disable_tagging",
        "endpoint",
        "federated_token_file",
        "msi_endpoint",
        "msi_resource_id",
        "object_id",
        "sas_key",
        "skip_signature",
        "tenant_id",
        "token",
        "use_azure_cli",
        "use_emulator",
    ),
    # pylance reads these by exactly one name.
    "cos": ("cos_enable_versioning", "cos_endpoint", "cos_secret_id", "cos_secret_key"),
    "oss": (
        "oss_access_key_id",
        "oss_endpoint",
        "oss_region",
        "oss_secret_access_key",
        "oss_security_token",
    ),
    "file": (),
    "memory": (),
}
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "s3": ("aws_",),
    "gs": ("google_",),
    "az": ("azure_storage_", "azure_"),
    "cos": (),
    "oss": (),
    "file": (),
    "memory": (),
}
# Other spellings; like the names above they are also known with the backend's prefix.
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "endpoint_url": "endpoint",
        "endpoint_url_s3": "endpoint",
        "sts_endpoint": "endpoint_url_sts",
        "token": "session_token",
    },
    "gs": {"service_account_path": "service_account", "storage_token": "bearer_token"},
    "az": {
        "access_key": "account_key",
        "authority_id": "tenant_id",
        "bearer_token": "token",
        "identity_endpoint": "msi_endpoint",
        "master_key": "account_key",
        "sas_token": "sas_key",
    },
    "cos": {},
    "oss": {},
    "file": {},
    "memory": {},
}
_CLIENT = {
    "allow_http": "allow_http",
    "allow_invalid_certificates": "allow_invalid_certificates",
    "connect_timeout": "connect_timeout",
    "http1_only": "http1_only",
    "http2_only": "http2_only",
    "pool_idle_timeout": "pool_idle_timeout",
    "pool_max_idle_per_host": "pool_max_idle_per_host",
    "proxy_ca_certificate": "proxy_ca_certificate",
    "proxy_excludes": "proxy_excludes",
    "proxy_url": "proxy_url",
    "request_timeout": "timeout",
    "timeout": "timeout",
    "user_agent": "user_agent",
}
_FLAGS = {
    "allow_http",
    "allow_invalid_certificates",
    "cos_enable_versioning",
    "disable_bulk_delete",
    "disable_tagging",
    "http1_only",
    "http2_only",
    "imdsv1_fallback",
    "s3_express",
    "skip_signature",
    "sse_bucket_key_enabled",
    "unsigned_payload",
    "use_azure_cli",
    "use_emulator",
    "virtual_hosted_style_request",
}
_DURATIONS = {"connect_timeout", "pool_idle_timeout", "timeout"}
_DURATION = re.compile(r"(?:[0-9]+ *[a-z]+ *)+")
_RETRY = {"client_max_retries", "client_retry_timeout"}
# Of use to Lance alone; accepted so that one dict serves both.
_LANCE_ONLY = {
    "download_retry_count",
    "new_table_data_storage_version",
    "new_table_enable_v2_manifest_paths",
}
_PRINTABLE = {
    "account_name",
    "allow_http",
    "allow_invalid_certificates",
    "base_url",
    "client_max_retries",
    "client_retry_timeout",
    "connect_timeout",
    "cos_enable_versioning",
    "cos_endpoint",
    "default_region",
    "endpoint",
    "oss_endpoint",
    "oss_region",
    "region",
    "s3_express",
    "server_side_encryption",
    "skip_signature",
    "timeout",
    "use_emulator",
    "virtual_hosted_style_request",
    *_LANCE_ONLY,
}
_SECRET = {name for names in _CONFIG.values() for name in names} - _PRINTABLE
_REMOTE = ("s3", "gs", "az", "cos", "oss")
# The client of these has no other settings of its connections.
_FEW_SETTINGS = {"allow_http", "request_timeout", "timeout"}
_CLIENT_KEYS: Mapping[str, Collection[str]] = {
    "s3": _CLIENT.keys(),
    "gs": _CLIENT.keys(),
    "az": _CLIENT.keys(),
    "cos": _FEW_SETTINGS,
    "oss": _FEW_SETTINGS,
}
_IDENTITIES = ("access_key_id", "account_name", "cos_secret_id", "oss_access_key_id")
_ENV = "env:"


class StorageOptions(Mapping[str, str]):
    """The user's options, immutable; shows names but no values that could be secret.

    Names are kept in lower case.

    Raises:
        InvalidInputError: a key or value is not a string, or one name has two values.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        whole: object = options
        if whole is not None and not isinstance(whole, Mapping):
            raise InvalidInputError("storage options are a dict", given=type(whole).__name__)
        given: list[tuple[object, object]] = list((options or {}).items())
        for key, value in given:
            if not (isinstance(key, str) and isinstance(value, str)):
                raise InvalidInputError("storage options map strings to strings", option=str(key))
        self._options: dict[str, str] = {}
        for key, value in (options or {}).items():
            _set_once(self._options, key.lower(), value, key)

    def __getitem__(self, key: str) -> str:
        return self._options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={_printable_value(k, v)}" for k, v in sorted(self._options.items()))
        return f"StorageOptions({shown})"

    __str__ = __repr__


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Options in the client library's words, `env:` values resolved. Holds secrets: no repr."""

    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str | bool] = field(repr=False)
    max_retries: int | None = None
    retry_timeout_seconds: float | None = None


def translate(backend: str, options: StorageOptions) -> ClientSettings:
    """Return the client's settings for one backend.

    Raises:
        InvalidInputError: an unknown option (with a suggestion), an unset variable, a bad
            value, one option in two spellings, or plain http to another machine that was
            not allowed explicitly.
    """
    config: dict[str, str] = {}
    client: dict[str, str | bool] = {}
    retry: dict[str, float] = {}
    for key, raw in options.items():
        if key in _LANCE_ONLY:
            continue
        value = resolve(key, raw)
        if key in _RETRY:
            retry[key] = _number(key, value)
        elif (name := _client_key(backend, key)) is not None:
            _set_once(client, name, _flag(key, value) if name in _FLAGS else value, key)
            _check_form(name, key, value)
        else:
            name = _config_key(backend, key)
            _set_once(
                config, name, str(_flag(key, value)).lower() if name in _FLAGS else value, key
            )
    _check_transport(config, client)
    return ClientSettings(
        config=config,
        client=client,
        max_retries=_whole(retry.get("client_max_retries")),
        retry_timeout_seconds=retry.get("client_retry_timeout"),
    )


def client_identity(backend: str, options: StorageOptions) -> str:
    """Return as whom a client with these options asks, to tell clients apart; may hold secrets.

    Raises:
        InvalidInputError: as for `translate`.
    """
    if backend not in _CONFIG:  # a store of another package: we do not know its options
        return " ".join(f"{key}={resolve(key, value)}" for key, value in sorted(options.items()))
    config = translate(backend, options).config
    return next((config[name] for name in _IDENTITIES if name in config), "")


def resolve(key: str, value: str) -> str:
    """Return `value`, or what the environment variable behind `env:NAME` holds now.

    Raises:
        InvalidInputError: the variable is not set.
    """
    if not value.startswith(_ENV):
        return value
    secret = os.environ.get(value[len(_ENV) :])
    if secret is None:
        raise InvalidInputError(
            f"option {key} takes its value from an environment variable that is not set: set it",
            variable=value[len(_ENV) :],
        )
    return secret


def suggestion(word: str, known: list[str]) -> str:
    """Return ` (did you mean X?)`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


T = TypeVar("T")


def _set_once(target: dict[str, T], name: str, value: T, key: str) -> None:
    if target.setdefault(name, value) != value:
        raise InvalidInputError(f"option {key} is given twice, in two spellings: keep one of them")


def _bare(backend: str, key: str) -> Iterator[str]:
    """Yield what `key` may be called without its backend's prefix."""
    for prefix in ("", *_PREFIXES[backend]):
        if key.startswith(prefix):
            yield key[len(prefix) :]


def _config_key(backend: str, key: str) -> str:
    aliases, names = _ALIASES[backend], _CONFIG[backend]
    for bare in _bare(backend, key):
        if bare in names:
            return bare
        if bare in aliases:
            return aliases[bare]
    bare_names = [*names, *aliases, *_CLIENT_KEYS.get(backend, ())]
    known = [*bare_names, *(p + n for p in _PREFIXES[backend] for n in bare_names), *_RETRY]
    raise InvalidInputError(
        f"unknown storage option {key!r} for {backend}://{suggestion(key, known)}; "
        "see docs/reference/storage-options.md",
    )


def _client_key(backend: str, key: str) -> str | None:
    known = _CLIENT_KEYS.get(backend, ())
    return next((_CLIENT[bare] for bare in _bare(backend, key) if bare in known), None)


def _check_form(name: str, key: str, value: str) -> None:
    if name in _DURATIONS and not _DURATION.fullmatch(value):
        raise InvalidInputError(f"option {key} is a duration with its unit, such as 30s")
    if name == "pool_max_idle_per_host" and not re.fullmatch("[0-9]{1,6}", value):
        raise InvalidInputError(f"option {key} is a whole number")


def _flag(key: str, value: str) -> bool:
    if value.lower() in {"true", "1", "yes", "on"}:
        return True
    if value.lower() in {"false", "0", "no", "off"}:
        return False
    raise InvalidInputError(f"option {key} is true or false")


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number <= 3600:  # noqa: PLR2004 - an hour bounds both retries and seconds
        raise InvalidInputError(f"option {key} is a number from 0 to 3600", value=repr(value[:40]))
    return number


def _whole(number: float | None) -> int | None:
    if number is not None and number != int(number):
        raise InvalidInputError("option client_max_retries is a whole number", value=number)
    return None if number is None else int(number)


def _check_transport(config: dict[str, str], client: dict[str, str | bool]) -> None:
    for option in ("endpoint", "base_url", "cos_endpoint", "oss_endpoint"):
        if option in config:
            _check_endpoint(option, config[option], client)


def _check_endpoint(option: str, endpoint: str, client: dict[str, str | bool]) -> None:
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
    except ValueError:  # its text repeats the URL
        host = ""
    if not host or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise InvalidInputError(
            f"option {option} is a URL such as https://host:9000; credentials have their own "
            "options"
        )
    if parts.scheme == "https":
        return
    if is_loopback(host):
        client.setdefault("allow_http", True)
    elif client.get("allow_http") is not True:
        raise InvalidInputError(
            "plain http to another machine shows data and signatures to the network: "
            "use https, or set allow_http=true",
            host=host,
        )


def is_loopback(host: str) -> bool:
    """Tell whether a host name means this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _printable_value(key: str, value: str) -> str:
    if value.startswith(_ENV):
        return value
    # A name may mean one thing to one backend and another elsewhere: all must be printable.
    meanings = {
        _ALIASES[backend].get(bare, _CLIENT.get(bare, bare))
        for backend in _REMOTE
        for bare in _bare(backend, key)
    }
    if not meanings & _PRINTABLE or meanings & _SECRET:
        return "***"
    return value if "@" not in value and "?" not in value else "***"
