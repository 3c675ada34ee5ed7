"""Signatures of AWS, computed a second time from what came over the wire."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import parse_qsl, quote

from tests.peers.s3_cut import Request


def is_signed(request: Request, secret: str, region: str) -> bool:
    """Whether the request has the Signature Version 4 of this secret, over its body too."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    parts = dict(re.findall(r"(\w+)=([^, ]+)", headers["authorization"]))
    names = parts["SignedHeaders"].split(";")
    path, _, query = request.target.partition("?")
    pairs = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(query, keep_blank_values=True))
    digest = hashlib.sha256(request.body).hexdigest()
    canonical = "\n".join([
        request.method, path, "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{headers[name]}" for name in names), "", ";".join(names), digest,
    ])  # fmt: skip
    day, service = headers["x-amz-date"][:8], "s3"
    scope = f"{day}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for step in (day, region, service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    return headers["x-amz-content-sha256"] == digest and signature == parts["Signature"]
