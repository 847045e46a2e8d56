"""The TLS of this process: its settings, and the certificates now in use."""

from typing import TYPE_CHECKING, Final

from shardwright.wire.tls.contexts import client_context, server_context
from shardwright.wire.tls.own_certificate import own_certificate
from shardwright.wire.tls.settings import TlsMode, TlsSettings
from shardwright.wire.tls.subject_names import Organization, Subject, organization_of

if TYPE_CHECKING:
    import ssl
    from datetime import datetime


class ProcessTls:
    """TLS settings and contexts, disabled until `use` is called, once, at startup.

    Attributes:
        accepting: for clients; None without TLS.
        dialing: for servers on the network; None if connections to them do not use TLS.
        dialing_locally: for servers on UNIX sockets.
        organization: the attributes common to the certificates of the cluster's members (`own_certificate`).
    """

    def __init__(self) -> None:
        self.settings = TlsSettings()
        self.accepting: ssl.SSLContext | None = None
        self.dialing: ssl.SSLContext | None = None
        self.dialing_locally: ssl.SSLContext | None = None
        self.organization: Organization = ()
        self.expires_at: datetime | None = None

    def use(self, settings: TlsSettings) -> None:
        """Enable TLS according to the settings."""
        settings.check()
        self._load(settings)
        self.settings = settings

    def rotate(self) -> None:
        """Read all files again, for future connections; open ones are unaffected. Either all of them change or none."""
        self._load(self.settings)

    def is_member(self, subject: Subject | None) -> bool:
        """Whether a verified certificate belongs to a member of the cluster: it has this server's organization."""
        organization = organization_of(subject or ())
        return bool(organization) and organization in (self.organization, self.settings.members_too)

    def _load(self, settings: TlsSettings) -> None:
        if settings.mode is TlsMode.DISABLED:
            self.accepting = self.dialing = self.dialing_locally = None
            self.organization = ()
            self.expires_at = None
            return
        assert settings.certificate_key_file is not None, "checked with the settings"
        organization, expires_at = own_certificate(settings.certificate_key_file)
        accepting = server_context(settings)
        dialing = client_context(settings, checks_host_name=True)
        dialing_locally = client_context(settings, checks_host_name=False)
        self.accepting = accepting
        self.dialing = dialing if settings.mode.dials_tls else None
        self.dialing_locally = dialing_locally
        self.organization = organization
        self.expires_at = expires_at


TLS: Final = ProcessTls()
"""Shared by all connections of the process."""
