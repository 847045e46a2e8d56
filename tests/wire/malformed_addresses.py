"""Addresses and connection strings that mongod 6.0 refuses, with its messages."""

from typing import Final

MALFORMED_ADDRESSES: Final = {
    "": 'Empty host component parsing HostAndPort from ""',
    ":5": 'Empty host component parsing HostAndPort from ":5"',
    "[]:5": 'Empty host component parsing HostAndPort from "[]:5"',
    ':"\\\n\x01\x7fé': 'Empty host component parsing HostAndPort from ":\\"\\\\\\n\\u0001\x7fé"',
    "h:": "No digits",
    "h:+": "No digits",
    "h:port": "Did not consume whole string.",
    "h: 1": "Did not consume whole string.",
    "h:0x10": "Did not consume whole string.",
    "h:--1": "Did not consume whole string.",
    "h:\uff11": "Did not consume whole string.",
    "h:99999999999x": "Did not consume whole string.",
    "h:0": 'Port number 0 out of range parsing HostAndPort from "h:0"',
    "h:-1": 'Port number -1 out of range parsing HostAndPort from "h:-1"',
    "h:65536": 'Port number 65536 out of range parsing HostAndPort from "h:65536"',
    "h:2147483647": 'Port number 2147483647 out of range parsing HostAndPort from "h:2147483647"',
    "[::1": "ipv6 address is missing closing ']' in hostname in [::1",
    "[::1]5": "missing colon after ']' before the port in [::1]5",
    "[::1]x:5": "Extraneous characters between ']' and pre-port ':' in [::1]x:5",
    "[a]b": "Extraneous characters between ']' and pre-port ':' in [a]b",
    "[]": "Extraneous characters between ']' and pre-port ':' in []",
    "a]:5": "']' present without '[' in a]:5",
    "a[:5": "'[' present, but not first character in a[:5",
    "::1:5": (
        "More than one ':' detected. If this is an ipv6 address, it needs to be surrounded by '[' and ']'; ::1:5"
    ),
}
"""FailedToParse for each, as the address of a server."""

MALFORMED_CONNECTION_STRINGS: Final = {
    "set/": 'Empty host component parsing HostAndPort from ""',
    "set/h:1,": 'Empty host component parsing HostAndPort from ""',
    "set/h:1,,g:2": 'Empty host component parsing HostAndPort from ""',
    "a:1,b:1": "invalid url [a:1,b:1]",
    "/a,/b": "invalid url [/a,/b]",
    "a,b,c,d": "invalid url [a,b,c,d]",
    "a:1,b:1,c:1": (
        "mirrored config server connections are not supported; for config server replica sets be sure to use the "
        "replica set connection string"
    ),
    "set//tmp/x.sock": "Must specify set name for replica set ConnectionStrings",
    "set//": 'Empty host component parsing HostAndPort from ""',
    "mongodb://h:1/?replicaSet=set": "Did not consume whole string.",
}
"""FailedToParse for each, as a connection string."""
