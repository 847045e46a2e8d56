"""SCRAM's two sides, with the example of RFC 7677 and with each other."""

from base64 import b64decode

import pytest

from shardwright.wire.scram import (
    ClientConversation,
    ClientFinal,
    ClientFirst,
    Credentials,
    Mechanism,
    ScramError,
    ScramKeys,
    ServerConversation,
    ServerFirst,
    first_reply,
)

SALT = bytes(range(28))
ITERATIONS = 4096


def test_the_example_of_the_standard() -> None:
    """RFC 7677, section 3."""
    client = ClientConversation("user", b"rOprNGfwEbeRWgbNEkqO")
    assert client.first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    reply = client.read(first)
    assert reply.message == first
    proof = client.prove(reply, ScramKeys.derive(Mechanism.SHA_256, b"pencil", reply.salt, reply.iterations))
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def begun(
    mechanism: Mechanism, *passwords: bytes, nonce: bytes = b"server"
) -> tuple[ClientConversation, ServerConversation]:
    client = ClientConversation("a,b=c", b"client")
    first = ClientFirst.parse(client.first)
    assert first.user == "a,b=c"
    credentials = [Credentials.of_password(mechanism, each, SALT, ITERATIONS) for each in passwords]
    return client, ServerConversation(first, credentials, first_reply(first, nonce, SALT, ITERATIONS))


def proof_of(client: ClientConversation, server: ServerConversation, mechanism: Mechanism, password: bytes) -> bytes:
    reply = client.read(server.reply.message)
    return client.prove(reply, ScramKeys.derive(mechanism, password, reply.salt, reply.iterations))


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("password", [b"old", b"new"])
def test_one_of_several_passwords_is_enough(mechanism: Mechanism, password: bytes) -> None:
    client, server = begun(mechanism, b"new", b"old")
    client.verify(server.finish(proof_of(client, server, mechanism, password)))


@pytest.mark.parametrize("passwords", [(), (b"right",), (b"right", b"other")])
def test_a_wrong_password_is_refused(passwords: tuple[bytes, ...]) -> None:
    client, server = begun(Mechanism.SHA_256, *passwords)
    with pytest.raises(ScramError):
        server.finish(proof_of(client, server, Mechanism.SHA_256, b"wrong"))


def test_a_recorded_conversation_cannot_be_repeated() -> None:
    client, server = begun(Mechanism.SHA_256, b"p")
    proof = proof_of(client, server, Mechanism.SHA_256, b"p")
    server.finish(proof)
    _, another = begun(Mechanism.SHA_256, b"p", nonce=b"fresh")
    with pytest.raises(ScramError):
        another.finish(proof)


def test_a_server_that_does_not_know_the_password_is_not_trusted() -> None:
    client, server = begun(Mechanism.SHA_256, b"p")
    proof_of(client, server, Mechanism.SHA_256, b"p")
    for claim in (b"v=", b"v=" + b"A" * 44, b"e=other-error", b""):
        with pytest.raises(ScramError):
            client.verify(claim)


def test_nothing_is_verified_before_the_proof() -> None:
    with pytest.raises(ScramError):
        ClientConversation("u", b"n").verify(b"v=")


@pytest.mark.parametrize(
    "message",
    [
        b"r=client,s=AAAA,i=4096",
        b"r=other,s=AAAA,i=4096",
        b"r=clientserver,s=AAAA,i=1",
        b"r=clientserver,s=AAAA,i=4294967296",
        b"r=clientserver,s=?,i=4096",
        b"r=clientserver,s=AAAA,i=x",
        b"s=AAAA,r=clientserver,i=4096",
        b"r=clientserver,s=AAAA",
        b"m=ext,r=clientserver,s=AAAA,i=4096",
        b"",
    ],
)
def test_a_client_refuses_what_no_server_should_say(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientConversation("u", b"client").read(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"y,,n=u,r=n",
        b"p=tls-unique,,n=u,r=n",
        b"n,a=admin,n=u,r=n",
        b"n,,n=u",
        b"n,,n=u,r=",
        b"n,,r=n,n=u",
        b"n,,n=u,r=n,x=y",
        b"n,,n=a=b,r=n",
        b"n,,n=\xff,r=n",
        b"n,,n=" + b"u" * 100_000 + b",r=n",
    ],
)
def test_a_server_refuses_what_no_client_should_say(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFirst.parse(message)


@pytest.mark.parametrize(
    "message", [b"", b"c=biws,r=n", b"c=eSws,r=n,p=AAAA", b"c=biws,r=n,p=?", b"r=n,c=biws,p=AAAA", b"c" * 100_000]
)
def test_a_malformed_proof_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFinal.parse(message)


def test_messages_are_read_as_they_were_written() -> None:
    assert ServerFirst.parse(ServerFirst(b"n", b"salt", 5000).message) == ServerFirst(b"n", b"salt", 5000)


def test_a_server_with_an_endless_number_of_iterations_is_refused() -> None:
    """Python converts no more than 4,300 digits."""
    with pytest.raises(ScramError, match="not a number"):
        ServerFirst.parse(b"r=n,s=c2FsdA==,i=" + b"9" * 5000)
    assert ClientFinal.parse(ClientFinal(b"n", b"proof").message) == ClientFinal(b"n", b"proof")


def test_credentials_are_those_that_mongod_stores() -> None:
    """Of a user with the password p on MongoDB 6.0.5."""
    stored = {
        "iterationCount": 15000,
        "salt": "Zp9GiJZ4w6Gzt9yhMyPTcNGU3u4MNZ/TJ1JCZw==",
        "storedKey": "iowSl8tJ0Ow+eq1NXq920Rk1v3+MDXkWQmzQjwnICJY=",
        "serverKey": "mO+Xw2z0uZjgCWM90AAfst/5OdMj2XDsvQANduza3KY=",
    }
    read = Credentials.from_document(Mechanism.SHA_256, stored)
    made = Credentials.of_password(Mechanism.SHA_256, b"p", b64decode(str(stored["salt"])), 15000)
    assert read == made
    assert "storedKey" not in repr(made)
    assert len(made.salt) == Mechanism.SHA_256.salt_bytes
