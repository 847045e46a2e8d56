"""The command `shardwright doctor`: faults of a cluster, with their places and remedies."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from shardwright.deploy.access import log_in_by_key
from shardwright.deploy.doctor_checks import CHECKS, Finding
from shardwright.deploy.doctor_gather import Credentials
from shardwright.deploy.errors import DeployError

EXIT_FINDINGS: Final = 2
"""The exit status after findings; 1 if the checks could not run."""

_OF_THE_CONNECTION: Final = ("tls", "tlscafile", "tlscertificatekeyfile", "tlsinsecure")
_ALLOWED: Final = ("authsource", "authmechanism", "authmechanismproperties", *_OF_THE_CONNECTION)


def of_connection_string(uri: str, key_file: Path | None) -> tuple[list[str], Credentials]:
    """Return the router addresses in a connection string, and the credentials for routers and members.

    Args:
        key_file: the key of the cluster, for logging in at members; None without access control.
    """
    try:
        parsed: dict[str, Any] = dict(parse_uri(uri))
    except (PyMongoError, ValueError) as error:
        raise DeployError(f"the connection string cannot be used: {error}") from error
    options = {name.lower(): value for name, value in parsed["options"].items()}
    connection = {name: options[name] for name in _OF_THE_CONNECTION if name in options}
    at_routers = {name: value for name, value in options.items() if name in _ALLOWED}
    if parsed["username"] is not None:
        at_routers |= {"username": parsed["username"], "password": parsed["password"]}
    at_members = {**connection, **({} if key_file is None else log_in_by_key(key_file))}
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in parsed["nodelist"]]
    return hosts, Credentials(at_routers, at_members)


def findings_text(findings: list[Finding]) -> str:
    """Format the findings for people."""
    if not findings:
        return f"nothing found by {len(CHECKS)} checks"
    parts = [
        f"{finding.severity.upper()} {finding.check} at {finding.where}\n    {finding.what}\n    → {finding.mend}"
        for finding in findings
    ]
    return "\n".join([*parts, f"{len(findings)} found by {len(CHECKS)} checks"])


def findings_json(findings: list[Finding]) -> str:
    """Format the findings as one line of JSON."""
    return json.dumps({"findings": [asdict(finding) for finding in findings]}, separators=(",", ":"))
