"""Which server or host a location is on: `s3://lake/t` on two servers is two places.

The endpoint is a name to compare and to show: no scheme, no user, no path. AWS has one name
however it is reached (regional, dual-stack and VPC endpoints): a bucket's name is unique there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

AWS = "amazonaws.com"
_S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
_MACHINE_ID = Path("/etc/machine-id")


def remote_endpoint(backend: str, config: Mapping[str, str]) -> str:
    """Return the endpoint of an S3, Google or Azure client with these settings."""
    if backend == "s3":
        given = host_of(config.get("endpoint") or _variable(_S3_VARIABLES))
        china = f"{AWS}.cn"
        for partition in (AWS, china):
            if given == partition or given.endswith(f".{partition}"):
                return partition
        return given or AWS
    if backend == "gs":
        return host_of(config.get("base_url")) or "storage.googleapis.com"
    account = config.get("account_name") or _variable(_ACCOUNT_VARIABLES)
    return " ".join(part for part in (account, host_of(config.get("endpoint"))) if part)


def host() -> str:
    """Return this host's name, with its machine id where it has one."""
    machine = ""
    with contextlib.suppress(OSError):
        machine = _MACHINE_ID.read_text().strip()
    return f"{os.uname().nodename} {machine}".strip()


def _variable(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def host_of(url: str | None) -> str:
    """Return host and port of an endpoint, in lower case; the default port is left out."""
    if not url:
        return ""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    port = parts.port
    default = {"http": 80, "https": 443}.get(parts.scheme)
    name = (parts.hostname or "").rstrip(".")
    return name if port in {None, default} else f"{name}:{port}"
