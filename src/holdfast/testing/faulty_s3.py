"""Run the faulty S3 server: `python -m holdfast.testing.faulty_s3 --conditions ignoring`.

Prints one line of JSON, `{"endpoint": "http://127.0.0.1:PORT"}`, when it is ready. Stops when
its standard input closes, on SIGTERM, or on Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys

from holdfast.errors import InvalidInputError
from holdfast.testing._faulty_s3 import FaultyS3


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.faulty_s3",
        description="A small S3 server on loopback that misbehaves on request.",
    )
    parser.add_argument(
        "--conditions",
        default="honest",
        metavar="MODE",
        help="how put-if-absent is treated: honest, ignoring, after_versioning, racy, "
        "racy:WINDOW_SECONDS, sometimes:P:SEED, unsupported, inverted, lossy",
    )
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency-seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of faults with a probability")
    parser.add_argument("--access-key", default="holdfast")
    parser.add_argument("--secret-key", help="refuse other access keys")
    try:
        server = FaultyS3(**vars(parser.parse_args(arguments)))
    except (InvalidInputError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(json.dumps({"endpoint": server.endpoint}) + "\n")
        sys.stdout.flush()
        while os.read(sys.stdin.fileno(), 4096):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
