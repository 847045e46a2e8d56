"""One operation's exchange with the mongod: freed of sharding fields, and answered only if its term has lasted.

Owns how an operation is sent to the mongod and its reply taken, and the counting of operations under way.
Imports no other room.
"""
