"""The faulty S3 server in a process of its own, for benchmarks and many-process tests."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final, Self
from urllib.parse import urlsplit

from holdfast.errors import InvalidInputError, UnavailableError
from holdfast.testing._faulty_s3 import CONTROL, S3Endpoint
from holdfast.testing._s3_faults import Fault, Total
from holdfast.testing._s3_objects import Conditions

_START_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0


class FaultyS3Process(S3Endpoint):
    """The server as a child process, listening from construction until `stop`.

    It ends by itself when this process dies, since its standard input closes then. Several
    processes may steer it: each needs only the endpoint (`Control`).
    """

    def __init__(
        self,
        *,
        conditions: Conditions | str = "honest",
        latency_seconds: float = 0.0,
        seed: int = 0,
        access_key: str = "holdfast",
        secret_key: str | None = None,
    ) -> None:
        """Start it; the arguments are those of `FaultyS3`.

        Raises:
            InvalidInputError: unknown conditions.
            UnavailableError: it did not start in time.
        """
        command = [sys.executable, "-m", "holdfast.testing.faulty_s3"]
        command += ["--conditions", str(conditions), "--latency-seconds", str(latency_seconds)]
        command += ["--seed", str(seed), "--access-key", access_key]
        if secret_key is not None:
            command += ["--secret-key", secret_key]
        if isinstance(conditions, str):
            Conditions.parse(conditions)
        # S603: our own module, and arguments that we just formatted.
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            endpoint = self._read_endpoint()
        except BaseException:
            self.stop()
            raise
        super().__init__(endpoint, access_key=access_key, secret_key=secret_key or "not-checked")
        self.control = Control(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._process.pid

    def stop(self) -> None:
        """End the process and wait for it. Safe to call again."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_endpoint(self) -> str:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], _START_SECONDS)
        line = output.readline() if ready else b""
        if not line:
            raise UnavailableError("the faulty server did not start; see its standard error")
        return str(json.loads(line)["endpoint"])


class Control:
    """Steers a faulty server from any process, over its `/_control` path."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def set_conditions(self, conditions: Conditions | str) -> None:
        """Change how conditions are treated.

        Raises:
            InvalidInputError: unknown conditions.
        """
        self._send({"conditions": str(conditions)})

    def set_latency(self, latency_seconds: float) -> None:
        """Change what is added to every request."""
        self._send({"latency_seconds": latency_seconds})

    def add_fault(self, fault: Fault) -> None:
        """Add a rule."""
        self._send({"faults": [asdict(fault)]})

    def clear_faults(self) -> None:
        """Remove all rules."""
        self._send({"clear_faults": True})

    def clear_requests(self) -> None:
        """Start the totals at zero."""
        self._send({"clear_requests": True})

    def totals(self) -> dict[str, Total]:
        """Return requests and bytes per operation."""
        return {name: Total(**total) for name, total in self._send(None)["requests"].items()}

    def fired(self) -> dict[str, int]:
        """Return how often each kind of fault hit a request."""
        return dict(self._send(None)["fired"])

    def _send(self, order: dict[str, object] | None) -> dict[str, Any]:  # Any: parsed JSON
        place = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(place.netloc, timeout=_ANSWER_SECONDS)
        try:
            method, body = ("GET", None) if order is None else ("POST", json.dumps(order))
            connection.request(method, f"/{CONTROL}", body)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise InvalidInputError(f"the faulty server refused: {answer['error']}")
        return answer
