"""Amazon SES: `POST /v2/email/outbound-emails` with our own bytes. It knows no idempotency keys, and cannot be asked.

Needs the extra `effects-toolkit-email[ses]`: botocore finds credentials and signs; the request goes over our own
client. The message carries the tag `effects_message`, by which its events are recognised.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from effects_email.message.source import labels
from effects_email.transport.base import OutgoingMessage
from effects_email.transport.http_api import fields
from effects_email.transport.http_api.transport import (
    CannotBeAsked,
    HttpRow,
    HttpTransport,
    NothingToSignWith,
    ProviderRequest,
    Said,
    TakesAllOrNone,
    origin_of,
)
from effects_email.transport.url import TransportURL

if TYPE_CHECKING:
    from effects_email.transport.http_api.ses_signing import CredentialsSource

TAG, COUNT_TAG = "effects_message", "effects_recipients"
ERROR_HEADER = "x-amzn-errortype"
_REGION = re.compile(r"[a-z]{2}(-[a-z]{2,12}){1,2}-\d{1,2}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TARGET = "/v2/email/outbound-emails"

ROWS: tuple[HttpRow, ...] = (
    HttpRow("throttle", "the day's quota is used up", says=r"daily (message )?quota", after_seconds=3600.0),
    HttpRow("throttle", "SES asks for fewer messages", codes="LimitExceededException ThrottlingException Throttling",
        after_seconds=1.0),
    HttpRow("config", "the account is suspended or its sending paused",
        codes="AccountSuspendedException SendingPausedException"),
    HttpRow("config", "the domain of the sender is not verified", codes="MailFromDomainNotVerifiedException"),
    HttpRow("config", "an identity is not verified", codes="MessageRejected", says="not verified"),
    HttpRow("config", "SES does not accept the credentials", "400", "ExpiredTokenException UnrecognizedClientException "
        "InvalidSignatureException MissingAuthenticationTokenException IncompleteSignature InvalidClientTokenId"),
    HttpRow("refused_recipient", "SES does not accept a recipient's address", "400", "BadRequestException",
        says=r"\b(address|recipient)"),
)  # fmt: skip


class Ses(TakesAllOrNone, CannotBeAsked):
    """The facts of SES's API.

    Args:
        region: such as `eu-west-1`.
        credentials: what signs.
        origin: in place of the region's.
        configuration_set: by which SES publishes events. Default that of the identity, if it has one.
    """

    scheme: ClassVar[str] = "ses"
    token_variable: ClassVar[str] = ""
    key_lifetime_seconds: ClassVar[float | None] = None
    rate_per_second: ClassVar[int | None] = None
    traceable: ClassVar[bool] = False
    blocks: ClassVar[bool] = True
    read_headers: ClassVar[Sequence[str]] = (ERROR_HEADER,)
    rows: ClassVar[Sequence[HttpRow]] = ROWS

    def __init__(
        self,
        region: str,
        credentials: CredentialsSource,
        *,
        origin: str | None = None,
        configuration_set: str | None = None,
    ) -> None:
        self.origin = origin or f"https://email.{region}.amazonaws.com"
        self._region, self._credentials, self._set = region, credentials, configuration_set

    def request(self, outgoing: OutgoingMessage, token: str, recipients: Sequence[str]) -> ProviderRequest:
        from effects_email.transport.http_api.ses_signing import CredentialsMissing, sign  # noqa: PLC0415 - an extra

        people = fields.groups(outgoing, recipients)
        destination = {"ToAddresses": people.to, "CcAddresses": people.cc, "BccAddresses": people.bcc}
        own = {TAG: fields.reference(outgoing.message_id), COUNT_TAG: str(len(recipients))}
        tags = {**own, **labels(outgoing.source)}
        document: dict[str, Any] = {
            "FromEmailAddress": outgoing.source.sender.spec,
            "Destination": {
                name: [address.spec for address in addresses] for name, addresses in destination.items() if addresses
            },
            "Content": {"Raw": {"Data": base64.b64encode(outgoing.data).decode()}},
            "EmailTags": [{"Name": name, "Value": value} for name, value in tags.items()],
        }
        if self._set is not None:
            document["ConfigurationSetName"] = self._set
        body = fields.as_json(document)
        headers = {"content-type": "application/json"}
        try:
            credentials = self._credentials.read()
        except CredentialsMissing as error:
            raise NothingToSignWith(str(error)) from None
        signed = sign(credentials, self._region, "ses", "POST", self.origin + _TARGET, headers, body)
        return ProviderRequest(_TARGET, signed, {}, body=body)

    def said(self, document: Mapping[str, Any]) -> Said:
        code = str(document.get(ERROR_HEADER) or document.get("__type") or "").partition(":")[0].rpartition("#")[2]
        return Said(
            code if _NAME.fullmatch(code) else "", str(document.get("message") or document.get("Message") or "")
        )

    def provider_id(self, document: Mapping[str, Any]) -> str | None:
        message_id = document.get("MessageId")
        return message_id[:100] if isinstance(message_id, str) and message_id else None


def open_url(url: TransportURL) -> HttpTransport:
    """For `open_transport`: `ses:?region=eu-west-1`, with the credentials that botocore finds, or
    `ses://ACCESS_KEY:SECRET@?region=eu-west-1`. `&configuration_set=NAME` is optional.
    """
    try:
        from effects_email.transport.http_api.ses_signing import CredentialsSource  # noqa: PLC0415 - an extra
    except ImportError:
        url.refuse("needs the extra ses: pip install 'effects-toolkit-email[ses]'")
    region, configuration_set = url.option("region", "") or "", url.option("configuration_set")
    if url.host or url.port or url.path not in ("", "/") or (url.user is None) != (url.password is None):
        url.refuse("is ses:?region=… or ses://ACCESS_KEY:SECRET@?region=…")
    if not _REGION.fullmatch(region):
        url.refuse("names no region: add ?region=eu-west-1")
    if configuration_set is not None and not _NAME.fullmatch(configuration_set):
        url.refuse("has a configuration_set that is no name of one")
    provider = Ses(
        region, CredentialsSource(url.user, url.password), origin=origin_of(url), configuration_set=configuration_set
    )
    url.end("region", "configuration_set", "origin")
    return HttpTransport(url.name, provider, "", origin=provider.origin)
