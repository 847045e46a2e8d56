"""The names of users in certificates, as ``openssl x509 -nameopt RFC2253`` and mongod print them."""

import pytest

from shardwright.wire.tls import Subject, organization_of, subject_text


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ((), ""),
        (
            ((("countryName", "DE"),), (("organizationName", "Shop"),), (("commonName", "client"),)),
            "CN=client,O=Shop,C=DE",
        ),
        (((("commonName", "a"), ("organizationalUnitName", "b")),), "OU=b+CN=a"),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        (((("commonName", " a b "),),), "CN=\\ a b\\ "),
        (((("commonName", "#a#"),),), "CN=\\#a#"),
        (((("commonName", "Zoë\n"),),), "CN=Zo\\C3\\AB\\0A"),
        (((("emailAddress", "a@b.c"),), (("domainComponent", "x"),)), "DC=x,emailAddress=a@b.c"),
        (((("streetAddress", "1"),), (("userId", "u"),), (("surname", "s"),)), "SN=s,UID=u,street=1"),
    ],
)
def test_text(subject: Subject, text: str) -> None:
    assert subject_text(subject) == text


def test_members_agree_in_their_organization() -> None:
    subject: Subject = (
        (("domainComponent", "example"),),
        (("domainComponent", "com"),),
        (("organizationName", "o"), ("organizationalUnitName", "u")),
        (("commonName", "host1"),),
    )
    assert organization_of(subject) == (("DC", "com"), ("DC", "example"), ("O", "o"), ("OU", "u"))
    assert organization_of(((("commonName", "host2"),),)) == ()
