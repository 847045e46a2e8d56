"""Names in certificates as MongoDB writes them: RFC 2253, the most specific part first.

Names of attributes, order and escapes are as ``openssl x509 -nameopt RFC2253`` prints them.
"""

from typing import Final, TypeAlias

Subject: TypeAlias = tuple[tuple[tuple[str, str], ...], ...]
"""Distinguished name as ``SSLObject.getpeercert`` returns it: parts of pairs of an attribute and a value."""

Organization: TypeAlias = tuple[tuple[str, str], ...]
"""Attributes with their values, sorted; an attribute may occur several times."""

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
_ESCAPED: Final = frozenset(',+"\\<>;')


def subject_text(subject: Subject) -> str:
    """Return the name of the user who logs in with the certificate of this subject."""
    return ",".join("+".join(_attribute(*pair) for pair in reversed(part)) for part in reversed(subject))


def organization_of(subject: Subject) -> Organization:
    """Return the attributes that all members of a cluster share, whatever their order: O, OU and DC."""
    pairs = ((_SHORT_NAMES.get(name, name), value) for part in subject for name, value in part)
    return tuple(sorted(pair for pair in pairs if pair[0] in {"O", "OU", "DC"}))


def _attribute(name: str, value: str) -> str:
    last = len(value) - 1
    shown = "".join(
        _escape(character, is_edge=number == last, is_first=number == 0) for number, character in enumerate(value)
    )
    return f"{_SHORT_NAMES.get(name, name)}={shown}"


def _escape(character: str, *, is_edge: bool, is_first: bool) -> str:
    if character in _ESCAPED or (character == " " and (is_edge or is_first)) or (character == "#" and is_first):
        return f"\\{character}"
    if character.isascii() and character.isprintable():
        return character
    return "".join(f"\\{byte:02X}" for byte in character.encode())
