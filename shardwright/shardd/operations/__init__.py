"""Operations of clients on their way to the mongod: admitted, completed by what mongod does not know, passed on.

Owns what is checked and changed on that way.
May import `context`, `exchange`, `metadata`, `session_history` and `shard_key_updates`.
"""
