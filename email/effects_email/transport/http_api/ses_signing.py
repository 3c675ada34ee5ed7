"""AWS Signature Version 4, and the credentials for it: both are botocore's; it sends nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session


class CredentialsSource:
    """Keys of the URL, or what botocore finds: the environment, a profile, the role of this machine.

    Raises:
        CredentialsMissing: by `read`; there are none, or the role's cannot be had now.
    """

    def __init__(self, access_key: str | None, secret: str | None) -> None:
        self._fixed = Credentials(access_key, secret) if access_key is not None else None
        self._session: Any = None

    def read(self) -> Any:
        """What signs now; botocore renews those of a role, which may take some seconds."""
        try:
            return self._fixed or self._renewed()
        except (BotoCoreError, OSError) as error:
            raise CredentialsMissing(type(error).__name__) from None

    def _renewed(self) -> Any:
        if self._session is None:
            self._session = Session()
        credentials = self._session.get_credentials()
        if credentials is None:
            raise CredentialsMissing("none found")
        return credentials.get_frozen_credentials()


class CredentialsMissing(Exception):
    """Nothing can be signed."""


def sign(
    credentials: Any, region: str, service: str, method: str, url: str, headers: Mapping[str, str], body: bytes
) -> dict[str, str]:
    """The headers of a request with those that sign it. All of the given ones are signed."""
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    SigV4Auth(credentials, service, region).add_auth(request)
    return {str(name).lower(): str(value) for name, value in request.headers.items()}
